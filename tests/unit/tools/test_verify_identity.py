"""Replaying requests: the file, what is compared, ties, exit statuses, and servers that are not what is asked for."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from rich.console import Console
from verify_fakes import EAGLE, PLAIN, Fake, chat, native

from sglang_eagle31.tools.verify.identity_run import Options, run, split_flags


def test_the_same_answers(serve, compare) -> None:
    bodies = [
        native([5, 6]),
        chat("four", "more"),
        {"text": "ab", "sampling_params": {"top_k": 1, "max_new_tokens": 4}},
    ]
    status, record, text = compare(serve(EAGLE), serve(PLAIN), *bodies, more=["--concurrency", "2"])
    assert status == 0 and record["identical"] and record["counts"]["same"] == 3 and "identical" in text
    assert (record["tokens"], record["tokens_compared"], record["speculative_steps"]) == (16, 16, 9)
    assert (record["tokens_checked"], record["tokens_tied"], record["tokens_differing"]) == (16, 0, 0)
    assert record["tokens_not_checked"] == {} and "16 of 16 tokens checked by the logits" in text
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
    for server in (first, second):
        (asked,) = (b for b in server.bodies if "token_ids_logprob" in b)
        assert asked["input_ids"] == [*prompt, before, before + 1, 99] and asked["token_ids_logprob"] == [before + 2]
    assert second.bodies[-1]["input_ids"] == [*prompt, before, before + 1, *range(99, 103)]
    assert [record[f"tokens_{name}"] for name in ("checked", "tied", "differing")] == [12, 0, 1]
    assert entry["unlikely"] == [{"choice": 0, "index": 2, "token": 99, "gap": 1.5, "outcome": "different"}]


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
    assert record["tokens_checked"] == record["tokens"] == 6


def test_an_answer_that_ends_is_never_a_tie(serve, compare) -> None:
    info = {"dtype": "bfloat16"}
    first = serve({**EAGLE, **info}, logits={9: -0.5})
    second = serve({**PLAIN, **info}, logits={9: -0.5})
    short, long = native([7, 8], 3), native([7, 8], 4)
    second.RequestHandlerClass = type("Longer", (Fake,), {"answer": lambda self, ids, n: Fake.answer(self, ids, n + 1)})
    status, record, _ = compare(first, second, short, long)
    assert status == 1 and record["counts"]["different"] == 2
    assert record["requests"][0]["speculative_token"] is None and record["requests"][0]["position"] == 3


class Silent(Fake):
    """Tells no log-probabilities."""

    def tell(self, body):
        return {"meta_info": {}}


def test_a_difference_that_only_one_server_tells_of_is_no_tie(serve, compare) -> None:
    info = {"dtype": "bfloat16"}
    first = serve({**EAGLE, **info}, changes={4: 99})
    second = serve({**PLAIN, **info}, logits={99: -0.5})
    first.RequestHandlerClass = Silent
    status, record, text = compare(first, second, native([7, 8]))
    assert status == 1 and "does not tell" in record["notes"][0] and "not told" in text
    assert set(record["requests"][0]["logprobs"]) == {"baseline"}


def test_a_baseline_that_does_not_tell_is_an_error(serve, compare) -> None:
    second = serve(PLAIN)
    second.RequestHandlerClass = Silent
    status, _, text = compare(serve(EAGLE), second, native([7, 8]))
    assert status == 2 and f"request 1: {second.url}: does not tell log-probabilities of its input" in text
    status, _, text = compare(serve(EAGLE), second, {"text": "a", "sampling_params": {"temperature": 0}})
    assert status == 2


def test_a_context_without_room_for_the_answer_is_an_error(serve, compare) -> None:
    class Full(Fake):
        def send(self, status, answer):
            full = "input_token_logprobs" in answer.get("meta_info", {})
            super().send(*((400, {"error": "Input length exceeds"}) if full else (status, answer)))

    second = serve(PLAIN)
    second.RequestHandlerClass = Full
    status, _, text = compare(serve(EAGLE), second, native([7, 8]))
    assert status == 2 and "request 1" in text and "2 + 6 tokens" in text and "fix: shorter answers" in text


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
    assert record["tokens_checked"] == 6 and record["tokens_not_checked"] == {"sampled": 12}
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
    assert identity.status == 1 and finding.on_speculative.told[99] == finding.on_baseline.told[11] == -1.0
    assert split_flags(["--speculative-algorithm", "EAGLE3"]) == ([], ["--speculative-algorithm", "EAGLE3"])
