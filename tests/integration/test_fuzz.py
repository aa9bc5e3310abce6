"""Randomly broken heads of every producer: each is exact against the reference, or refused with a reason."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "fuzz"))

from case import KINDS, VARIANTS, Outcome, run  # noqa: E402
from run import plan  # noqa: E402

COUNT, SEED = 250, 31
"""`make fuzz` runs thousands; these fit into the ring."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    place = tmp_path_factory.mktemp("fuzz")
    names = plan(COUNT, SEED)[:COUNT]
    return [outcome for outcome in (run(name, place) for name in names) if outcome.result != "nothing"]


def test_no_broken_head_is_run_other_than_as_it_was_trained(outcomes: list[Outcome]) -> None:
    wrong = [(outcome.case, outcome.mutation, outcome.detail) for outcome in outcomes if outcome.result == "wrong"]
    assert wrong == []


def test_both_outcomes_are_met(outcomes: list[Outcome]) -> None:
    counts = Counter(outcome.result for outcome in outcomes)
    assert counts["exact"] > COUNT // 10 and counts["refused"] > COUNT // 3, counts
    kinds = {outcome.case.split(":")[1] for outcome in outcomes}
    assert len(kinds) > len(KINDS) * 0.8 and len({outcome.case.split(":")[0] for outcome in outcomes}) == len(VARIANTS)


def test_the_judge_sees_a_head_that_is_run_wrongly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With our feedback turned round, heads that nothing else is wrong with are reported."""
    import case

    def turned(checkpoint: Any, target: Any, overrides: Any) -> Any:
        reading, reasons = resolve(checkpoint, target, overrides)
        reading.put("feedback", {"pre": "post", "post": "pre"}[reading.values.get("feedback", "pre")], "turned round")
        return reading, reasons

    resolve = case.resolve
    monkeypatch.setattr(case, "resolve", turned)
    found = Counter(run(f"nemo31:tensor_values:{seed}", tmp_path).result for seed in range(4))
    assert found == {"wrong": 4}


def test_no_pickle_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def forbidden(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("torch.load was called")

    monkeypatch.setattr(torch, "load", forbidden)
    found = [run(f"{variant}:file_pickled:{seed}", tmp_path).result for seed in range(3) for variant in VARIANTS[:6]]
    assert set(found) == {"exact", "refused"}
