"""Heads against each other on the same questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sglang_eagle31.tools.robust.measurement import HeadResult, paired, same_answers
from sglang_eagle31.tools.robust.statistics import Estimate, length


@dataclass(frozen=True)
class Comparison:
    """One head by the reference head (the first one given) under one condition."""

    condition: str
    head: str
    reference: str
    ratio: Estimate
    """Of mean accept lengths, with a paired interval."""
    prompts: int
    """Questions that count in both: an answer that loops in one of them is left out of both."""
    same_answers: float
    """Share of questions answered with the same tokens; less than 1 where rounding decides between two tokens."""


def compare(results: Sequence[HeadResult], seed: int) -> list[Comparison]:
    """Every head but the first by the first, under every condition that both have."""
    found = []
    reference, *others = results
    for other in others:
        for name, measured in other.measured.items():
            base = reference.measured.get(name)
            if base is None:
                continue
            ratio, common = paired(length, measured, base, seed)
            found.append(
                Comparison(
                    condition=name,
                    head=other.head.name,
                    reference=reference.head.name,
                    ratio=ratio,
                    prompts=len(common),
                    same_answers=same_answers(measured, base),
                )
            )
    return found


def caveats(results: Sequence[HeadResult]) -> list[str]:
    """What stands against comparing these heads, or the depths of one."""
    models = {result.head.name: result.head.model for result in results}
    trees = {(result.head.steps, result.head.topk, result.head.draft_tokens) for result in results}
    notes = [
        f"{result.head.name} changes its number of steps while it runs: deep positions were not drafted in every round"
        for result in results
        if result.head.adaptive
    ]
    notes += [
        f"{result.head.name}: each request pins the shape {result.head.pinned}, which the server's guard heeds as long "
        "as nobody else asks it anything"
        for result in results
        if result.head.pinned
    ]
    if len({str(model) for model in models.values()}) > 1:
        listed = ", ".join(f"{name}: {model}" for name, model in models.items())
        notes.append(f"the servers name different targets ({listed}): compare heads only if these are the same model")
    if len(trees) > 1:
        notes.append("the servers draft with different trees (steps, topk, draft tokens), which changes accept lengths")
    return notes
