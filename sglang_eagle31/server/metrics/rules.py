"""When acceptance has collapsed, and what the likely cause is: each rule is one comparison with a sure side.

Two kinds of rule. *Level*: a ratio is so low that a working head does not show it. *Fall*: acceptance of a drafted
token in some cells is less than `FALLEN` of a reference, cell by cell like with like, so that a shift of traffic from
one context length or template to another is no fall:

    dead      first drafted tokens are hardly ever accepted                                    level
    template  one template against the others, in the same context buckets                     fall
    context   contexts from some length on against shorter ones, with the same templates       fall
    fall      the recent blocks against those before them, in the same cells                   fall
    feedback  the first drafted token is accepted, those after it hardly ever (chains)         level

Thresholds. `FALLEN` 0.6: at 5 steps a head with 0.75 a token (3.3 tokens a round) would be left with 0.45 (1.8), a loss
as that of an EAGLE-3 head under a foreign template (52 % of its accept length in the EAGLE 3.1 paper), while going from
code (0.88, 4.5 tokens) to chat (0.70, 2.9) keeps 0.80 and is silent. `DEAD` 0.1: heads with wrong weights, layers or
norms accept 0 to 5 % of the first tokens, poor but working ones above 30 %. A rule must be sure at `Z` 3.29, one-sided
0.05 %, that the *threshold* is crossed: a server whose acceptance has not changed is many more standard errors away
from it than that, so that looking again and again does not raise false alarms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_eagle31.server.metrics.counters import EDGES
from sglang_eagle31.server.metrics.evidence import ALL, DEEP, FIRST, Sums

Z = 3.29
FALLEN, RECOVERED = 0.6, 0.75
"""A fall is raised when it is surely below the first, and cleared when it is surely above it and, by the estimate,
above the second."""
DEAD, ALIVE = 0.1, 0.2
"""The same for levels."""
WORKS = 0.3
"""The rule *feedback* needs a first token that is accepted more often than this for certain."""
MIN_TRIALS, MIN_BLOCKS, MIN_REQUESTS = 200, 16, 8
"""Evidence on each side of a comparison."""
MIN_STRATUM = 4
"""Blocks on each side of one cell's comparison; cells with fewer are left out."""
CAUSES = ("dead", "template", "context", "fall", "feedback")
"""In the order in which they are looked for; the first that is sure is raised."""
Cell = tuple[int, int]
Windows = Mapping[Cell, tuple[Sums, Sums]]
"""By context bucket and template: recent blocks, and those before them."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one rule on one group of cells.

    Attributes:
        cause: one of `CAUSES`.
        where: index of the template, or of the first context bucket; -1 for everything.
        value: acceptance found.
        reference: what it was compared with; of a level, its threshold.
        sure: whether the threshold is crossed for certain.
        over: whether the alarm would be cleared.
        margin: standard errors beyond the threshold, to choose among context edges.
    """

    cause: str
    where: int
    value: float
    reference: float
    sure: bool
    over: bool
    margin: float = 0.0


def findings(windows: Windows) -> list[Finding]:
    """Every rule that has enough evidence, in the order of `CAUSES`."""
    recent = {cell: now for cell, (now, _) in windows.items()}
    everything = _sum(recent.values())
    found = [_dead(everything)] if _enough(everything, FIRST) else []
    for template in sorted({cell[1] for cell in recent}):
        mine = _grouped((cell[0], now) for cell, now in recent.items() if cell[1] == template)
        others = _grouped((cell[0], now) for cell, now in recent.items() if cell[1] != template)
        found += _fall("template", template, mine, others)
    edges = []
    for edge in sorted({cell[0] for cell in recent} - {0}):
        longer = _grouped((cell[1], now) for cell, now in recent.items() if cell[0] >= edge)
        shorter = _grouped((cell[1], now) for cell, now in recent.items() if cell[0] < edge)
        edges += _fall("context", edge, longer, shorter)
    found += sorted(edges, key=lambda finding: -finding.margin)
    found += _fall("fall", -1, recent, {cell: before for cell, (_, before) in windows.items()})
    if _enough(everything, DEEP):
        found.append(_feedback(everything))
    return found


def _dead(everything: Sums) -> Finding:
    value = everything.ratio(FIRST)
    return Finding("dead", -1, value, DEAD, everything.bounds(FIRST, Z)[1] < DEAD, value >= ALIVE)


def _feedback(everything: Sums) -> Finding:
    value = everything.ratio(DEEP)
    sure = everything.bounds(DEEP, Z)[1] < DEAD and everything.bounds(FIRST, Z)[0] > WORKS
    return Finding("feedback", -1, value, DEAD, sure, value >= ALIVE)


def _fall(cause: str, where: int, group: Mapping[Any, Sums], reference: Mapping[Any, Sums]) -> list[Finding]:
    """Standardised to the group's mix of strata; empty where one side has too little."""
    strata = [
        (group[key], reference[key]) for key in group if key in reference and _comparable(group[key], reference[key])
    ]
    if not (_enough(_sum(one for one, _ in strata)) and _enough(_sum(two for _, two in strata))):
        return []
    total = sum(one.trials() for one, _ in strata)
    shares = [one.trials() / total for one, _ in strata]
    value, level, spread = 0.0, 0.0, 0.0
    for share, (one, two) in zip(shares, strata, strict=True):
        value += share * one.ratio()
        level += share * two.ratio()
        spread += share**2 * (one.variance() + FALLEN**2 * two.variance())
    margin = (FALLEN * level - value) / spread**0.5
    over = margin <= -Z and value >= RECOVERED * level
    return [Finding(cause, where, value, level, margin >= Z, over, margin)]


def _comparable(one: Sums, two: Sums) -> bool:
    return min(one.blocks, two.blocks) >= MIN_STRATUM and bool(one.trials() and two.trials())


def _sum(parts: Iterable[Sums]) -> Sums:
    total = Sums()
    for part in parts:
        total = total + part
    return total


def _grouped(parts: Iterable[tuple[int, Sums]]) -> dict[int, Sums]:
    """Sums of the parts with the same key."""
    grouped: dict[int, Sums] = {}
    for key, sums in parts:
        grouped[key] = grouped.get(key, Sums()) + sums
    return grouped


def _enough(sums: Sums, which: int = ALL) -> bool:
    return sums.trials(which) >= MIN_TRIALS and sums.blocks >= MIN_BLOCKS and sums.requests >= MIN_REQUESTS


def describe(finding: Finding, templates: Sequence[str], pattern: Callable[[int], str]) -> str:
    """A finding as one line: what was seen, the likely cause, what to do."""
    value, reference = f"{finding.value:.2f}", f"{finding.reference:.2f}"
    if finding.cause == "dead":
        return (
            f"only {value} of the first drafted tokens are accepted: the head does not fit the target or is read "
            "otherwise than it was trained (other target, captured layers, norms, vocabulary map); "
            "fix: python -m sglang_eagle31 audit HEAD --target TARGET"
        )
    if finding.cause == "template":
        return (
            f"{value} of the drafted tokens are accepted in prompts of template {templates[finding.where]} "
            f"({pattern(finding.where)}), {reference} in others of the same length: the head was not trained with "
            "this template (a BOS token missing or doubled, raw text, other special tokens); fix: send prompts through "
            "the target's chat template, and compare with python -m sglang_eagle31 robust"
        )
    if finding.cause == "context":
        return (
            f"{value} of the drafted tokens are accepted from {EDGES[finding.where - 1]} tokens of context on, "
            f"{reference} below: the head's position limit or RoPE scaling, a window that it lacks, or no long texts "
            "in its training; fix: python -m sglang_eagle31 robust, and audit for the limit"
        )
    if finding.cause == "fall":
        return (
            f"{value} of the drafted tokens are accepted, {reference} before, in the same templates and context "
            "lengths: the texts themselves have changed (domain, language, sampling temperature), or the target's "
            "weights have (update, LoRA); fix: compare with python -m sglang_eagle31 robust, train a head on such texts"
        )
    return (
        f"the first drafted token is accepted, and only {value} of those after it: the head's own state is fed back "
        "otherwise than it was trained; fix: python -m sglang_eagle31 audit HEAD, and --eagle31-override feedback=..."
    )
