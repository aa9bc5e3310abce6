"""The client against a small HTTP server that speaks SGLang's two routes, and the demo as a whole on top of it."""

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import requests
from logprob_fakes import input_logprobs
from logprob_fakes import serving as serving_replies

from sglang_eagle31.tools.cli import main
from sglang_eagle31.tools.demo import run as demo
from sglang_eagle31.tools.demo.report import Tree
from sglang_eagle31.tools.shared.client import chat, chat_all
from sglang_eagle31.tools.shared.device import dtype_on, here
from sglang_eagle31.tools.shared.same_answers import logits

QUESTION = [{"role": "user", "content": "Why?"}]
PROMPT = [1, 2]
PLAIN = [10, 11, 12, 13]


@dataclass
class FakeModel:
    """What a server answers, and what it was asked."""

    token_ids: list[int]
    histogram: list[int] = field(default_factory=list)
    logprobs: dict[int, dict[int, float]] = field(default_factory=dict)
    """By index of the answer, where it is not sure of its own token."""
    bodies: list[dict] = field(default_factory=list)
    info: dict = field(default_factory=dict)
    full: bool = False

    def reply(self, path, body):
        self.bodies.append(body)
        if path == "/generate":
            return (400, "Input length exceeds") if self.full else (200, {"meta_info": input_logprobs(body, self.told)})
        if path != "/v1/chat/completions":
            return 400, "no such route"
        choice = {
            "message": {"content": "Because."},
            "finish_reason": "stop",
            "prompt_token_ids": PROMPT,
            "response_token_ids": self.token_ids[: body["max_tokens"]],
        }
        details = {"spec_verify_ct": sum(self.histogram), "spec_correct_drafts_histogram": self.histogram}
        return 200, {"choices": [choice], "sglext": {"spec_tokens_details": details} if self.histogram else None}

    def told(self, prefix):
        index = len(prefix) - len(PROMPT)
        return {self.token_ids[index]: -0.5, **self.logprobs.get(index, {})}


def serving(model):
    return serving_replies(model.reply, model.info)


def test_chat_reads_tokens_and_acceptance():
    model = FakeModel(PLAIN, histogram=[1, 0, 1])
    with serving(model) as url:
        answer = chat(url, QUESTION, 128)
    assert (answer.prompt, answer.text, answer.prompt_ids) == ("Why?", "Because.", (1, 2))
    assert answer.token_ids == tuple(PLAIN)
    assert (answer.verify_steps, answer.accepted_histogram) == (2, (1, 0, 1))
    assert answer.tokens_per_second == 4 / answer.seconds
    assert (model.bodies[0]["temperature"], model.bodies[0]["repetition_penalty"]) == (0, 1.0)
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
        monkeypatch.setattr("sglang_eagle31.server.cpu.fast_paths.dtype_here", lambda: ("bfloat16", "it multiplies it"))
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
        (0.125, 16.0, ("--dtype", "float32"), 1, 0),
        (0.0, None, ("--dtype", "float32"), 1, 0),
    ],
)
def test_a_difference_is_judged_by_the_logits_without_speculation(
    fake_demo, monkeypatch, tmp_path, gap, best, options, code, ties
):
    prefixes = []
    monkeypatch.setattr(logits, "best_logit", lambda model, dtype, prefix: prefixes.append(prefix) or best)
    (tmp_path / "model.safetensors").write_bytes(b"small")
    plain = FakeModel(PLAIN, logprobs={2: {12: -0.5, 99: -0.5 - gap}})
    result = fake_demo(plain, FakeModel([10, 11, 99, 13], [2, 1]), *options)
    assert (result[0], result[1]["identical"], result[1]["ties"]) == (code, code == 0, ties)
    assert all(prefix == [1, 2, 10, 11] for prefix in prefixes) and bool(prefixes) == (best is not None)
    asked = [body["input_ids"] for body in plain.bodies if "input_ids" in body]
    assert asked[:2] == [[1, 2, 10, 11, 99], [1, 2, 10, 11, 99, 13]]
    assert [entry["gap"] for entry in result[1]["per_prompt"]] == [gap, gap]


def test_every_token_is_checked_also_behind_a_tie(fake_demo, capsys):
    """The comparison calls both answers a tie; the last token is one that the model never gives."""
    plain = FakeModel(PLAIN, logprobs={2: {12: -0.5, 99: -0.625}})
    code, record, _ = fake_demo(plain, FakeModel([10, 11, 99, 98], [2, 1]))
    assert (code, record["identical"]) == (1, False)
    assert (record["ties"], record["differing"], record["tokens_compared"]) == (2, 0, 4)
    assert (record["tokens"], record["tokens_checked"]) == (8, 8)
    assert (record["tokens_tied"], record["tokens_differing"]) == (2, 2)
    assert record["per_prompt"][0]["unlikely"] == [
        {"index": 2, "token": 99, "gap": 0.125, "outcome": "tie"},
        {"index": 3, "token": 98, "gap": 29.5, "outcome": "different"},
    ]
    assert "token 3, 98, is 29.500 below the best logit" in " ".join(capsys.readouterr().out.split())
    code, record, _ = fake_demo(plain, FakeModel([10, 11, 99, 13], [2, 1]))
    assert (code, record["identical"], record["tokens_tied"], record["tokens_differing"]) == (0, True, 2, 0)


def test_a_server_that_cannot_take_the_answers_back_is_an_error(fake_demo, capsys):
    with pytest.raises(FileNotFoundError):
        fake_demo(FakeModel(PLAIN, full=True), FakeModel(PLAIN, [0, 0, 0, 1]))
    assert "error: http://127.0.0.1" in (told := capsys.readouterr().err) and "fix: shorter answers" in told


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
    monkeypatch.setattr("sglang_eagle31.tools.shared.device.dtype_on", lambda device: (dtype, f"for {device}"))
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
    monkeypatch.setattr("sglang_eagle31.tools.shared.demo_model.HEAD", tmp_path)
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
