"""Shapes and mixes of walks, from hypothesis' draws or from a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from rollback_model import Model
from rollback_walk import Mix
from rollback_world import Shape

CACHES = ("unified", "unified-python", "radix")


def shape_of(choose: Callable[[Sequence[Any]], Any]) -> Shape:
    """A shape of which every property is one of a sequence that ``choose`` is given."""
    page, topk, steps = choose((1, 4, 16)), choose((1, 2, 4)), choose((1, 2, 3, 4))
    candidates = topk + (steps - 1) * topk * topk
    # SGLang's tree must have room for a path: fewer nodes than steps + 1 end the scheduler with topk > 1.
    nodes = steps + 1 if topk == 1 else choose(range(min(steps, candidates) + 1, min(candidates, 11) + 2))
    widest = Model(page, 0, topk, steps, nodes)
    request = widest.up(110 + widest.reserve)
    return Shape(
        page=page,
        topk=topk,
        steps=steps,
        nodes=nodes,
        slots=widest.up(request * choose((13, 16, 20, 30, 40)) // 10),
        rows=choose((2, 4, 8)),
        chunk=choose((16, 32, 64)),
        cache=choose(CACHES),
        overlap=choose((False, True)),
    )


def mix_of(choose: Callable[[Sequence[Any]], Any]) -> Mix:
    """A mix, likewise."""
    return Mix(arrive=choose((0.3, 0.6, 1.0)), abort=choose((0.0, 0.03, 0.15)))


def seeded(seed: int) -> tuple[Shape, Mix]:
    """The shape and the mix of a seed."""
    random = Random(seed)
    return shape_of(random.choice), mix_of(random.choice)
