"""`tune --url` over HTTP, against a server that times and counts as the guard does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from guarded_server import CLOCK, PLAIN, Guarded, served

from sglang_eagle31.maths.shape import NO_SPECULATION, Shape
from sglang_eagle31.tools.cli import main
from sglang_eagle31.tools.shared.guard_records import counts, guards, limits
from sglang_eagle31.tools.shared.requests_file import CHAT, NATIVE, Request
from sglang_eagle31.tools.tune.client import HttpLoad, pinned

TOKENS = 16
REQUESTS = [
    {"input_ids": [1, 2, 3], "sampling_params": {"ignore_eos": True, "min_new_tokens": 4, "n": 1}},
    {"text": "Why?"},
    {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]},
]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """For every test."""
    monkeypatch.setattr("sglang_eagle31.tools.tune.client.time", CLOCK)


"""Seconds of a plain round."""


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in REQUESTS))
    return file


def tune(url: str, prompts: Path, *more: str) -> int:
    arguments = ["tune", "--url", url, "--prompts", str(prompts), "--max-new-tokens", str(TOKENS)]
    return main([*arguments, "--out", str(prompts.parent / "out" / "tune.json"), *more])


def test_a_head_that_pays(prompts, capsys):
    guarded = Guarded(right=True)
    with served(guarded.info, guarded.answer) as url:
        assert tune(url, prompts, "--turns", "2", "--temperature", "0,0.7", "--goal", "latency") == 0
    out = capsys.readouterr().out
    record = json.loads((prompts.parent / "out" / "tune.json").read_text())
    assert (prompts.parent / "out" / "tune.png").stat().st_size > 10_000
    assert [one["temperature"] for one in record["answers"]] == [0.0, 0.7]
    for one in record["answers"]:
        assert one["speculate"] and one["pick"].startswith("3,") and one["flags"] in out
        assert one["acceptance_of_chains"][0] > 0.8
        assert one["round_seconds"]["0,1,1"] == pytest.approx(1.05 * PLAIN, rel=1e-3)
        assert one["cost"]["target"]["slope"] == pytest.approx(0.05 * PLAIN, rel=0.01)
        assert one["draft_cost"] == pytest.approx(0.05 / 1.05, rel=0.01)
    assert record["requests"] == len(guarded.bodies)
    assert record["versions"]["sglang-eagle31"] and record["settings"]["max_new_tokens"] == TOKENS
    temperatures = {
        (body if route == CHAT else body["sampling_params"])["temperature"] for route, body in guarded.bodies
    }
    assert temperatures == {0.0, 0.7}


def test_a_head_that_does_not_and_the_whole_grid(prompts, capsys):
    guarded = Guarded(right=False)
    with served(guarded.info, guarded.answer) as url:
        assert tune(url, prompts, "--turns", "1", "--measure-grid", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    (one,) = record["answers"]
    assert not one["speculate"] and one["flags"] == record["recommended_flags"] == ""
    grid = {entry["shape"] for entry in one["measured_grid"]}
    assert {"0,1,1", "1,1,2", "3,1,4", "3,2,6", "3,2,4", "2,2,4"} <= grid
    assert one["pick_of_best_measured"] > 0.9
    pinned = {
        (body if route == CHAT else body["sampling_params"])["custom_params"]["eagle31_shape"]
        for route, body in guarded.bodies
    }
    assert pinned == {"0" if shape == "0,1,1" else shape for shape in grid}


def test_only_what_a_gpu_server_lists(prompts):
    guarded = Guarded(right=True, any_shape=False)
    with served(guarded.info, guarded.answer) as url:
        assert tune(url, prompts, "--turns", "1") == 0
    asked = {
        (body if route == CHAT else body["sampling_params"])["custom_params"]["eagle31_shape"]
        for route, body in guarded.bodies
    }
    assert asked == {"0", "3,2,6", "3,1,4"}


@pytest.mark.parametrize("how", [{"pins": False}, {"others": 8}], ids=["not pinned", "other traffic"])
def test_other_rounds_than_the_pinned_ones(prompts, capsys, how):
    guarded = Guarded(right=True, **how)
    with served(guarded.info, guarded.answer) as url:
        assert tune(url, prompts) == 2
    assert "0,1,1 was pinned, but of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({}, "runs no speculation, whose draft shape cannot be changed"),
        (
            {"speculative_algorithm": "EAGLE3", "internal_states": [{}]},
            "fix: start it with --speculative-algorithm EAGLE31",
        ),
        ({"eagle31": {}, "speculative_algorithm": "EAGLE3"}, "runs EAGLE3"),
        (
            {"eagle31": {"head": "h"}, "internal_states": [{"eagle31": {"acceptance": {}}}]},
            "without a guard that times rounds",
        ),
        (
            {"eagle31": {}, "internal_states": [{"eagle31": {"guard": {"mode": "observe", "any": False}}}]},
            "fix: start it with --eagle31-guard on and --speculative-eagle-topk 1",
        ),
    ],
)
def test_a_server_that_cannot_be_measured(prompts, capsys, info, words):
    with served(lambda: info) as url:
        assert tune(url, prompts) == 2
    assert words in capsys.readouterr().err


def test_a_server_that_refuses_and_one_that_is_gone(prompts, capsys):
    with served(Guarded(right=True).info) as url:
        assert tune(url, prompts) == 2
    assert "was refused with status 400" in capsys.readouterr().err
    assert tune(url, prompts) == 2
    assert "no SGLang server answers /server_info" in capsys.readouterr().err


def test_answers_of_one_token(prompts, capsys):
    guarded = Guarded(right=True)
    with served(guarded.info, guarded.answer) as url:
        load = HttpLoad(url, [Request(1, NATIVE, {"text": "x"})], 0.0, 1, 1, 2)
        with pytest.raises(ValueError, match="all answers ended with their first token"):
            load.turn(NO_SPECULATION, 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--concurrency", "0"], "--concurrency 0: expected at least 1"),
        (["--temperature", "-1"], "--temperature -1: expected at least 0"),
        (["--temperature", "nan"], "--temperature nan"),
        (["--max-new-tokens", "2"], "--max-new-tokens 2: expected at least 16"),
        (["--turns", "0"], "--turns 0"),
        (["--confirm", "0"], "--confirm 0"),
        (["--requests-per-turn", "0"], "--requests-per-turn 0"),
        (["--budget-seconds", "0"], "--budget-seconds 0"),
        (["--margin", "-0.1"], "--margin -0.1"),
    ],
)
def test_numbers_out_of_range(prompts, capsys, arguments, words):
    assert tune("http://localhost:1", prompts, *arguments) == 2
    assert words in capsys.readouterr().err


def test_a_prompt_file_is_needed(tmp_path, capsys):
    assert main(["tune", "--url", "http://localhost:1"]) == 2
    assert "--prompts: not given" in capsys.readouterr().err
    assert tune("http://localhost:1", tmp_path / "none.jsonl") == 2
    assert "none.jsonl: cannot be read" in capsys.readouterr().err


def test_what_is_sent():
    native, text, chat = (
        Request(index, CHAT if "messages" in body else NATIVE, body) for index, body in enumerate(REQUESTS)
    )
    sent = pinned(native, Shape(3, 1, 4), 0.5, 1)
    assert sent["sampling_params"] == {
        "ignore_eos": True,
        "temperature": 0.5,
        "max_new_tokens": 1,
        "custom_params": {"eagle31_shape": "3,1,4"},
    }
    assert pinned(native, Shape(3, 1, 4), 0.5, 8)["sampling_params"]["min_new_tokens"] == 4
    assert pinned(text, NO_SPECULATION, 0.0, 8)["sampling_params"]["custom_params"] == {"eagle31_shape": "0"}
    body = pinned(chat, NO_SPECULATION, 0.0, 8)
    assert body["messages"] == [{"role": "user", "content": "Why?"}]
    assert (body["max_tokens"], body["temperature"], body["custom_params"]) == (8, 0.0, {"eagle31_shape": "0"})
    own = Request(1, CHAT, {**REQUESTS[2], "custom_params": {"mine": 1}, "n": 3, "max_completion_tokens": 4})
    body = pinned(own, NO_SPECULATION, 0.0, 8)
    assert body["custom_params"] == {"mine": 1, "eagle31_shape": "0"} and not {"n", "max_completion_tokens"} & set(body)


def test_schedulers_add_up():
    guarded = Guarded(right=True)
    guarded.answer(NATIVE, pinned(Request(1, NATIVE, {"text": "x"}), Shape(2, 1, 3), 0.0, 10))
    (state,) = guarded.info()["internal_states"]
    records = guards({"internal_states": [state, state, {}], "eagle31": {}}, "u")
    one, two = counts([state["eagle31"]["guard"]]), counts(records)
    assert limits(records).schedulers == 2 and limits(records).configured == Shape(3, 2, 6)
    assert two.drafted == 2 * one.drafted > 0 and (two.hit == 2 * one.hit).all()
    assert two.seconds == one.seconds and list(one.seconds) == [Shape(2, 1, 3)]
