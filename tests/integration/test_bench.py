"""``bench`` on real servers: two arms that take turns while the other is stopped, and recorded traffic."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import matrix_model
import pytest

from sglang_eagle31.maths.shape import Shape
from sglang_eagle31.tools.bench import start
from sglang_eagle31.tools.bench.arms import Arm
from sglang_eagle31.tools.bench.options import Options
from sglang_eagle31.tools.cli import main
from sglang_eagle31.tools.shared.server_process import serve_sglang

TOKENS = 12
SHAPE = Shape(3, 1, 4)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> matrix_model.Folders:
    return matrix_model.write(tmp_path_factory.mktemp("bench"))


@pytest.fixture
def serve(fork_parent: Any) -> Any:
    return partial(serve_sglang, launch=fork_parent.launch)


@pytest.mark.full
def test_sweep(folders: matrix_model.Folders, serve: Any, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "bench.json"
    options = Options(
        model=folders.target,
        head=folders.head,
        shape=SHAPE,
        arms=["none", "guard"],
        prompts=["chat"],
        concurrency=[1, 2],
        rounds=2,
        tokens=TOKENS,
        requests=4,
        identity=3,
        dtype="float32",
        out=out,
    )
    start.run(options, ["bench"], serve)
    record = json.loads(out.read_text())
    entries = {(entry["arm"], entry["concurrency"]): entry for entry in record["sweep"]}
    assert set(entries) == {(arm, n) for arm in ("none", "guard") for n in (1, 2)}
    for (arm, _), entry in entries.items():
        check(arm, entry)
    same = record["identity"]["chat"]["guard"]
    assert (same["prompts"], same["same"], same["tie"], same["different"]) == (3, 3, 0, 0)
    assert 0 < same["tokens_checked"] == same["tokens"] and same["tokens_differing"] == 0
    assert set(record["break_even"]["chat"]) == {"guard"}
    assert record["conditions"]["servers"] == "kept" and str(tmp_path) not in out.read_text()

    page = tmp_path / "page.md"
    page.write_text("# Page\n\n<!-- bench -->\n<!-- end -->\n\nBy hand.\n")
    show = ["bench", "--out", str(out), "--document", str(page)]
    assert main([*show, "--render"]) == 0 and "chat: medians of 2 rounds" in capsys.readouterr().out
    assert out.with_suffix(".png").stat().st_size > 10_000
    assert main([*show, "--check"]) == 0
    page.write_text(page.read_text().replace("| guard |", "| guards |"))
    assert main([*show, "--check"]) == 1


def check(arm: str, entry: dict[str, Any]) -> None:
    """Every number of a cell against the requests that were sent."""
    assert [raw["round"] for raw in entry["rounds"]] == [1, 2]
    for raw in entry["rounds"]:
        assert raw["requests"] == 4 and 4 <= raw["output_tokens"] <= 4 * TOKENS
        assert raw["output_tok_s"] == pytest.approx(raw["output_tokens"] / raw["seconds"])
        assert 0 < raw["ttft_ms"] < 1000 * raw["seconds"] and 0 < raw["itl_ms_p50"] <= raw["itl_ms_p99"]
    if arm == "none":
        assert entry["ratio"] == 1 and entry["accept_length"] is None and entry["fallback_ratio"] is None
        return
    rounds = [raw["plain_rounds"] + raw["drafted_rounds"] for raw in entry["rounds"]]
    assert min(rounds) > 0 and 0 <= entry["fallback_ratio"] <= 1
    drafts = sum(raw["drafts"] for raw in entry["rounds"])
    accepted = sum(sum(raw["accepted_by_depth"]) for raw in entry["rounds"])
    assert bool(drafts) == bool(sum(raw["drafted_rounds"] for raw in entry["rounds"]))
    if drafts:
        assert entry["accept_length"] == pytest.approx(1 + accepted / drafts)


def test_replay(folders: matrix_model.Folders, serve: Any, tmp_path: Path) -> None:
    traffic = tmp_path / "traffic.jsonl"
    sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    messages = [{"role": "user", "content": "The first of the works"}]
    bodies = [
        ("/generate", {"text": "The licence", "sampling_params": sampling}),
        ("/v1/chat/completions", {"messages": messages, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}),
        ("/v1/completions", {"prompt": "The", "max_tokens": TOKENS, "temperature": 1.0, "ignore_eos": True}),
    ]
    lines = [{"path": path, "body": body, "at": 100 + 0.3 * i} for i, (path, body) in enumerate(bodies)]
    traffic.write_text("".join(json.dumps(line) + "\n" for line in lines))
    speculate = ["--speculative-algorithm", "EAGLE31", "--speculative-draft-model-path", str(folders.head)]
    arms = [Arm("plain"), Arm("spec", (*speculate, *SHAPE.flags().split(), "--eagle31-guard", "off"))]
    options = Options(
        model=folders.target,
        concurrency=[0, 2],
        rounds=1,
        dtype="float32",
        replay=traffic,
        replay_arms=arms,
        keep=False,
        out=tmp_path / "replay.json",
    )
    start.run(options, ["bench"], serve)
    record = json.loads(options.out.read_text())
    assert [(entry["arm"], entry["concurrency"]) for entry in record["sweep"]] == [
        ("plain", None),
        ("spec", None),
        ("plain", 2),
        ("spec", 2),
    ]
    for entry in record["sweep"]:
        (raw,) = entry["rounds"]
        assert raw["output_tokens"] == 3 * TOKENS and raw["answers"][2] is None and None not in raw["answers"][:2]
        assert (entry["accept_length"] or 1) > 1 if entry["arm"] == "spec" else entry["accept_length"] is None
    assert record["sweep"][0]["rounds"][0]["seconds"] > 0.6
    assert record["identity"]["traffic"]["spec"] == {"prompts": 2, "different": 0}
