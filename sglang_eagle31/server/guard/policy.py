"""Which shape the next round runs, so that speculation never costs more than it brings.

Unit of time: one plain step of the same batch, T0 = 1. A drafted round takes rho and gives E tokens a request, in which
time plain steps would give rho tokens; its gain is E - rho.

- **On.** The loss against no speculation is summed, never below 0 (CUSUM: Page, Continuous Inspection Schemes, 1954).
  At ``patience`` speculation goes off: so a phase that does not pay loses at most that much before. It goes off earlier
  where acceptance, which all batch sizes share, already shows with confidence that it loses.
- **Off.** Every plain step earns ``probing`` of credit. A probe starts when the credit pays for ``PROBE`` rounds that
  accept nothing, goes on while it pays for one more, and its gains and losses go into the credit. So n plain steps lose
  at most ``probing`` * n to probes, and tokens per time stay above 1 / (1 + ``probing``) of no speculation.
- **Back on** when a probe's gain is above ``margin`` and its lower confidence limit above 0.
- **Between shapes** that draft, when another is predicted faster by ``margin`` for ``STREAK`` predictions in a row.

Nothing is drawn by chance: the same rounds give the same decisions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sglang_eagle31.maths.expected import tokens
from sglang_eagle31.maths.shape import NO_SPECULATION, Shape
from sglang_eagle31.server.guard.evidence import Evidence, Outcome
from sglang_eagle31.server.guard.regime import LEAST_SPREAD, Probe, Regime
from sglang_eagle31.server.guard.timing import ENOUGH, Times

PROBE = 4
"""Rounds of a probe in which nothing is accepted; fewer where they hold `REQUESTS` requests."""
LONGEST_PROBE = 256
"""Rounds after which a probe that proves neither is given up."""
REQUESTS = 8
"""Request rounds that a probe needs to prove anything."""
CONFIDENCE, DOUBT = 3.0, 0.5
"""Standard errors between a probe's gain and its lower limit, and how many more for each time in a row (`MOST_DOUBT` at
most) that speculation came back and went off again before it had earned `EARNED` times the patience. A probe is looked
at after every round, so that a head that brings what it costs would else come back by chance again and again."""
MOST_DOUBT, EARNED = 4, 4
EVERY = 8
"""Rounds between two predictions."""
STREAK = 3
REFRESH = 64
"""Drafted rounds after which a plain one is run to time it; `EVERY` while this batch size has too few."""
RECENT = 16.0
"""Rounds over which recent tokens are averaged."""


@dataclass(frozen=True)
class Options:
    """How careful the guard is.

    Attributes:
        margin: relative gain below which nothing is changed.
        patience: plain steps that speculation may lose before it goes off.
        probing: share of the time that probes may lose while it is off.
        window: drafted rounds over which acceptance is remembered.
    """

    margin: float = 0.05
    patience: float = 12.0
    probing: float = 0.015
    window: float = 64.0


class Policy:
    """Decisions for one scheduler. Ask `choose` before a round, tell `observe` after it."""

    def __init__(self, shapes: Sequence[Shape], options: Options | None = None) -> None:
        """``shapes`` that are prepared, the one to begin with first; no speculation is always among them.

        Raises ValueError where none of them drafts.
        """
        self.shapes = [shape for shape in dict.fromkeys(shapes) if shape.steps]
        if not self.shapes:
            raise ValueError("guard: none of the prepared shapes drafts; fix: at least one with steps above 0")
        self.options = options or Options()
        depths, ranks = max(shape.steps for shape in self.shapes), max(shape.topk for shape in self.shapes)
        self.size = depths, ranks
        self.evidence = self._nothing()
        self.times = Times()
        self.regimes: dict[int, Regime] = {}
        self.changes = self.last_batch = 0

    def choose(self, batch: int) -> Shape:
        """The shape of the next round of so many requests."""
        regime = self.regime(batch)
        if regime.untimed:
            return regime.untimed[0][0]
        if not regime.running.steps:
            return regime.probe.shape if regime.probe else NO_SPECULATION
        due = EVERY if self.times.count(batch, NO_SPECULATION) < ENOUGH else REFRESH
        return NO_SPECULATION if regime.since_plain >= due else regime.running

    def learn(self, batch: int, shape: Shape, outcome: Outcome, seconds: float) -> None:
        """What a round took and gave, without deciding anything by it; arguments as those of `observe`."""
        self.times.add(batch, shape, seconds)
        self.last_batch = batch
        if shape.steps:
            self.evidence.add(outcome)

    def observe(self, batch: int, shape: Shape, outcome: Outcome, seconds: float) -> None:
        """One round that was run.

        Args:
            batch: its requests.
            shape: as it was run.
            outcome: what its verification gave.
            seconds: from its beginning to the next one's, no prefill in between.
        """
        self.learn(batch, shape, outcome, seconds)
        regime = self.regime(batch)
        if regime.untimed:
            self._timed(regime, batch, shape)
            return
        rho = self.rho(batch, shape)
        if rho is None:
            return
        regime.rounds += 1
        regime.since_plain = regime.since_plain + 1 if shape.steps else 0
        if regime.running.steps:
            self._on(regime, batch, shape, outcome, rho)
        else:
            self._off(regime, batch, shape, outcome, rho)

    def rho(self, batch: int, shape: Shape) -> float | None:
        """Time of a round in plain steps of the same batch; None while one of the two is unknown."""
        plain, seconds = self.times.seconds(batch, NO_SPECULATION), self.times.seconds(batch, shape)
        return seconds / plain if plain and seconds is not None else None

    def gains(self, batch: int) -> dict[Shape, float]:
        """Predicted tokens per time against no speculation, of the shapes whose time is known."""
        table = self.evidence.table()
        rhos = {shape: self.rho(batch, shape) for shape in self.shapes}
        known = {shape: tokens(shape, table) / rho for shape, rho in rhos.items() if rho}
        return {NO_SPECULATION: 1.0, **known}

    def regime(self, batch: int) -> Regime:
        """State for batches about as large: two ranges an octave."""
        place = _place(batch)
        if place not in self.regimes:
            order = sorted(self.shapes, key=lambda shape: (shape.draft_tokens, shape))
            self.regimes[place] = Regime(untimed=[(shape, ENOUGH) for shape in (NO_SPECULATION, *order)])
        return self.regimes[place]

    def realised(self, batch: int) -> float | None:
        """Recent tokens per time of the shape that runs, against no speculation; None while its time is unknown."""
        regime = self.regime(batch)
        rho = self.rho(batch, regime.running)
        return regime.recent / rho if rho and regime.running.steps else None if rho is None else 1.0

    def ranges(self) -> Iterator[tuple[str, Regime]]:
        """Each range of batch sizes that was run, by its smallest one."""
        for place, regime in sorted(self.regimes.items()):
            yield str(math.ceil(2 ** (place / 2))), regime

    def _timed(self, regime: Regime, batch: int, shape: Shape) -> None:
        """One of the rounds by which times are learnt; then begin with what is predicted best."""
        wanted, left = regime.untimed[0]
        if shape != wanted:
            return
        regime.untimed[0] = (wanted, left - 1)
        if left > 1:
            return
        del regime.untimed[0]
        narrower = self.rho(batch, wanted) or 0.0  # a wider one takes at least as long
        while regime.untimed and regime.untimed[0][0].steps + 1 <= narrower:
            del regime.untimed[0]
        if regime.untimed:
            return
        gains = self.gains(batch)
        known = self.evidence.requests >= REQUESTS * ENOUGH
        best = max(gains, key=lambda one: gains[one])
        regime.switch(best if known or self.shapes[0] not in gains else self.shapes[0])
        regime.recent = self.rho(batch, regime.running) or 1.0

    def _on(self, regime: Regime, batch: int, shape: Shape, outcome: Outcome, rho: float) -> None:
        if shape.steps:
            regime.recent += (outcome.mean - regime.recent) / RECENT
            regime.loss = max(0.0, regime.loss + rho - outcome.mean)
            regime.earned += outcome.mean - rho
            if regime.earned >= EARNED * self.options.patience:
                regime.doubt = -1
            if regime.loss >= self.options.patience:
                self._leave(regime, batch)
                return
        if regime.rounds % EVERY == 0:
            self._compare(regime, batch)

    def _leave(self, regime: Regime, batch: int) -> None:
        for size in [size for size in self.times.sizes(NO_SPECULATION) if _place(size) == _place(batch)]:
            self.times.forget(size, NO_SPECULATION)  # a stale time may be why
        self.changes += 1
        regime.doubt = min(regime.doubt + 1, MOST_DOUBT)
        regime.switch(NO_SPECULATION)

    def _compare(self, regime: Regime, batch: int) -> None:
        gains = self.gains(batch)
        running = gains.get(regime.running, 1.0)
        regime.losing = regime.losing + 1 if self._surely_loses(regime, batch, running) else 0
        if regime.losing >= STREAK:
            self._leave(regime, batch)
            return
        best = max((shape for shape in gains if shape.steps), key=lambda one: gains[one], default=regime.running)
        if best == regime.running or gains[best] < (1 + self.options.margin) * running:
            regime.challenger, regime.streak = None, 0
            return
        regime.streak = regime.streak + 1 if best == regime.challenger else 1
        regime.challenger = best
        if regime.streak >= STREAK:
            self.changes += 1
            regime.switch(best)

    def _surely_loses(self, regime: Regime, batch: int, gain: float) -> bool:
        """Whether all that is remembered, of other batch sizes too, says so. A geometric length varies by E(E - 1)."""
        rho = self.rho(batch, regime.running)
        if rho is None or self.evidence.requests < REQUESTS:
            return False
        given = gain * rho
        error = math.sqrt((given * (given - 1) + LEAST_SPREAD**2) / self.evidence.requests)
        return given + CONFIDENCE * error < rho

    def _off(self, regime: Regime, batch: int, shape: Shape, outcome: Outcome, rho: float) -> None:
        probe = regime.probe
        regime.credit += outcome.mean - rho if shape.steps else self.options.probing
        if not shape.steps:
            if regime.rounds == EVERY and self._left_in_error(regime, batch):
                assert regime.last is not None
                self._resume(regime, regime.last, regime.recent)
            elif probe is None and regime.rounds % EVERY == 0:
                regime.probe = self._next_probe(regime, batch)
            return
        if probe is None or shape != probe.shape:
            return
        probe.add(outcome)
        doubt = CONFIDENCE + DOUBT * regime.doubt
        proven = probe.mean > (1 + self.options.margin) * rho and probe.mean - doubt * probe.error > rho
        if proven and probe.requests >= REQUESTS:
            self.evidence = probe.evidence  # what was remembered is of a head that did not pay
            self._resume(regime, shape, probe.mean)
        elif regime.credit < rho - 1 or probe.rounds >= LONGEST_PROBE:
            regime.probe, regime.turn = None, regime.turn + 1
            regime.credit = min(regime.credit, 0.0)

    def _left_in_error(self, regime: Regime, batch: int) -> bool:
        """Whether plain steps, timed anew, turn out slower than the last shape was."""
        rho = self.rho(batch, regime.last) if regime.last else None
        return rho is not None and regime.recent > (1 + self.options.margin) * rho

    def _resume(self, regime: Regime, shape: Shape, given: float) -> None:
        self.changes += 1
        regime.switch(shape)
        regime.recent = given

    def _next_probe(self, regime: Regime, batch: int) -> Probe | None:
        """The shapes take turns, cheapest first; those too dear to pay even if all is accepted are left out."""
        rhos = [(rho, shape) for shape in self.shapes if (rho := self.rho(batch, shape)) is not None]
        able = sorted((rho, shape) for rho, shape in rhos if shape.steps + 1 > (1 + self.options.margin) * rho)
        if not able:
            return None
        shape = able[regime.turn % len(able)][1]
        return Probe(shape, self._nothing()) if regime.credit >= self._price(batch, shape) else None

    def _nothing(self) -> Evidence:
        return Evidence(*self.size, self.options.window)

    def _price(self, batch: int, shape: Shape) -> float:
        """Plain steps that a probe loses in which nothing is accepted."""
        least = EVERY * self.options.probing
        rounds = min(PROBE, math.ceil(REQUESTS / batch))
        return max(least, rounds * ((self.rho(batch, shape) or 1.0) - 1))


def _place(batch: int) -> int:
    return int(2 * math.log2(batch))
