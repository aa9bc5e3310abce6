"""All shapes worth a thought, what each is predicted to gain, and the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numpy.typing import ArrayLike

from sglang_eagle31.maths.cost import RoundCost
from sglang_eagle31.maths.expected import tokens
from sglang_eagle31.maths.shape import Shape

WIDTHS = (4, 8, 16, 32, 64)
"""Draft tokens of the trees of a grid."""


@dataclass(frozen=True)
class Prediction:
    """One shape at one batch size.

    Attributes:
        shape: it.
        batch: requests of a round.
        expected: tokens of a round and request, bonus token included.
        time: of a round, in the unit of the cost model.
        speedup: tokens per time against no speculation; 1 for no speculation itself.
    """

    shape: Shape
    batch: int
    expected: float
    time: float
    speedup: float

    @property
    def time_per_token(self) -> float:
        """Of one request's tokens."""
        return self.time / self.expected


def grid(steps: int, topks: Sequence[int] = (), widths: Sequence[int] = WIDTHS) -> list[Shape]:
    """No speculation, chains of up to ``steps`` steps, and trees of those depths.

    Left out are trees with fewer nodes than steps, which no draft could fill to its depth, and those with more than
    there are candidates.
    """
    shapes = [Shape.chain(depth) for depth in range(steps + 1)]
    for depth in range(1, steps + 1):
        for topk in topks:
            most = topk * (1 + topk * (depth - 1)) + 1
            shapes += [Shape(depth, topk, width) for width in widths if topk > 1 and depth < width <= most]
    return sorted(set(shapes))


def predict(
    shapes: Sequence[Shape],
    cost: RoundCost,
    table: ArrayLike,
    batches: Sequence[int] = (1,),
    draft: ArrayLike | None = None,
) -> list[Prediction]:
    """Every shape at every batch size, batch by batch; ``table`` and ``draft`` as of `expected.tree`."""
    expected = {shape: tokens(shape, table, draft) for shape in shapes}
    return [
        Prediction(shape, batch, expected[shape], cost.round(batch, shape), cost.speedup(batch, shape, expected[shape]))
        for batch in batches
        for shape in shapes
    ]


def best(predictions: Sequence[Prediction]) -> Prediction:
    """The fastest; of equals the one that drafts least, so no speculation unless something is faster."""
    return min(predictions, key=lambda one: (-one.speedup, one.shape))
