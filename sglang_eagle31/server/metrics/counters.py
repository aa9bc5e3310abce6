"""Counters of verify rounds that add up over time, schedulers and servers.

One round of one request verifies a draft of s steps and accepts the first a: on a tree, s is the depth that was drafted
to and a the depth of the accepted path. A round whose tokens are cut off by the end of the answer (stop, length,
grammar) is *used* as far as the answer goes: u <= a drafts of it are in the answer, and no more than those count as
offered. C context buckets, T templates, S the largest s so far.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
EDGES = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
"""Where the next bucket of committed tokens (prompt and answer, at the start of the round) begins."""
CONTEXTS = tuple(
    f"{low}-{high - 1}" if high else f"{low}-" for low, high in zip((0, *EDGES), (*EDGES, None), strict=True)
)
LENGTHS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 12.0)
"""Upper edges, included, of the histogram of accept lengths over finished requests; a last bin has no upper edge."""


def context_of(tokens: int) -> int:
    """Index in `CONTEXTS`."""
    return bisect_right(EDGES, tokens)


@dataclass(frozen=True)
class Totals:
    """What some rounds add up to.

    Attributes:
        joint: ``[S + 1, S + 1]`` rounds by steps and by drafts accepted, as verified.
        used: ``[S + 1]`` rounds by drafts accepted that are in the answer.
        offered: drafted positions that could become part of the answer.
        nodes: drafted tokens that were verified, all branches of a tree.
        committed: tokens that the rounds added to answers, as the client sees them.
    """

    joint: Counts
    used: Counts
    offered: int
    nodes: int
    committed: int

    @property
    def rounds(self) -> int:
        """Verify rounds, those without a draft included."""
        return int(self.joint.sum())

    @property
    def drafts(self) -> int:
        """Rounds that verified a draft."""
        return int(self.joint[1:].sum())

    @property
    def proposed(self) -> list[int]:
        """``[S]`` rounds whose draft reached at least depth 1 ... S."""
        return _at_least(self.joint.sum(1))

    @property
    def accepted(self) -> list[int]:
        """``[S]`` rounds that accepted at least 1 ... S drafts."""
        return _at_least(self.joint.sum(0))

    @property
    def used_tokens(self) -> int:
        """Drafts that are in answers."""
        return sum(_at_least(self.used))

    def to_json(self) -> dict[str, Any]:
        """Plain numbers; ``accept_length`` is tokens per drafted round, bonus included, None before the first."""
        proposed, accepted = self.proposed, self.accepted
        return {
            "rounds": self.rounds,
            "drafts": self.drafts,
            "draft_tokens": sum(proposed),
            "accepted_tokens": sum(accepted),
            "tree_nodes": self.nodes,
            "committed_tokens": self.committed,
            "offered_tokens": self.offered,
            "used_tokens": self.used_tokens,
            "proposed_by_depth": proposed,
            "accepted_by_depth": accepted,
            "used_histogram": [int(count) for count in self.used],
            "accept_length": 1 + sum(accepted) / self.drafts if self.drafts else None,
        }


@dataclass
class Requests:
    """Requests that ended in a verify round.

    Attributes:
        finished: those that came to their end.
        aborted: those that were ended from outside.
        lengths: ``[len(LENGTHS) + 1]`` finished requests by accept length, 1 + used drafts / rounds.
        total: sum of those accept lengths.
    """

    finished: int = 0
    aborted: int = 0
    lengths: list[int] = field(default_factory=lambda: [0] * (len(LENGTHS) + 1))
    total: float = 0.0

    def add(self, rounds: int, used: int, aborted: bool) -> None:
        """One request."""
        if aborted:
            self.aborted += 1
            return
        length = 1 + used / rounds
        self.finished += 1
        self.lengths[int(np.searchsorted(LENGTHS, length))] += 1
        self.total += length

    def to_json(self) -> dict[str, Any]:
        """Counts, and the histogram with its edges."""
        histogram = {"upper_edges": list(LENGTHS), "counts": list(self.lengths), "sum": self.total}
        return {"finished": self.finished, "aborted": self.aborted, "accept_length": histogram}


class Counters:
    """The table of one scheduler; a cell is a context bucket and a template, ``context * templates + template``."""

    def __init__(self, templates: int, steps: int) -> None:
        """``templates`` is T, ``steps`` the S to begin with."""
        self.templates, self.steps = templates, steps
        cells = len(CONTEXTS) * templates
        self.joint = np.zeros((cells, steps + 1, steps + 1), np.int64)
        self.used = np.zeros((cells, steps + 1), np.int64)
        self.sums = np.zeros((cells, 3), np.int64)
        """Offered, nodes, committed."""
        self.requests = Requests()

    def add(self, cells: Sequence[int], rows: Sequence[tuple[int, int, int, int]], steps: int, nodes: int) -> None:
        """One round of a batch.

        Args:
            cells: cell of each request.
            rows: of each request the drafts accepted, those used, those offered, and the tokens committed.
            steps: depth that was drafted to, 0 without a draft.
            nodes: drafted tokens verified for each request.
        """
        where, numbers = np.array(cells, np.int64), np.array(rows, np.int64)
        deepest = max(steps, int(numbers[:, 0].max()))
        if deepest > self.steps:
            self._deepen(deepest)
        width = self.steps + 1
        np.add.at(self.joint.reshape(-1), (where * width + steps) * width + numbers[:, 0], 1)
        np.add.at(self.used.reshape(-1), where * width + numbers[:, 1], 1)
        numbers[:, 1] = numbers[:, 2]
        numbers[:, 2] = nodes
        np.add.at(self.sums, where, numbers[:, 1:])

    def total(self, context: int | None = None, template: int | None = None) -> Totals:
        """Everything, or one context bucket, or one template."""
        axes = len(CONTEXTS), self.templates
        pick = (slice(None) if context is None else [context]), (slice(None) if template is None else [template])
        joint, used, sums = (
            table.reshape(*axes, *table.shape[1:])[pick].sum((0, 1)) for table in (self.joint, self.used, self.sums)
        )
        return Totals(joint, used, *map(int, sums))

    def _deepen(self, steps: int) -> None:
        more = steps - self.steps
        self.joint = np.pad(self.joint, ((0, 0), (0, more), (0, more)))
        self.used = np.pad(self.used, ((0, 0), (0, more)))
        self.steps = steps


def _at_least(counts: Counts) -> list[int]:
    return [int(count) for count in counts[::-1].cumsum()[::-1][1:]]
