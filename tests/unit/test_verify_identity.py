"""Replaying requests: the file, what is compared, ties, exit statuses, and servers that are not what is asked for."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from rich.console import Console

from sglang_eagle31.cli import main
from sglang_eagle31.verify.identity_run import Options, run, split_flags

PLAIN = {"speculative_algorithm": None, "dtype": "float32", "model_path": "m", "version": "0.5.23"}
EAGLE = {**PLAIN, "speculative_algorithm": "EAGLE3"}


class Fake(BaseHTTPRequestHandler):
    """Counts up from the prompt's last token; ``changes`` maps a prefix's length to another token, ``logits`` tells."""

    def do_GET(self):
        self.send(200, self.server.info)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        if "messages" in body:
            ids = [len(message["content"]) for message in body["messages"]]
            self.send(*self.chat(ids, body))
            return
        if "text" in body and body.get("return_logprob"):
            pairs = [[0.0, token, None] for token in map(ord, body["text"])]
            self.send(200, {"output_ids": [0], "meta_info": {"input_token_logprobs": pairs}})
            return
        ids = body.get("input_ids") or [ord(letter) for letter in body["text"]]
        if ids[0] in self.server.refuses:
            self.send(400, {"error": "refused"})
        elif body.get("return_logprob"):
            self.send(200, self.tell(body))
        else:
            tokens = self.answer(ids, body["sampling_params"]["max_new_tokens"])
            meta = {"finish_reason": {"type": self.server.finish}, "spec_verify_ct": self.server.rounds}
            self.send(200, {"output_ids": tokens, "text": str(tokens), "meta_info": meta})

    def answer(self, ids, count):
        out = list(ids)
        for _ in range(count):
            out.append(self.server.changes.get(len(out), out[-1] + 1))
        return out[len(ids) :]

    def chat(self, ids, body):
        tokens = self.answer(ids, body["max_tokens"])
        choice = {"message": {"content": str(tokens)}, "finish_reason": "length"}
        choice |= {"prompt_token_ids": ids, "response_token_ids": tokens}
        return 200, {"choices": [choice], "sglext": {"spec_tokens_details": {"spec_verify_ct": self.server.rounds}}}

    def tell(self, body):
        wanted = [[self.server.logits.get(token, -9.0), token, None] for token in body["token_ids_logprob"]]
        meta = {"output_token_ids_logprobs": [wanted], "output_top_logprobs": [[[self.server.best, 0, None]]]}
        return {"output_ids": [0], "meta_info": meta}

    def send(self, status, answer):
        if self.server.late:
            return
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture
def serve():
    """Start a fake server; it is returned with its address as ``url``."""
    servers = []

    def start(info, changes=None, logits=None, best=-0.5, finish="length", refuses=(), rounds=None):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Fake)
        server.info, server.changes, server.logits, server.best = info, changes or {}, logits or {}, best
        server.finish, server.refuses, server.bodies, server.late = finish, refuses, [], False
        server.rounds = (3 if info["speculative_algorithm"] else 0) if rounds is None else rounds
        server.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def native(ids, count=6, **sampling):
    return {"input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": count, **sampling}}


def chat(*contents, count=6, **more):
    messages = [{"role": "user", "content": content} for content in contents]
    return {"messages": messages, "temperature": 0, "max_tokens": count, **more}


@pytest.fixture
def compare(tmp_path, capsys):
    """Compare two fake servers on some bodies; returns exit status, record and what was printed."""

    def run_it(first, second, *bodies, more=()):
        file = tmp_path / "requests.jsonl"
        file.write_text("".join(json.dumps(body) + "\n" for body in bodies))
        arguments = ["verify", "--requests", str(file), "--url", first.url, "--baseline", second.url]
        status = main([*arguments, "--out", str(tmp_path), *more])
        record = tmp_path / "identity.json"
        text = capsys.readouterr()
        return status, json.loads(record.read_text()) if status in (0, 1, 3) else None, text.out + text.err

    return run_it


def test_the_same_answers(serve, compare) -> None:
    bodies = [
        native([5, 6]),
        chat("four", "more"),
        {"text": "ab", "sampling_params": {"top_k": 1, "max_new_tokens": 4}},
    ]
    status, record, text = compare(serve(EAGLE), serve(PLAIN), *bodies, more=["--concurrency", "2"])
    assert status == 0 and record["identical"] and record["counts"]["same"] == 3 and "identical" in text
    assert (record["tokens"], record["tokens_compared"], record["speculative_steps"]) == (16, 16, 9)
    assert record["versions"]["torch"]


@pytest.mark.parametrize(
    "body", [native([7, 8, 9]), {"text": "abc", "sampling_params": {"temperature": 0, "max_new_tokens": 6}}]
)
def test_the_first_difference_with_both_servers_logprobs(serve, compare, body) -> None:
    first = serve(EAGLE, changes={5: 99}, logits={99: -0.5, 12: -1.0, 102: -1.0})
    second = serve(PLAIN, logits={99: -2.0, 12: -0.5, 102: -0.5})
    status, record, text = compare(first, second, native([1, 2, 3, 4, 5, 6]), body)
    (entry,) = (entry for entry in record["requests"] if entry["outcome"] == "DIFFERENT")
    before = 10 if "input_ids" in body else ord("c") + 1
    assert status == 1 and not record["identical"] and "DIFFERENT" in text
    assert (entry["line"], entry["position"], entry["compared"]) == (2, 2, 2)
    assert (entry["speculative_token"], entry["baseline_token"]) == (99, before + 2)
    ours, theirs = entry["logprobs"]["speculative"], entry["logprobs"]["baseline"]
    assert (ours["best"], ours["speculative_token"], ours["baseline_token"], ours["gap"]) == (-0.5, -0.5, -1.0, 0.5)
    assert (theirs["speculative_token"], theirs["baseline_token"], theirs["gap"]) == (-2.0, -0.5, 1.5)
    prompt = body.get("input_ids") or [ord(letter) for letter in body["text"]]
    asked = [b for b in second.bodies if "token_ids_logprob" in b]
    assert asked[0]["input_ids"] == [*prompt, before, before + 1] and asked[0]["token_ids_logprob"] == [99, before + 2]


@pytest.mark.parametrize(
    ("dtype", "ours", "theirs", "more", "status"),
    [
        ("bfloat16", -0.75, -0.75, [], 3),  # 2 ulps at 16: 0.25
        ("bfloat16", -0.75, -0.80, [], 1),  # the other server has to agree
        ("bfloat16", -0.80, -0.75, [], 1),
        ("bfloat16", -0.75, -0.75, ["--logit-magnitude", "8"], 1),
        ("bfloat16", -0.75, -0.75, ["--dtype", "float32"], 1),
        ("float32", -0.500001, -0.500001, [], 1),  # no tolerance at all
        ("auto", -0.5, -0.5, [], 1),  # unknown: none either
        ("auto", -0.5, -0.5, ["--dtype", "float16"], 3),
        ("float16", -0.53125, -0.53125, [], 3),
        ("float16", -0.54, -0.54, [], 1),
    ],
)
def test_ties(serve, compare, dtype, ours, theirs, more, status) -> None:
    first = serve({**EAGLE, "dtype": dtype}, changes={4: 99}, logits={99: -0.5, 11: ours})
    second = serve({**PLAIN, "dtype": dtype}, logits={99: theirs, 11: -0.5})
    found, record, text = compare(first, second, native([7, 8]), more=more)
    assert found == status and record["counts"]["tie"] == (status == 3)
    assert ("identical up to ties" in text) == (status == 3) and not record["identical"]


def test_an_answer_that_ends_is_never_a_tie(serve, compare) -> None:
    info = {"dtype": "bfloat16"}
    first = serve({**EAGLE, **info}, logits={9: -0.5})
    second = serve({**PLAIN, **info}, logits={9: -0.5})
    short, long = native([7, 8], 3), native([7, 8], 4)
    second.RequestHandlerClass = type("Longer", (Fake,), {"answer": lambda self, ids, n: Fake.answer(self, ids, n + 1)})
    status, record, _ = compare(first, second, short, long)
    assert status == 1 and record["counts"]["different"] == 2
    assert record["requests"][0]["speculative_token"] is None and record["requests"][0]["position"] == 3


def test_without_logprobs_a_difference_is_no_tie(serve, compare) -> None:
    info = {"dtype": "bfloat16"}
    first = serve({**EAGLE, **info}, changes={4: 99}, logits={99: -0.5, 11: -0.5})
    second = serve({**PLAIN, **info})
    second.RequestHandlerClass = type("Silent", (Fake,), {"tell": lambda self, body: {"meta_info": {}}})
    status, record, text = compare(first, second, native([7, 8]))
    assert status == 1 and record["requests"][0]["logprobs"] == {} and "does not tell" in record["notes"][0]
    assert "not told" in text


def test_what_else_may_differ(serve, compare) -> None:
    status, record, _ = compare(serve(EAGLE, finish="stop"), serve(PLAIN), native([1]))
    assert status == 1 and record["requests"][0]["what"].startswith("finish reason: stop with")
    status, record, _ = compare(serve(EAGLE, refuses=(3,)), serve(PLAIN), native([3]), native([4]))
    assert status == 1 and "refused on one side" in record["requests"][0]["what"]
    status, record, _ = compare(serve(EAGLE, refuses=(3,)), serve(PLAIN, refuses=(3,)), native([3]), native([4]))
    assert status == 0 and record["counts"]["refused"] == 1


def test_sampled_requests_are_counted_apart_or_made_greedy(serve, compare) -> None:
    sampled = [native([1], temperature=1.0), {**chat("ab"), "temperature": None}]
    status, record, _ = compare(serve(EAGLE, changes={3: 50}), serve(PLAIN), *sampled, native([1, 2, 3, 4]))
    assert status == 0 and record["counts"]["sampled"] == 2 and record["counts"]["same"] == 1
    status, _, text = compare(serve(EAGLE), serve(PLAIN), *sampled)
    assert status == 2 and "--greedy" in text
    first = serve(EAGLE)
    status, record, _ = compare(first, serve(PLAIN), *sampled, more=["--greedy"])
    assert status == 0 and record["counts"]["same"] == 2
    assert {b.get("temperature", b.get("sampling_params", {}).get("temperature")) for b in first.bodies} == {0}


def test_servers_that_are_not_what_is_asked_for(serve, compare) -> None:
    plain, eagle = serve(PLAIN), serve(EAGLE)
    assert "without speculation" in compare(plain, plain, native([1]))[2]
    assert "--baseline" in compare(eagle, eagle, native([1]))[2]
    assert compare(plain, plain, native([1]), more=["--any-servers"])[0] == 0
    status, _, text = compare(serve(EAGLE, rounds=0), plain, native([1]))
    assert status == 2 and "no speculative step" in text
    gone = SimpleNamespace(url="http://127.0.0.1:9")
    assert "no SGLang server answers" in compare(gone, plain, native([1]))[2]
    other = serve({**PLAIN, "model_path": "other"})
    assert "differ in model" in compare(eagle, other, native([1]))[1]["notes"][0]


def test_a_server_that_does_not_answer_in_time(serve, compare) -> None:
    first, release = serve(EAGLE), threading.Event()

    def wait(self, ids, count):
        release.wait(20)
        self.server.late = True  # nobody listens any more
        return []

    first.RequestHandlerClass = type("Slow", (Fake,), {"answer": wait})
    status, _, text = compare(first, serve(PLAIN), native([1]), more=["--timeout", "0.2"])
    release.set()
    assert status == 2 and "no answer in" in text and "--timeout" in text


@pytest.mark.parametrize(
    ("asked", "in_time"),
    [({}, []), ({"repetition_penalty": 1.0}, []), ({"frequency_penalty": 0.5}, ["--disable-overlap-schedule"])],
)
def test_both_servers_started_here(serve, tmp_path, asked, in_time) -> None:
    """One after the other; the speculative one again, since an answer differs."""
    file = tmp_path / "requests.jsonl"
    file.write_text(json.dumps(native([7, 8], **asked)) + "\n")
    fakes = {
        "speculative": serve(EAGLE, changes={4: 99}, logits={99: -1.0}),
        "baseline": serve(PLAIN, logits={11: -1.0}),
    }
    started = []

    @contextmanager
    def start(name, target, args, **_more):
        started.append((name, args))
        yield fakes[name.removesuffix("-again")]
        started.append((name, "ended"))

    flags = ("--device", "cpu", "--speculative-num-steps", "3", "--eagle31-x", "y", "--dtype", "float32")
    options = Options(file, target=tmp_path, head=tmp_path / "head", server_flags=flags, out=tmp_path)
    identity = run(options, Console(), start)
    both = ["--device", "cpu", "--dtype", "float32"]
    only = ["--speculative-draft-model-path", str(tmp_path / "head"), "--speculative-algorithm", "EAGLE31"]
    only += ["--speculative-num-steps", "3", "--eagle31-x", "y"]
    names = ["speculative", "speculative", "baseline", "baseline", "speculative-again", "speculative-again"]
    assert [name for name, _ in started] == names
    assert started[0][1] == started[4][1] == [*both, *only] and started[2][1] == [*both, *in_time]
    (finding,) = identity.findings
    assert identity.status == 1 and finding.on_speculative.speculative == finding.on_baseline.baseline == -1.0
    assert split_flags(["--speculative-algorithm", "EAGLE3"]) == ([], ["--speculative-algorithm", "EAGLE3"])
