"""What the alarm judges: acceptance per drafted token in blocks of rounds, and how sure one may be of a ratio.

Rounds of one answer are alike, so they are no independent trials. They are grouped in blocks of one request, and the
variance of a ratio of sums over blocks is that of the linearised estimator (Cochran, Sampling Techniques, 3rd ed.,
eq. 6.9, with the means replaced by sums over m blocks):

    r = sum(x) / sum(n)        var(r) = m / (m - 1) * sum((x - r n)^2) / sum(n)^2

and never less than the binomial variance of sum(n) trials at (sum(x) + 1) / (sum(n) + 2).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
BLOCK = 32
"""Rounds of a block; a request of fewer gives one block."""
WINDOW = 32
"""Blocks of a cell that count as recent."""
MEMORY = 1024
"""Blocks of the level before: beyond them, old ones count half."""


@dataclass
class Block:
    """Rounds of one request in one cell.

    Attributes:
        rounds: with a draft.
        first: of them, those that accepted the first drafted token.
        tried: drafted tokens at which acceptance was decided: the accepted ones, and the first rejected one if any.
        accepted: drafts accepted.
        deep_tried, deep_accepted: the same beyond the first token, of chains only (a tree has few deep nodes).
        begins: whether it is the request's first block.
    """

    rounds: int = 0
    first: int = 0
    tried: int = 0
    accepted: int = 0
    deep_tried: int = 0
    deep_accepted: int = 0
    begins: bool = True

    def add(self, accepted: int, steps: int, chain: bool) -> None:
        """One round whose draft had ``steps`` of 1 or more."""
        tried = accepted + (accepted < steps)
        self.rounds += 1
        self.tried += tried
        self.accepted += accepted
        if accepted:
            self.first += 1
            if chain:
                self.deep_tried += tried - 1
                self.deep_accepted += accepted - 1


PAIRS = (("tried", "accepted"), ("rounds", "first"), ("deep_tried", "deep_accepted"))
ALL, FIRST, DEEP = range(3)
"""The three ratios: acceptance of any drafted token, of the first, and of those after it."""


@dataclass
class Sums:
    """Sums over blocks; adding two of them is having seen both.

    Attributes:
        blocks, requests: how many.
        values: ``[3, 5]`` for each ratio the sums of n, x, n^2, n x and x^2.
    """

    blocks: float = 0
    requests: float = 0
    values: Array = field(default_factory=lambda: np.zeros((3, 5)))

    def add(self, block: Block, weight: float = 1) -> None:
        """One block; a weight of -1 takes it away."""
        self.blocks += weight
        self.requests += weight * block.begins
        for row, (trials, hits) in enumerate(PAIRS):
            n, x = getattr(block, trials), getattr(block, hits)
            self.values[row] += (weight * n, weight * x, weight * n * n, weight * n * x, weight * x * x)

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.blocks + other.blocks, self.requests + other.requests, self.values + other.values)

    def trials(self, which: int = ALL) -> float:
        """The sum of n."""
        return float(self.values[which, 0])

    def ratio(self, which: int = ALL) -> float:
        """r; nan without trials."""
        n, x = self.values[which, :2]
        return float(x / n) if n else float("nan")

    def variance(self, which: int = ALL) -> float:
        """Of the ratio; infinite with fewer than two blocks."""
        n, x, nn, nx, xx = self.values[which]
        if self.blocks < 2 or not n:
            return float("inf")
        r, guess = x / n, (x + 1) / (n + 2)
        between = self.blocks / (self.blocks - 1) * max(0.0, xx - 2 * r * nx + r * r * nn) / n**2
        return float(max(between, guess * (1 - guess) / n))

    def bounds(self, which: int, z: float) -> tuple[float, float]:
        """Wilson's interval, with as many trials as the variance is worth."""
        n, r, variance = self.trials(which), self.ratio(which), self.variance(which)
        if not n or not np.isfinite(variance):
            return 0.0, 1.0
        effective = min(n, r * (1 - r) / variance) if 0 < r < 1 else n
        middle = (r + z * z / (2 * effective)) / (1 + z * z / effective)
        half = z / (1 + z * z / effective) * (r * (1 - r) / effective + z * z / (4 * effective**2)) ** 0.5
        return middle - half, middle + half


@dataclass
class Cell:
    """Blocks of one context bucket and template: the recent ones, and the sums of those before them."""

    recent: deque[Block] = field(default_factory=deque)
    now: Sums = field(default_factory=Sums)
    before: Sums = field(default_factory=Sums)

    def add(self, block: Block, learn: bool) -> None:
        """A new block; the one that is no longer recent joins the level before, if ``learn``."""
        self.recent.append(block)
        self.now.add(block)
        if len(self.recent) > WINDOW:
            old = self.recent.popleft()
            self.now.add(old, -1)
            if learn:
                self.before.add(old)
                if self.before.blocks > MEMORY:
                    self.before = Sums(self.before.blocks / 2, self.before.requests / 2, self.before.values / 2)
