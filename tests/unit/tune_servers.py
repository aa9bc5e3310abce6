"""A simulated server for `tune`: rounds cost what a known model says, give or take, and acceptance follows a table."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sglang_eagle31.maths.cost import Line, RoundCost
from sglang_eagle31.maths.expected import Tree, ranks, tokens, tree
from sglang_eagle31.maths.shape import Shape
from sglang_eagle31.server.guard.evidence import Outcome
from sglang_eagle31.tools.shared.guard_records import Limits
from sglang_eagle31.tools.tune.turns import Turn

LIMITS = Limits(Shape(6, 4, 16), (Shape(6, 4, 16), Shape(3, 1, 4)), any=True, mode="on")


@dataclass
class Simulated:
    """One temperature and concurrency of it, as `turns.Load`; ``now`` is its clock."""

    cost: RoundCost
    table: np.ndarray
    users: int = 1
    answer: int = 128
    noise: float = 0.05
    drift: float = 0.15
    limits: Limits = LIMITS
    now: float = field(default=0.0, init=False)
    ran: list[Shape] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.trees: dict[Shape, Tree] = {}

    def clock(self) -> float:
        return self.now

    def prepare(self, cycle: int, shapes: Sequence[Shape]) -> int:
        return 0

    def gain(self, shape: Shape) -> float:
        """The true one."""
        return self.cost.speedup(self.users, shape, tokens(shape, self.table))

    def turn(self, shape: Shape, cycle: int) -> Turn:
        """Twice as many requests as users, of which each takes the next when its own has ended."""
        self.ran.append(shape)
        start, busy, rounds = self.now, 0.0, defaultdict(list)
        tried, hit = (np.zeros(self._size()) for _ in range(2))
        waiting, running = self.users, [self.answer] * self.users
        while running:
            batch = len(running)
            outcome = self.outcome(shape, batch)
            seconds = self.seconds(shape, batch)
            depths, width = outcome.tried.shape
            tried[:depths, :width] += outcome.tried
            hit[:depths, :width] += outcome.hit
            rounds[batch].append(seconds)
            self.now += seconds
            busy += batch * seconds
            left = [need - int(given) for need, given in zip(running, outcome.tokens, strict=True)]
            ended = sum(need <= 0 for need in left)
            fresh = min(ended, waiting)
            waiting -= fresh
            running = [need for need in left if need > 0] + [self.answer] * fresh
        count = 2 * self.users
        typical = {batch: float(np.median(some)) for batch, some in rounds.items()}
        return Turn(shape, count, count * self.answer, self.now - start, busy, typical, tried, hit)

    def seconds(self, shape: Shape, batch: int) -> float:
        """Of one round, with noise and a machine that slowly changes its speed."""
        slower = 1 + self.drift * math.sin(self.now / 97)
        return self.cost.round(batch, shape) * slower * float(self.random.lognormal(0, self.noise))

    def outcome(self, shape: Shape, batch: int) -> Outcome:
        """Which drafts are accepted, drawn from the table."""
        if not shape.steps:
            return Outcome.plain(batch)
        if shape.topk == 1:
            chances = self.table[np.minimum(np.arange(shape.steps), len(self.table) - 1), 0]
            right = self.random.random((batch, shape.steps)) < chances
            return Outcome.chain(np.cumprod(right, 1).sum(1), shape.steps)
        paths, missed = zip(*(self._walk(shape) for _ in range(batch)), strict=True)
        return Outcome.tree(paths, missed, shape.steps, shape.topk)

    def _walk(self, shape: Shape) -> tuple[list[int], int]:
        if shape not in self.trees:
            self.trees[shape] = tree(shape, self.table)
        nodes = self.trees[shape]
        at, path = -1, []
        while True:
            children = np.flatnonzero(nodes.parent == at)
            if not len(children):
                return path, 0
            row = self.table[min(len(path), len(self.table) - 1)]
            right = int(np.searchsorted(np.cumsum(row), self.random.random()))
            if right >= len(children):
                return path, len(children)
            path.append(right)
            at = int(children[right])

    def _size(self) -> tuple[int, int]:
        return self.limits.configured.steps, self.limits.configured.topk


def falling(first: float, by: float, recovery: float) -> np.ndarray:
    """``[6, 4]`` acceptance that falls with depth, and what later ranks catch."""
    return ranks([max(first - by * depth, 0.02) for depth in range(6)], [recovery, recovery / 2, recovery / 4])


CHEAP_VERIFY = RoundCost(Line(0.030, 0.00004, 32), Line(0.0016, 0.00001), 0.0026, inside=1)
"""A GPU: the weights are read whatever the width."""
DEAR_VERIFY = RoundCost(Line(0.060, 0.006), Line(0.006, 0.0008), 0.01, inside=1)
"""A CPU: each token costs."""
DEAR_DRAFT = RoundCost(Line(0.020, 0.001), Line(0.012, 0.002), 0.016, inside=1)
"""A small target, whose step costs little more than its head's."""
REGIMES = {
    "cheap verify, good head": Simulated(CHEAP_VERIFY, falling(0.85, 0.02, 0.4)),
    "cheap verify, poor head": Simulated(CHEAP_VERIFY, falling(0.5, 0.04, 0.3)),
    "dear verify": Simulated(DEAR_VERIFY, falling(0.7, 0.05, 0.3)),
    "dear verify, 8 users": Simulated(DEAR_VERIFY, falling(0.7, 0.05, 0.3), users=8, answer=64),
    "dear draft": Simulated(DEAR_DRAFT, falling(0.75, 0.03, 0.3)),
    "dead head": Simulated(DEAR_VERIFY, falling(0.06, 0.02, 0.02)),
    "dead head, cheap verify": Simulated(CHEAP_VERIFY, falling(0.02, 0.0, 0.01), users=4, answer=64),
}
