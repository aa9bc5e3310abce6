"""``robust`` against a real server: its counts are SGLang's own, and its facts are the server's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conftest import Models, speculate
from unit.robust_tokenizers import CHATML, tokenizer

from sglang_eagle31.tools.cli import main

STEPS, TOPK, DRAFT_TOKENS = 4, 2, 8


def test_robust(start: Any, tiny: Models, tmp_path: Path) -> None:
    tokenizer(CHATML).save_pretrained(tmp_path / "tokenizer")  # 99 ids; the target has 512
    with start("robust", *speculate("EAGLE31", tiny.eagle31, STEPS, TOPK, DRAFT_TOKENS)) as server:
        arguments = ["robust", "--url", f"tiny={server.url}", "--model", str(tmp_path / "tokenizer"), "--limit", "3"]
        arguments += ["--max-tokens", "32", "--concurrency", "2", "--contexts", "1000,4000", "--out", str(tmp_path)]
        assert main(arguments) == 0
    record = json.loads((tmp_path / "robust.json").read_text())
    assert (tmp_path / "robust.png").stat().st_size > 10_000
    (head,) = record["heads"]
    assert (head["name"], head["algorithm"], head["variant"]) == ("tiny", "EAGLE31", "EAGLE 3.1")
    assert (head["steps"], head["topk"], head["draft_tokens"]) == (STEPS, TOPK, DRAFT_TOKENS)
    assert (head["positions"], head["window"], head["path"]) == (8192, None, str(tiny.eagle31))
    conditions = {entry["condition"]: entry for entry in head["conditions"]}
    assert list(conditions) == [
        *("regular", "no_bos", "no_template", "no_bos_no_template"),
        *("swapped_system", "long_system", "tool_calls", "multi_turn", "context_1000", "context_4000"),
    ]
    for entry in conditions.values():
        check(entry)
    assert 3600 <= conditions["context_4000"]["prompt_tokens"]["least"]
    assert conditions["regular"]["accept_length"]["value"] > 1.5
    assert {finding["condition"] for finding in record["diagnosis"]} == set(conditions) - {"context_1000"}


def check(entry: dict[str, Any]) -> None:
    """Every answer's histogram against the tokens that it has."""
    for answer in entry["per_prompt"]:
        histogram, tokens = answer["histogram"], answer["tokens"]
        assert len(histogram) <= STEPS + 1
        committed = 1 + sum(count * (accepted + 1) for accepted, count in enumerate(histogram))  # 1: of the prefill
        cut = committed - tokens
        assert 0 <= cut <= STEPS, f"{entry['condition']}: rounds committed {committed} tokens, the answer has {tokens}"
    kept = [answer for answer in entry["per_prompt"] if entry["loops_counted"] or not answer["loops"]]
    assert entry["rounds"] == sum(sum(answer["histogram"]) for answer in kept if sum(answer["histogram"]))
