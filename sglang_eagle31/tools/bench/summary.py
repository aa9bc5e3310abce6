"""From the rounds of every cell to medians, ratios and the concurrency up to which speculation pays."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from sglang_eagle31.tools.bench.load import FIELDS
from sglang_eagle31.tools.bench.plan import Key
from sglang_eagle31.tools.shared import counters

Raw = dict[str, Any]
"""One round of a cell: ``round``, the fields of `load.Load`, and the server's counts."""
Rounds = Mapping[Key, Sequence[Raw]]
BREAK_EVEN = 1.0


def sweep(rounds: Rounds, baseline: str, identity: Mapping[str, Any]) -> list[dict[str, Any]]:
    """An entry for each cell, in the order in which ``rounds`` has them.

    Acceptance is the counters' over all rounds; of an arm without them it is that of its answers in ``identity``.
    """
    return [
        _entry(key, raws, rounds.get((baseline, *key[1:]), ()), identity.get(key[1], {}).get(key[0], {}))
        for key, raws in rounds.items()
    ]


def _entry(key: Key, raws: Sequence[Raw], base: Sequence[Raw], asked: Mapping[str, Any]) -> dict[str, Any]:
    arm, prompts, concurrency = key
    counts = counters.pooled(raws)
    return {
        "arm": arm,
        "prompts": prompts,
        "concurrency": concurrency,
        **{name: statistics.median(raw[name] for raw in raws) for name in FIELDS},
        "ratio": ratio(raws, base, "output_tok_s"),
        "user_ratio": ratio(raws, base, "user_tok_s"),
        "accept_length": counts.accept_length if counts.counted else asked.get("accept_length"),
        "accept_by_depth": counts.by_depth if counts.counted else asked.get("accept_by_depth", []),
        "fallback_ratio": counts.fallback_ratio,
        "rounds": [dict(raw) for raw in raws],
    }


def ratio(raws: Sequence[Raw], base: Sequence[Raw], field: str) -> float | None:
    """Median over rounds of the ratio within a round; None where no round has both."""
    at = {raw["round"]: raw[field] for raw in base}
    found = [raw[field] / at[raw["round"]] for raw in raws if at.get(raw["round"])]
    return statistics.median(found) if found else None


def break_even(entries: Sequence[Mapping[str, Any]], baseline: str) -> dict[str, dict[str, Any]]:
    """By prompt set and arm: the largest concurrency up to which the ratio is at least 1.

    ``concurrency`` is None where the first ratio is below, and the largest that was measured, with ``beyond``, where
    none is. Between two measured ones the ratio is taken as linear in the logarithm of the concurrency.
    """
    found: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if entry["arm"] == baseline or entry["ratio"] is None or not entry["concurrency"]:
            continue
        points = found.setdefault(entry["prompts"], {}).setdefault(entry["arm"], [])
        points.append((entry["concurrency"], entry["ratio"]))
    return {prompts: {arm: crossing(points) for arm, points in arms.items()} for prompts, arms in found.items()}


def crossing(points: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """`break_even` of ``(concurrency, ratio)`` points."""
    last: tuple[int, float] | None = None
    for concurrency, value in sorted(points):
        if value < BREAK_EVEN:
            if last is None:
                return {"concurrency": None, "beyond": False}
            share = (last[1] - BREAK_EVEN) / (last[1] - value)
            where = math.log(last[0]) + share * math.log(concurrency / last[0])
            return {"concurrency": math.exp(where), "beyond": False}
        last = concurrency, value
    return {"concurrency": float(last[0]) if last else None, "beyond": last is not None}
