"""What the guard remembers of one range of batch sizes; times are in plain steps of that batch size."""

from __future__ import annotations

from dataclasses import dataclass, field

from sglang_eagle31.maths.shape import NO_SPECULATION, Shape
from sglang_eagle31.server.guard.evidence import Evidence, Outcome

LEAST_SPREAD = 0.5
"""Standard deviation of a round's tokens that is assumed at least, so that a few equal rounds prove nothing."""


@dataclass
class Probe:
    """Rounds with a draft while speculation is off."""

    shape: Shape
    evidence: Evidence
    rounds: int = 0
    requests: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """One round."""
        self.evidence.add(outcome)
        tokens = outcome.tokens
        self.rounds += 1
        self.requests += len(tokens)
        self.total += float(tokens.sum())
        self.squares += float((tokens * tokens).sum())

    @property
    def mean(self) -> float:
        """Tokens of a round and request."""
        return self.total / self.requests

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        variance = max(self.squares / self.requests - self.mean**2, LEAST_SPREAD**2)
        return float((variance / self.requests) ** 0.5)


@dataclass
class Regime:
    """State of the decision.

    Attributes:
        running: the shape in use; no speculation while it is off.
        untimed: shapes still to be run for their time, each as often as its number says.
        loss: plain steps lost against no speculation, reset to 0 whenever it falls below (a CUSUM).
        earned: plain steps won against no speculation since it is on.
        doubt: times in a row that it came back in vain; -1 once it has earned enough.
        recent: tokens of a round and request, over the last rounds.
        credit: plain steps that probing may lose.
        probe: the one that runs.
        turn: number of the probe, by which the shapes take turns.
        rounds: since the last change between on and off.
        since_plain: drafted rounds since the last plain one.
        last: the shape that ran before speculation went off.
        challenger: another shape that is predicted faster, and how many times in a row.
        streak: of the challenger.
        losing: predictions in a row by which the running shape surely loses.
    """

    running: Shape = NO_SPECULATION
    untimed: list[tuple[Shape, int]] = field(default_factory=list)
    loss: float = 0.0
    earned: float = 0.0
    doubt: int = -1
    recent: float = 1.0
    credit: float = 0.0
    probe: Probe | None = None
    turn: int = 0
    rounds: int = 0
    since_plain: int = 0
    last: Shape | None = None
    challenger: Shape | None = None
    streak: int = 0
    losing: int = 0

    def switch(self, shape: Shape) -> None:
        """Run another shape from now on."""
        if self.running.steps and not shape.steps:
            self.last, self.credit = self.running, 0.0
        if bool(self.running.steps) != bool(shape.steps):
            self.rounds, self.earned = 0, 0.0
        self.running, self.loss, self.probe = shape, 0.0, None
        self.challenger, self.streak, self.losing, self.since_plain = None, 0, 0, 0
