"""Answers of one head sorted by condition: which count, which loop, and what they say about acceptance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sglang_eagle31.tools.robust.ask import Reply
from sglang_eagle31.tools.robust.statistics import (
    Acceptance,
    Array,
    Estimate,
    acceptance,
    estimate,
    length,
    ratio,
    table,
)
from sglang_eagle31.tools.shared.served_head import Head


@dataclass(frozen=True)
class Measured:
    """One head under one condition. Answers that loop are left out of ``acceptance``, unless all of them do."""

    condition: str
    replies: tuple[Reply, ...]
    kept: tuple[Reply, ...]
    looping: int
    empty: int
    """Answers so short that nothing was verified."""
    depth: int
    acceptance: Acceptance
    with_loops: Estimate
    """Accept length with the looping answers."""

    def rows(self, prompts: Sequence[int]) -> Array:
        """Histograms of these questions, ``[P, K + 1]``."""
        by_prompt = {reply.case.prompt: reply.histogram for reply in self.kept}
        return table([by_prompt[prompt] for prompt in prompts], self.depth)

    @property
    def loops_counted(self) -> bool:
        """Whether every answer loops, so that ``acceptance`` is that of looping answers."""
        return all(reply.looping for reply in self.kept)

    @property
    def prompts(self) -> set[int]:
        """The questions that count."""
        return {reply.case.prompt for reply in self.kept}


@dataclass(frozen=True)
class HeadResult:
    """One head under every condition, in the order in which they were measured."""

    head: Head
    measured: dict[str, Measured]


def measure(condition: str, replies: Sequence[Reply], depth: int, seed: int) -> Measured | None:
    """Acceptance under one condition; None if no answer had a verify round."""
    verified = [reply for reply in replies if sum(reply.histogram)]
    if not verified:
        return None
    straight = [reply for reply in verified if not reply.looping]
    kept = straight or verified
    return Measured(
        condition=condition,
        replies=tuple(replies),
        kept=tuple(kept),
        looping=len(verified) - len(straight),
        empty=len(replies) - len(verified),
        depth=depth,
        acceptance=acceptance(table([reply.histogram for reply in kept], depth), seed),
        with_loops=estimate(length, table([reply.histogram for reply in verified], depth), seed),
    )


def deepest(replies: Sequence[Reply], steps: int | None) -> int:
    """Number of positions K to report: the draft steps, or what was seen if that is more or steps are not stated."""
    seen = max((len(reply.histogram) - 1 for reply in replies), default=0)
    return max(seen, steps or 0, 1)


def paired(
    statistic: Callable[[Array], Array], upper: Measured, lower: Measured, seed: int
) -> tuple[Estimate, list[int]]:
    """Ratio of a statistic over the questions that count in both, and these questions; undefined without any."""
    common = sorted(upper.prompts & lower.prompts)
    if not common:
        return Estimate(None, None, None), []
    return ratio(statistic, upper.rows(common), lower.rows(common), seed), common


def same_answers(one: Measured, other: Measured) -> float:
    """Share of the questions that both answered with the same tokens."""
    mine = {reply.case.prompt: reply.token_ids for reply in one.replies}
    theirs = {reply.case.prompt: reply.token_ids for reply in other.replies}
    common = mine.keys() & theirs.keys()
    return sum(mine[prompt] == theirs[prompt] for prompt in common) / len(common) if common else 0.0
