"""Turns: one shape under load for a short time; and cycles of them, so that a machine that changes favours no shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from sglang_eagle31.maths.expected import Floats
from sglang_eagle31.maths.shape import Shape

GOALS = ("latency", "throughput")


@dataclass(frozen=True)
class Turn:
    """One shape, some requests.

    Attributes:
        shape: it.
        requests: answers.
        tokens: of all answers.
        seconds: from the first request to the last answer.
        busy: sum over the requests of the seconds that each took.
        rounds: seconds of a round by batch size, as known at the end of the turn.
        tried: ``[D, K]`` as in `guard.evidence`, in this turn.
        hit: ``[D, K]``.
    """

    shape: Shape
    requests: int
    tokens: int
    seconds: float
    busy: float
    rounds: Mapping[int, float]
    tried: Floats
    hit: Floats

    def rate(self, goal: str) -> float:
        """Output tokens per second: of one user on average for ``latency``, of all together for ``throughput``."""
        return self.tokens / (self.busy if goal == "latency" else self.seconds)


class Load(Protocol):
    """A closed loop of a number of users at one temperature. The same cycle number asks the same prompts."""

    def prepare(self, cycle: int, shapes: Sequence[Shape]) -> int:
        """Bring the cycle's prompts into the prefix cache, run each shape for a few tokens; requests that it took."""

    def turn(self, shape: Shape, cycle: int) -> Turn:
        """Ask the cycle's prompts with the shape pinned."""


@dataclass(frozen=True)
class Cycles:
    """Turns of the same shapes, cycle by cycle, each in the order of ``shapes``."""

    shapes: list[Shape]
    turns: list[list[Turn]]
    requests: int
    """Those of the preparation included."""

    def of(self, shape: Shape) -> list[Turn]:
        """The shape's turns."""
        place = self.shapes.index(shape)
        return [cycle[place] for cycle in self.turns]

    def gains(self, shape: Shape, goal: str) -> list[float]:
        """The shape's rate against that of the first one, cycle by cycle."""
        base = self.of(self.shapes[0])
        return [turn.rate(goal) / plain.rate(goal) for turn, plain in zip(self.of(shape), base, strict=True)]

    def gain(self, shape: Shape, goal: str) -> float:
        """Typical one."""
        return float(typical(np.log(self.gains(shape, goal))[:, None])[0])


def run_cycles(
    load: Load,
    shapes: Sequence[Shape],
    numbers: Sequence[int],
    may_go_on: Callable[[float], bool],
    clock: Callable[[], float],
    advance: Callable[[], object],
) -> Cycles:
    """Each shape once a cycle, every other cycle in reverse order.

    Args:
        load: what is asked.
        shapes: the first one is what the others are compared with.
        numbers: of the cycles; the prompts follow them.
        may_go_on: asked with the seconds of the last cycle whether there is time for another; one is always run.
        clock: seconds.
        advance: called after each turn.
    """
    turns: list[list[Turn]] = []
    count = 0
    for index, number in enumerate(numbers):
        start = clock()
        count += load.prepare(number, [] if turns else shapes)
        order = list(shapes) if index % 2 == 0 else list(reversed(shapes))
        found = {}
        for shape in order:
            found[shape] = load.turn(shape, number)
            advance()
        turns.append([found[shape] for shape in shapes])
        count += sum(turn.requests for turn in turns[-1])
        if not may_go_on(clock() - start):
            break
    return Cycles(list(shapes), turns, count)


def levelled(times: ArrayLike) -> Floats:
    """Typical times ``[S]`` of ``[cycles, S]``, what a whole cycle was slower or faster taken out of each."""
    logs = np.log(np.asarray(times, np.float64))
    level = logs.mean(1, keepdims=True)
    return typical(logs - level + np.median(level))


def typical(logs: Floats) -> Floats:
    """``[S]`` of ``[cycles, S]`` logarithms: the median over neighbouring cycles, of which one ran in reverse order.

    So a machine that changes its speed steadily within the cycles makes no difference either.
    """
    pairs = (logs[1:] + logs[:-1]) / 2 if len(logs) > 1 else logs
    found: Floats = np.exp(np.median(pairs, 0))
    return found
