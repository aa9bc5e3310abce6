"""The client against a small HTTP server that speaks SGLang's two routes, and the demo as a whole on top of it."""

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
import requests

from sglang_eagle31.cli import main
from sglang_eagle31.demo import run as demo
from sglang_eagle31.demo.client import chat, chat_all, next_token
from sglang_eagle31.demo.device import dtype_on, here
from sglang_eagle31.demo.report import Tree

QUESTION = [{"role": "user", "content": "Why?"}]
PLAIN = [10, 11, 12, 13]


@dataclass
class FakeModel:
    """What a server answers, and what it was asked."""

    token_ids: list[int]
    histogram: list[int] = field(default_factory=list)
    logprobs: dict[int, float] = field(default_factory=dict)
    bodies: list[dict] = field(default_factory=list)
    info: dict = field(default_factory=dict)

    def reply(self, path, body):
        self.bodies.append(body)
        if path == "/generate":
            top = sorted(self.logprobs.values(), reverse=True)[: body["top_logprobs_num"]]
            wanted = [[self.logprobs[token], token, None] for token in body["token_ids_logprob"]]
            meta = {"output_token_ids_logprobs": [wanted], "output_top_logprobs": [[[v, 0, None] for v in top]]}
            return {"meta_info": meta}
        choice = {
            "message": {"content": "Because."},
            "finish_reason": "stop",
            "prompt_token_ids": [1, 2],
            "response_token_ids": self.token_ids[: body["max_tokens"]],
        }
        details = {"spec_verify_ct": sum(self.histogram), "spec_correct_drafts_histogram": self.histogram}
        return {"choices": [choice], "sglext": {"spec_tokens_details": details} if self.histogram else None}


@contextmanager
def serving(model):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            known = self.path in ("/generate", "/v1/chat/completions")
            self.send_response(200 if known else 400)
            self.end_headers()
            self.wfile.write(json.dumps(model.reply(self.path, body)).encode() if known else b"no such route")

        def do_GET(self):
            self.send_response(200 if self.path == "/server_info" else 404)
            self.end_headers()
            self.wfile.write(json.dumps(model.info).encode())

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_chat_reads_tokens_and_acceptance():
    model = FakeModel(PLAIN, histogram=[1, 0, 1])
    with serving(model) as url:
        answer = chat(url, QUESTION, 128)
    assert (answer.prompt, answer.text, answer.prompt_ids) == ("Why?", "Because.", (1, 2))
    assert answer.token_ids == tuple(PLAIN)
    assert (answer.verify_steps, answer.accepted_histogram) == (2, (1, 0, 1))
    assert answer.tokens_per_second == 4 / answer.seconds
    assert model.bodies[0]["temperature"] == 0
    assert not model.bodies[0].get("logprobs")


def test_chat_without_speculation_has_no_verify_steps():
    with serving(FakeModel(PLAIN)) as url:
        assert chat(url, QUESTION, 2).verify_steps == 0


def test_refused_request_says_why():
    with serving(FakeModel(PLAIN)) as url, pytest.raises(requests.HTTPError, match="status 400: no such route"):
        chat(url + "/elsewhere", QUESTION, 2)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_chat_all_warms_up_without_counting(concurrency):
    model, counted = FakeModel(PLAIN), []
    with serving(model) as url:
        run = chat_all(url, [QUESTION] * 6, 3, concurrency, lambda: counted.append(1))
    assert (len(run.answers), len(counted), len(model.bodies)) == (6, 6, 7)
    assert run.tokens_per_second == 18 / run.seconds


def test_next_token():
    model = FakeModel(PLAIN, logprobs={5: -0.5, 6: -1.0, 7: -3.0})
    with serving(model) as url:
        found = next_token(url, [1, 2, 10], [7, 6], top=2)
    assert (found.wanted, found.top) == ({7: -3.0, 6: -1.0}, (-0.5, -1.0))
    assert model.bodies[0]["input_ids"] == [1, 2, 10]


@pytest.fixture
def fake_demo(monkeypatch, tmp_path):
    """Run the command with two fake models; gives exit code, record and the order of the servers."""
    head = tmp_path / "head"
    head.mkdir()
    (head / "config.json").write_text("{}")

    def start(plain, speculative, *options):
        names = []

        @contextmanager
        def serve_fake(name, model, args=(), **_):
            names.append(name)
            assert ("EAGLE31" in args) == (name == "eagle31")
            with serving({"plain": plain, "eagle31": speculative}[name]) as url:
                yield SimpleNamespace(name=name, url=url)

        monkeypatch.setattr(demo, "serve_sglang", serve_fake)
        monkeypatch.setattr(demo, "prepare_model", lambda: tmp_path)
        monkeypatch.setattr("sglang_eagle31.cpu.fast_paths.dtype_here", lambda: ("bfloat16", "it multiplies it"))
        out = tmp_path / "out" / "demo.json"
        code = main(["demo", "--head", str(head), "--prompts", "2", "--out", str(out), *options])
        return code, json.loads(out.read_text()), names

    return start


def test_same_tokens_end_with_zero(fake_demo, capsys):
    code, record, names = fake_demo(FakeModel(PLAIN), FakeModel(PLAIN, [0, 0, 0, 1]))
    assert (code, record["identical"], record["ties"], record["prompts"]) == (0, True, 0, 2)
    assert (record["accept_length"], record["accept_by_depth"]) == (4.0, [1.0, 1.0, 1.0])
    assert names == ["eagle31", "plain"]
    text = capsys.readouterr().out
    assert "identical" in text and "fallback" not in text and record["fallback_ratio"] is None


def test_rounds_that_the_guard_ran_without_a_draft_are_told(fake_demo, capsys):
    guard = {"rounds": {"plain": 30, "drafted": 90}}
    served = FakeModel(PLAIN, [0, 0, 0, 1], info={"internal_states": [{"eagle31": {"guard": guard}}]})
    _, record, _ = fake_demo(FakeModel(PLAIN), served)
    assert record["fallback_ratio"] == 0.25 and "25% of the rounds without a draft" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("gap", "best", "options", "code", "ties"),
    [
        (0.125, None, (), 0, 2),
        (0.5, 30.0, (), 1, 0),
        (0.5, 40.0, (), 0, 2),
        (0.125, None, ("--dtype", "float32"), 1, 0),
    ],
)
def test_a_difference_is_judged_by_the_logits_without_speculation(
    fake_demo, monkeypatch, gap, best, options, code, ties
):
    prefixes = []
    monkeypatch.setattr(demo, "best_logit", lambda model, dtype, prefix: prefixes.append(prefix) or best)
    plain = FakeModel(PLAIN, logprobs={12: -0.5, 99: -0.5 - gap})
    result = fake_demo(plain, FakeModel([10, 11, 99, 98], [2, 1]), *options)
    assert (result[0], result[1]["identical"], result[1]["ties"]) == (code, code == 0, ties)
    assert prefixes == ([[1, 2, 10, 11]] * 2 if best else [])
    if "float32" not in options:
        assert plain.bodies[-1]["input_ids"] == [1, 2, 10, 11]
        assert [entry["gap"] for entry in result[1]["per_prompt"]] == [gap, gap]


def test_both_servers_of_a_gpu_have_the_same_attention(monkeypatch):
    flags = demo.Options(Tree(3, 4, 8), device="cuda").server_args()
    assert flags[:2] == ["--attention-backend", "flashinfer"]
    assert "--attention-backend" not in demo.Options(Tree(3, 4, 8), device="cpu").server_args()
    for seen, expected in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr("torch.cuda.is_available", lambda seen=seen: seen)
        assert here() == expected


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_dtype_is_what_this_cpu_multiplies(fake_demo, monkeypatch, capsys, dtype):
    served = FakeModel(PLAIN), FakeModel(PLAIN, [0, 0, 0, 1])
    monkeypatch.setattr("sglang_eagle31.demo.device.dtype_on", lambda device: (dtype, f"for {device}"))
    assert fake_demo(*served)[1]["dtype"] == dtype
    assert f"cpu, {dtype}: for cpu" in capsys.readouterr().out
    assert fake_demo(*served, "--dtype", "float32")[1]["dtype"] == "float32"
    assert "cpu, float32: as --dtype asks" in capsys.readouterr().out


def test_a_gpu_multiplies_bfloat16():
    assert dtype_on("cuda")[0] == "bfloat16"


def test_missing_head_is_refused(tmp_path, capsys):
    assert main(["demo", "--head", str(tmp_path)]) == 2
    assert f"--head {tmp_path}: holds no config.json" in capsys.readouterr().err


def test_the_demo_s_head_is_in_a_clone_only(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(demo, "HEAD", tmp_path)
    assert main(["demo"]) == 2
    assert "only in a clone of the repository; fix: --head DIR" in capsys.readouterr().err


def test_without_a_model_there_is_no_result(monkeypatch, capsys):
    def no_network():
        raise RuntimeError("pip could not download it")

    monkeypatch.setattr(demo, "prepare_model", no_network)
    assert main(["demo"]) == 2
    assert "error: pip could not download it" in capsys.readouterr().err


def test_numbers_below_one_are_refused(capsys):
    assert main(["demo", "--draft-tokens", "0"]) == 2
    assert "--draft-tokens 0: give a number of at least 1" in capsys.readouterr().err
