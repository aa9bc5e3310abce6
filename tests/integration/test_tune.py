"""``tune --url`` on a real server: shapes are pinned in one server life, and answers are counted and timed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Models, Plain, prompt, speculate

from sglang_eagle31.maths.shape import Shape
from sglang_eagle31.tools.cli import main
from sglang_eagle31.tools.shared.guard_records import guards, limits
from sglang_eagle31.tools.shared.server_info import server_info
from sglang_eagle31.tools.tune.shapes import candidates, probes

MOST = Shape(3, 2, 6)
TOKENS = 16


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    bodies = [{"input_ids": prompt(20 + index, index), "sampling_params": {"ignore_eos": True}} for index in range(6)]
    file.write_text("".join(json.dumps(body) + "\n" for body in bodies))
    return file


def tune(url: str, prompts: Path, *more: str) -> int:
    arguments = ["tune", "--url", url, "--prompts", str(prompts), "--max-new-tokens", str(TOKENS), "--turns", "1"]
    return main([*arguments, "--out", str(prompts.parent / "tune.json"), *more])


def test_one_server_life(start: Any, tiny: Models, prompts: Path) -> None:
    flags = speculate("EAGLE31", tiny.eagle31, MOST.steps, MOST.topk, MOST.draft_tokens)
    with start("tune", *flags, "--eagle31-guard", "on") as server:
        assert tune(server.url, prompts, "--concurrency", "2", "--goal", "latency") == 0
        info = server_info(server.url)
    record = json.loads((prompts.parent / "tune.json").read_text())
    assert record["server"]["guard"] == "on" and record["server"]["configured"] == str(MOST)
    shapes = candidates(limits(guards(info, server.url)))
    (one,) = record["answers"]
    assert (one["concurrency"], one["batch"]) == (2, 2)
    check(one, shapes)
    assert record["requests"] > 50 and record["fraction_of_grid"] > 0


def check(one: dict[str, Any], shapes: list[Shape]) -> None:
    """Every probe was run and timed, and counted acceptance is what the answers' own would be."""
    assert list(one["round_seconds"]) == [str(shape) for shape in probes(shapes)]
    assert all(seconds > 0 for seconds in one["round_seconds"].values())
    assert [entry["shape"] for entry in one["predicted"]] == [str(shape) for shape in shapes]
    assert one["tokens_per_answer"] == TOKENS
    assert len(one["acceptance_of_chains"]) == MOST.steps and 0 < one["acceptance_of_chains"][0] < 1
    assert len(one["realised"]) == 4 and one["realised"][0]["gain"] == 1


def test_a_server_without_the_guard(plain: Plain) -> None:
    with pytest.raises(ValueError, match="runs no speculation.*fix: start it with --speculative-algorithm EAGLE31"):
        guards(plain.info, "http://localhost:1")
