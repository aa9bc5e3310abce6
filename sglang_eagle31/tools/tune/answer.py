"""The answer at one temperature and concurrency: probe, predict, confirm, pick."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from sglang_eagle31.maths.grid import Prediction
from sglang_eagle31.maths.shape import NO_SPECULATION, Shape
from sglang_eagle31.tools.shared.guard_records import Limits
from sglang_eagle31.tools.tune.learn import Learnt, learn
from sglang_eagle31.tools.tune.shapes import candidates, contenders, probes
from sglang_eagle31.tools.tune.turns import Cycles, Load, run_cycles

PROBING = 0.5
"""Share of the time for probes; the rest confirms."""
MISFIT = 0.15
"""Relative error of the fitted cost from which predictions are called rough."""


@dataclass(frozen=True)
class Options:
    """What is asked for.

    Attributes:
        goal: latency or throughput.
        turns: of each shape.
        confirm: shapes that are confirmed.
        margin: realised gain below which the answer is not to speculate.
        grid: whether all shapes are measured too.
    """

    goal: str = "throughput"
    turns: int = 3
    confirm: int = 3
    margin: float = 0.03
    grid: bool = False


@dataclass(frozen=True)
class Budget:
    """Seconds that may be used from ``start`` on; at least one cycle of each phase is run all the same."""

    start: float
    seconds: float
    clock: Callable[[], float] = time.monotonic

    def until(self, share: float) -> Callable[[float], bool]:
        """Whether there is time for another cycle of so many seconds within a share of the budget."""
        return lambda more: self.clock() + more <= self.start + share * self.seconds


@dataclass(frozen=True)
class Realised:
    """One shape, measured against no speculation in the same cycles.

    Attributes:
        shape: it.
        predicted: gain.
        gain: typical one of the cycles.
        low: least of them.
        high: most.
        rate: output tokens per second, median.
    """

    shape: Shape
    predicted: float
    gain: float
    low: float
    high: float
    rate: float


@dataclass(frozen=True)
class Answer:
    """What to do at one temperature and concurrency.

    Attributes:
        temperature: it.
        concurrency: users of the closed loop.
        learnt: acceptance and cost.
        predictions: of the grid.
        realised: of the confirmed shapes, no speculation first.
        pick: the shape to use, perhaps no speculation.
        requests: asked for the answer, the full grid not counted.
        seconds: that they took.
        grid_seconds: that measuring each shape of the grid as often would have taken, or took.
        grid: every shape measured, where that was asked for.
        tokens_per_answer: on average.
        cycles: that were run to confirm.
        notes: what the reader should know of this measurement.
    """

    temperature: float
    concurrency: int
    learnt: Learnt
    predictions: list[Prediction]
    realised: list[Realised]
    pick: Shape
    requests: int
    seconds: float
    grid_seconds: float
    grid: list[Realised] | None
    tokens_per_answer: float
    cycles: int
    notes: list[str] = field(default_factory=list)

    @property
    def speculate(self) -> bool:
        """Whether to."""
        return self.pick != NO_SPECULATION

    @property
    def best(self) -> Realised:
        """The fastest confirmed shape that drafts."""
        return max(self.realised[1:], key=lambda one: one.gain)

    @property
    def of_best(self) -> float | None:
        """Gain of the pick by that of the best shape of the measured grid."""
        if self.grid is None:
            return None
        gains = {one.shape: one.gain for one in self.grid}
        return gains[self.pick] / max(gains.values())


def answer(
    load: Load,
    limits: Limits,
    temperature: float,
    concurrency: int,
    options: Options,
    budget: Budget,
    advance: Callable[[], object] = lambda: None,
) -> Answer:
    """Measure and decide.

    Raises ValueError where nothing can be learnt from the answers.
    """
    clock, start = budget.clock, budget.clock()
    shapes = candidates(limits)
    batch = -(-concurrency // limits.schedulers)

    def cycles(which: Sequence[Shape], first: int, may_go_on: Callable[[float], bool]) -> Cycles:
        return run_cycles(load, which, range(first, first + options.turns), may_go_on, clock, advance)

    probed = cycles(probes(shapes), 0, budget.until(PROBING))
    learnt = learn(probed, batch)
    predictions = learnt.predict(shapes)
    chosen = [one.shape for one in contenders(predictions, options.confirm)]
    confirming = clock()
    confirmed = cycles([NO_SPECULATION, *chosen], options.turns, budget.until(1.0))
    seconds, confirming = clock() - start, clock() - confirming
    gains = {one.shape: one.speedup for one in predictions}
    realised = _realised(confirmed, gains, options.goal)
    best = max(realised[1:], key=lambda one: one.gain)
    grid = None
    grid_seconds = _grid_seconds(confirmed, confirming, gains, options.turns)
    if options.grid:
        began = clock()
        grid = _realised(cycles(shapes, 2 * options.turns, lambda _: True), gains, options.goal)
        grid_seconds = clock() - began
    plain = confirmed.of(NO_SPECULATION)
    return Answer(
        temperature,
        concurrency,
        learnt,
        predictions,
        realised,
        best.shape if best.gain >= 1 + options.margin else NO_SPECULATION,
        probed.requests + confirmed.requests,
        seconds,
        grid_seconds,
        grid,
        sum(turn.tokens for turn in plain) / sum(turn.requests for turn in plain),
        len(confirmed.turns),
        _notes(probed, confirmed, learnt, batch, options),
    )


def turns_of(limits: Limits, options: Options) -> int:
    """Turns of one answer at most, for a progress bar."""
    shapes = candidates(limits)
    each = len(probes(shapes)) + 1 + min(options.confirm, len(shapes) - 1) + (len(shapes) if options.grid else 0)
    return options.turns * each


def _realised(cycles: Cycles, predicted: dict[Shape, float], goal: str) -> list[Realised]:
    found = []
    for shape in cycles.shapes:
        gains = cycles.gains(shape, goal)
        rate = median(turn.rate(goal) for turn in cycles.of(shape))
        gain = cycles.gain(shape, goal)
        found.append(Realised(shape, predicted[shape], gain, min(gains), max(gains), rate))
    return found


def _grid_seconds(confirmed: Cycles, took: float, gains: dict[Shape, float], turns: int) -> float:
    """A turn of each shape takes as long as one without speculation by its predicted gain, and what is around it."""
    plain = median(turn.seconds for turn in confirmed.of(NO_SPECULATION))
    inside = [turn.seconds for cycle in confirmed.turns for turn in cycle]
    around = (took - sum(inside)) / len(inside)
    return turns * sum(plain / gain + around for gain in gains.values())


def _notes(probed: Cycles, confirmed: Cycles, learnt: Learnt, batch: int, options: Options) -> list[str]:
    notes = []
    for what, cycles in (("probing", probed), ("confirming", confirmed)):
        if len(cycles.turns) < options.turns:
            notes.append(
                f"time for {len(cycles.turns)} of {options.turns} turns of {what}; more --budget-seconds gives more"
            )
    if learnt.batch < batch:
        notes.append(
            f"the server ran {learnt.batch} requests at once where {batch} were asked; costs are of {learnt.batch}"
        )
    missed = max(learnt.misfit, *learnt.missed(confirmed).values())
    if missed > MISFIT:
        notes.append(
            f"the cost model misses a measured round by {missed:.0%}, so predictions are rough; what was confirmed "
            "is not affected"
        )
    return notes
