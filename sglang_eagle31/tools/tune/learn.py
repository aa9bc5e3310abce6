"""From a few measured shapes to what every shape costs and gives, with the model that `tune --simulate` uses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sglang_eagle31.maths.cost import RoundCost
from sglang_eagle31.maths.expected import Floats, tokens
from sglang_eagle31.maths.grid import Prediction
from sglang_eagle31.maths.shape import NO_SPECULATION, Shape
from sglang_eagle31.server.guard.evidence import Evidence
from sglang_eagle31.tools.tune.turns import Cycles, Turn, levelled


@dataclass(frozen=True)
class Learnt:
    """What was learnt at one temperature and concurrency.

    Attributes:
        batch: requests of the rounds that were timed.
        cost: of a round, in seconds.
        chains: ``[D, 1]`` acceptance by depth, of chains.
        trees: ``[D, K]`` acceptance by depth and rank, of trees.
        lift: accepted drafts of the measured trees against what ``trees`` says. A tree follows what the draft believes
            in each round, a table does not know of it.
        measured: seconds of a round of each probe.
        misfit: the largest relative error of the fitted cost on them.
    """

    batch: int
    cost: RoundCost
    chains: Floats
    trees: Floats
    lift: float
    measured: dict[Shape, float]
    misfit: float

    @property
    def draft_cost(self) -> float:
        """c: one draft step of a chain, in plain steps of this batch."""
        return self.cost.draft(self.batch) / self.cost.round(self.batch, NO_SPECULATION)

    @property
    def verify_slope(self) -> float:
        """What one more verified token of each request costs, in plain steps of this batch."""
        more = self.cost.verify(self.batch, 2) - self.cost.verify(self.batch, 1)
        return more / self.cost.round(self.batch, NO_SPECULATION)

    def missed(self, cycles: Cycles) -> dict[Shape, float]:
        """Relative error of the cost of other turns' rounds, against no speculation in the same cycles."""
        batch, times = _round_times(cycles, self.batch)
        if batch != self.batch:
            return dict.fromkeys(times, 0.0)
        speed = self.cost.round(self.batch, NO_SPECULATION) / times[NO_SPECULATION]
        return {shape: abs(self.cost.round(self.batch, shape) / speed / time - 1) for shape, time in times.items()}

    def expected(self, shape: Shape) -> float:
        """Tokens of a round and request."""
        if shape.topk == 1:
            return tokens(shape, self.chains)
        return min(shape.steps + 1.0, 1 + self.lift * (tokens(shape, self.trees) - 1))

    def predict(self, shapes: Iterable[Shape]) -> list[Prediction]:
        """Every shape at the concurrency that was measured."""
        found = []
        for shape in shapes:
            given = self.expected(shape)
            speedup = self.cost.speedup(self.batch, shape, given)
            found.append(Prediction(shape, self.batch, given, self.cost.round(self.batch, shape), speedup))
        return found


def learn(cycles: Cycles, batch: int) -> Learnt:
    """Fit costs and acceptance to the probes.

    Args:
        cycles: of the probes.
        batch: requests of a round that are wanted; the server may not run so many at once.

    Raises ValueError where no batch size was run by all of them, and where nothing was drafted.
    """
    batch, measured = _round_times(cycles, batch)
    cost = RoundCost.fit_rounds({(batch, shape): seconds for shape, seconds in measured.items()})
    drafted = [turn for cycle in cycles.turns for turn in cycle if turn.shape.steps]
    chains = [turn for turn in drafted if turn.shape.is_chain] or drafted
    trees = [turn for turn in drafted if not turn.shape.is_chain]
    by_rank = _table(trees or drafted)
    return Learnt(
        batch,
        cost,
        _table(chains)[:, :1],
        by_rank,
        _lift(trees, by_rank),
        measured,
        max(abs(cost.round(batch, shape) / seconds - 1) for shape, seconds in measured.items()),
    )


def accept_length(turns: Sequence[Turn]) -> float:
    """Tokens of a round and request that were counted, bonus token included; 1 where nothing was drafted."""
    rounds = sum(float(turn.tried[0, 0]) for turn in turns)
    return 1 + sum(float(turn.hit.sum()) for turn in turns) / rounds if rounds else 1.0


def _round_times(cycles: Cycles, most: int) -> tuple[int, dict[Shape, float]]:
    """Of the largest batch size up to ``most`` that all shapes have run."""
    common = set.intersection(*(set(turn.rounds) for cycle in cycles.turns for turn in cycle))
    sizes = [size for size in common if size <= most]
    if not sizes:
        raise ValueError(
            "no batch size was run by all shapes, so their rounds cannot be compared; fix: longer answers "
            "(--max-new-tokens), or prompts of more similar length"
        )
    batch = max(sizes)
    typical = levelled([[turn.rounds[batch] for turn in cycle] for cycle in cycles.turns])
    return batch, {shape: float(seconds) for shape, seconds in zip(cycles.shapes, typical, strict=True)}


def _table(turns: Sequence[Turn]) -> Floats:
    if not any(turn.tried.size and turn.tried[0, 0] for turn in turns):
        raise ValueError("no draft was verified; fix: longer answers (--max-new-tokens)")
    depths, ranks = turns[0].tried.shape
    evidence = Evidence(depths, ranks, window=math.inf)
    for turn in turns:
        evidence.tried += turn.tried
        evidence.hit += turn.hit
    return evidence.table()


def _lift(trees: Sequence[Turn], table: Floats) -> float:
    shapes = {turn.shape for turn in trees}
    said = sum(tokens(shape, table) - 1 for shape in shapes)
    counted = sum(accept_length([turn for turn in trees if turn.shape == shape]) - 1 for shape in shapes)
    return counted / said if said else 1.0
