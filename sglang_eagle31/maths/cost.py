"""Cost of a round, and what speculation gains at that cost.

A round of a batch of b requests verifies b * w tokens, w = ``draft_tokens``, after N draft steps, each of which
computes b * K rows, K = ``topk``. Prefill is not part of a round. Times are in any one unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sglang_eagle31.maths.expected import constant
from sglang_eagle31.maths.fit import robust
from sglang_eagle31.maths.shape import NO_SPECULATION, Shape


@dataclass(frozen=True)
class Line:
    """Time of one forward pass by the tokens in it: ``base + slope * max(0, tokens - free)``.

    On a GPU the first tokens are free, as reading the weights takes longer than computing; on a CPU each costs.
    """

    base: float
    slope: float = 0.0
    free: float = 0.0

    def __call__(self, tokens: float) -> float:
        """Time of a pass over so many tokens."""
        return self.base + self.slope * max(0.0, tokens - self.free)


@dataclass(frozen=True)
class RoundCost:
    """What a round costs.

    Attributes:
        target: one pass of the target over b * w tokens, with sampling and acceptance.
        draft: one draft step over b * K rows.
        overhead: of each round that drafts, whatever its shape.
        inside: draft steps that are in the overhead and in the target's width: 1 in SGLang, where the first step of a
            draft is computed with the verified tokens of the round before (its draft extend).
    """

    target: Line
    draft: Line
    overhead: float = 0.0
    inside: int = 0

    @classmethod
    def relative(cls, cost: float, slope: float = 0.0, free: float = 1.0) -> RoundCost:
        """In units of one target step over one token; a draft step costs ``cost`` of a target step as wide as itself.

        Raises ValueError for numbers below 0, and for ``free`` below 1.
        """
        for name, value, least in (("cost", cost, 0.0), ("verify slope", slope, 0.0), ("free tokens", free, 1.0)):
            if not least <= value < np.inf:
                raise ValueError(f"{name} {value:g}: expected a finite number from {least:g}; fix: for example 0.05")
        return cls(Line(1.0, slope, free), Line(cost, cost * slope, free))

    @classmethod
    def fit_rounds(cls, seconds: Mapping[tuple[int, Shape], float]) -> RoundCost:
        """From the medians of whole rounds of SGLang, target and draft together: a robust affine fit, no term below 0.

        Chains of different lengths, or a chain and a tree, are needed to tell target from draft; what cannot be told
        apart is given to the target's width first. Raises ValueError without a round.
        """
        if not seconds:
            raise ValueError("cost of a round: no round was measured; fix: measure some")
        rows = [
            ([1.0, b * s.draft_tokens, later, later * b * s.topk, s.steps > 0], time)
            for (b, s), time in seconds.items()
            for later in [max(0, s.steps - 1)]
        ]
        base, slope, step, row, overhead = _solve([([*map(float, row)], time) for row, time in rows], [0, 1, 2, 3, 4])
        return cls(Line(base, slope), Line(step, row), overhead, inside=1)

    def verify(self, batch: int, width: int) -> float:
        """Time of the target over ``width`` tokens of each request."""
        return self.target(batch * width)

    def drafting(self, batch: int, shape: Shape) -> float:
        """Time of all draft steps of a round."""
        if not shape.steps:
            return 0.0
        return self.overhead + max(0, shape.steps - self.inside) * self.draft(batch * shape.topk)

    def round(self, batch: int, shape: Shape) -> float:
        """Time of one round; without speculation, of one plain step."""
        return self.verify(batch, shape.draft_tokens) + self.drafting(batch, shape)

    def speedup(self, batch: int, shape: Shape, expected: float) -> float:
        """Tokens per time against no speculation, if a round gives so many tokens a request.

        With c = draft / target and a target whose width is free it is E / (N c + 1), the inverse of the time per token
        in target steps.
        """
        return expected * self.round(batch, NO_SPECULATION) / self.round(batch, shape)


def break_even_acceptance(cost: RoundCost, batch: int, steps: int) -> float | None:
    """Constant acceptance at which a chain is as fast as no speculation; None: not even when all is accepted."""
    needed = 1 / cost.speedup(batch, Shape.chain(steps), 1.0)
    if needed > steps + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if constant(middle, steps) < needed else (low, middle)
    return high


def break_even_batch(cost: RoundCost, shape: Shape, expected: float, most: int = 4096) -> int | None:
    """The largest batch up to which a shape is nowhere slower than no speculation.

    0: slower with one request already; None: up to ``most`` requests it is never slower.
    """
    for batch in range(1, most + 1):
        if cost.speedup(batch, shape, expected) < 1:
            return batch - 1
    return None


def _solve(rows: list[tuple[list[float], float]], order: list[int]) -> list[float]:
    features = np.array([row for row, _ in rows], np.float64)
    return [float(one) for one in robust(features, np.array([time for _, time in rows], np.float64), order)]
