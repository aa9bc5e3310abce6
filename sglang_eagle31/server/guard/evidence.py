"""What the last rounds say about acceptance, by draft depth and rank, with forgetting.

D depths, K ranks. A request *tries* (d, r) in a round when its drafts up to depth d were accepted, ranks 0 ... r - 1 at
depth d + 1 were wrong and the candidate of rank r was verified; it *hits* when that one was right. So each ratio hits /
tries is free of how deep and wide the drafts were: chains and trees add up in one table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sglang_eagle31.maths.expected import Floats

START = 0.5
"""Acceptance assumed of the first draft before anything was seen."""
RECOVERY = 0.3
"""Chance assumed of a further rank before any tree was seen."""
WEIGHT = 4.0
"""Tries that an assumption counts for."""


@dataclass(frozen=True)
class Outcome:
    """One round of a batch of b requests.

    Attributes:
        tokens: ``[b]`` tokens of each request, bonus token included, as verified.
        tried: ``[D, K]`` requests that tried each depth and rank.
        hit: ``[D, K]`` requests that hit it.
    """

    tokens: NDArray[np.int64]
    tried: Floats
    hit: Floats

    @property
    def mean(self) -> float:
        """Tokens of the round and request."""
        return float(self.tokens.sum()) / len(self.tokens)

    @classmethod
    def plain(cls, batch: int) -> Outcome:
        """A round without a draft."""
        nothing = np.zeros((0, 0))
        return cls(np.ones(batch, np.int64), nothing, nothing)

    @classmethod
    def chain(cls, accepted: ArrayLike, steps: int) -> Outcome:
        """Drafts accepted by each request, ``[b]``, of chains of ``steps``."""
        lengths = np.asarray(accepted, np.int64)
        counts = np.bincount(lengths, minlength=steps + 1)
        reached = counts[::-1].cumsum()[::-1].astype(np.float64)
        return cls(lengths + 1, reached[:-1, None], reached[1:, None])

    @classmethod
    def tree(cls, paths: Sequence[Sequence[int]], missed: Sequence[int], steps: int, topk: int) -> Outcome:
        """Ranks of the accepted nodes of each request, and how many children of the last one were verified in vain."""
        tried, hit = np.zeros((steps, topk)), np.zeros((steps, topk))
        for path, wrong in zip(paths, missed, strict=True):
            for depth, rank in enumerate(path):
                tried[depth, : rank + 1] += 1
                hit[depth, rank] += 1
            if wrong:
                tried[len(path), :wrong] += 1
        return cls(np.array([len(path) + 1 for path in paths], np.int64), tried, hit)


class Evidence:
    """Tries and hits of the last drafted rounds, each round weighing ``1 - 1 / window`` of the next."""

    def __init__(self, depths: int, ranks: int, window: float) -> None:
        """``depths`` and ``ranks`` are D and K of the largest shape."""
        self.keep = 1 - 1 / window
        self.tried, self.hit = np.zeros((depths, ranks)), np.zeros((depths, ranks))

    def add(self, outcome: Outcome) -> None:
        """One drafted round."""
        depths, ranks = outcome.tried.shape
        for total, more in ((self.tried, outcome.tried), (self.hit, outcome.hit)):
            total *= self.keep
            total[:depths, :ranks] += more

    @property
    def requests(self) -> float:
        """Requests that tried the first draft, as far as remembered."""
        return float(self.tried[0, 0])

    def table(self) -> Floats:
        """``[D, K]`` for `expected.tokens`; what was rarely tried leans on the depth before it.

        Ranks after the first are taken alike at all depths, as their tries are few.
        """
        first = np.empty(len(self.tried))
        before = START
        for depth, (tried, hit) in enumerate(zip(self.tried[:, 0], self.hit[:, 0], strict=True)):
            before = first[depth] = (hit + WEIGHT * before) / (tried + WEIGHT)
        others = (self.hit[:, 1:].sum(0) + WEIGHT * RECOVERY) / (self.tried[:, 1:].sum(0) + WEIGHT)
        caught: Floats = np.concatenate([first[:, None], np.broadcast_to(others, (len(first), len(others)))], 1)
        missed = np.cumprod(1 - caught, 1)
        caught[:, 1:] *= missed[:, :-1]
        return caught
