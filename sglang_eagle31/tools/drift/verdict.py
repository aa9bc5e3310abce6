"""A verdict from slopes over depth, and from the step between prefill and the first drafted token.

Absolute shares say nothing: heads with post-norm feedback have a small sink share from step 1 on and do not drift
(attention drift, paper section 4.3: 0.11 to 0.10). What drifts changes *with depth*. Slopes are least squares over the
means of steps 1..K, and all changes are stated over 8 steps (7 intervals), whatever K was.

Attention that depends on the distance alone gives more to drafted tokens at every step, as more of its neighbours are
drafted; that is no drift. So what counts is the excess: the drafted share at depth d over what a row of depth 0 gives
to its last d keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sglang_eagle31.server.probe.record import Record

INTERVALS = 7
GROWTH = 1.1
"""RMS growth over 8 steps. Paper Table 2: 3.6x pre-norm and 0.99x post-norm on Llama 3.1 8B; 1.3x to 1.7x pre-norm in
Table 1's other targets."""
SHARE = 0.05
"""Change of an attention share over 8 steps. Paper Table 2: sink -0.38 and drafted +0.17 pre-norm; -0.01 and +0.03
post-norm."""
ENTRY = 0.67
"""Sink share at step 1 over that of the row before it. MTP heads fall to about 0.4 and stay there (paper Figure 7)."""
ENTRY_FLOOR = 0.02
"""Sink shares below it are too small for their ratio to mean anything."""
COLLAPSE = 0.7
"""Entropy in nats: two attended keys. The collapsed variants of paper Table 2 are at 0.63."""


STAYS = {"flat": "stays", "unclear": "may change (too few rows to say)"}
MOVES = {
    "leaves": "moves away from the sink or to drafted tokens",
    "flat": "does not drift",
    "unclear": "may move (too few rows to say)",
    "unknown": "is unknown",
}


@dataclass(frozen=True)
class Trend:
    """A quantity over steps 1..K.

    Attributes:
        first, last: means at steps 1 and K.
        change: over 8 steps by the fitted slope: a factor for ``factor`` trends, else a difference.
        low, high: the change two standard errors of the slope to either side.
    """

    first: float
    last: float
    change: float
    low: float
    high: float


@dataclass(frozen=True)
class Verdict:
    """What the numbers say.

    Attributes:
        steps: K.
        magnitude: ``grows``, ``shrinks``, ``flat``; ``unclear`` when the change is past its limit by less than two of
            its standard errors; ``unknown`` for fewer than two steps.
        attention: ``leaves`` when the sink loses, or drafted tokens gain more than distance explains; ``flat``,
            ``unclear`` or ``unknown``.
        entry: ``drops`` when the sink share falls between prefill and step 1, ``holds``, or ``unknown``.
        drift: ``none``, ``magnitude``, ``attention``, ``both``, ``unclear`` or ``unknown``.
        collapsed: steps whose entropy says that about one key is attended to.
        trends: growth of ``rms_fed``, change of each share, of entropy and cosine; ``excess`` is `excess`.
        prefill_to_step_1, step_1_to_last: sizes and shares of both ends.
        text: in plain words, one finding a line.
    """

    steps: int
    magnitude: str
    attention: str
    entry: str
    drift: str
    collapsed: tuple[int, ...]
    trends: dict[str, Trend]
    prefill_to_step_1: dict[str, tuple[float, float]]
    step_1_to_last: dict[str, tuple[float, float]]
    text: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """For JSON, with the thresholds that decided."""
        limits = {"growth": GROWTH, "share": SHARE, "entry": ENTRY, "entry_floor": ENTRY_FLOOR, "collapse": COLLAPSE}
        return {**asdict(self), "thresholds": {**limits, "steps": INTERVALS + 1}}


FOLLOWED = ("mass_sink", "mass_prompt", "mass_answer", "mass_drafted", "entropy", "cosine")


def judge(record: Record) -> Verdict:
    """The verdict on a record."""
    steps = record.steps
    last = steps[-1] if steps else 0
    trends = {name: trend for name in FOLLOWED if (trend := _trend(record, name)) is not None}
    over = _fit([(d, *point) for d in steps if (point := excess(record, d)) is not None])
    if over is not None:
        trends["excess"] = over
    growth = _trend(record, "rms_fed", factor=True)
    if growth is not None:
        trends = {"rms_fed": growth, **trends}
    magnitude, attention, entry = _magnitude(growth), _attention(trends), _entry(record)
    moved = [what for what, bad in (("magnitude", magnitude == "grows"), ("attention", attention == "leaves")) if bad]
    drift = "both" if len(moved) == 2 else moved[0] if moved else "none"
    open_ones = [word for word in ("unknown", "unclear") if word in (magnitude, attention)]
    if open_ones and not moved:
        drift = open_ones[0]
    collapsed = tuple(d for d in steps if (value := record.mean(d, "entropy")) is not None and value < COLLAPSE)
    names = ("rms_fed", *FOLLOWED)
    ends = _ends(record, names, 0, 1), _ends(record, names, 1, last) if last > 1 else {}
    text = tuple(_say(record, trends, magnitude, attention, entry, collapsed))
    return Verdict(last, magnitude, attention, entry, drift, collapsed, trends, *ends, text)


def _trend(record: Record, name: str, factor: bool = False) -> Trend | None:
    """None for fewer than two steps; ``factor`` fits the logarithm."""
    means = {depth: mean for depth in record.steps if (mean := record.mean(depth, name)) is not None}
    return _fit([(depth, mean, record.error(depth, name) or 0.0) for depth, mean in means.items()], factor)


def excess(record: Record, depth: int) -> tuple[float, float] | None:
    """Drafted share at a depth over what rows of depth 0 give to their last ``depth`` keys, and its standard error."""
    drafted, near = record.mean(depth, "mass_drafted"), record.mean(0, f"near_{depth}")
    if drafted is None or near is None:
        return None
    errors = record.error(depth, "mass_drafted") or 0.0, record.error(0, f"near_{depth}") or 0.0
    return drafted - near, math.hypot(*errors)


def _fit(points: Sequence[tuple[int, float, float]], factor: bool = False) -> Trend | None:
    """Depth, mean and standard error of each point."""
    if len(points) < 2 or (factor and min(value for _, value, _ in points) <= 0):
        return None
    depth = [d for d, _, _ in points]
    values = [math.log(value) if factor else value for _, value, _ in points]
    errors = [error / value if factor else error for _, value, error in points]
    slope, error = _slope(depth, values, errors)
    ends = [INTERVALS * (slope + shift * error) for shift in (0.0, -2.0, 2.0)]
    change, low, high = (math.exp(end) for end in ends) if factor else ends
    return Trend(points[0][1], points[-1][1], change, low, high)


def _slope(x: Sequence[int], y: Sequence[float], errors: Sequence[float]) -> tuple[float, float]:
    """Least-squares slope, and its standard error from those of the points."""
    middle = sum(x) / len(x)
    spread = sum((a - middle) ** 2 for a in x)
    weights = [(a - middle) / spread for a in x]
    slope = sum(w * b for w, b in zip(weights, y, strict=True))
    return slope, math.sqrt(sum((w * e) ** 2 for w, e in zip(weights, errors, strict=True)))


def _magnitude(growth: Trend | None) -> str:
    if growth is None:
        return "unknown"
    if growth.change > GROWTH:
        return "grows" if growth.low > GROWTH else "unclear"
    if growth.change < 1 / GROWTH:
        return "shrinks" if growth.high < 1 / GROWTH else "unclear"
    return "flat"


def _attention(trends: dict[str, Trend]) -> str:
    sink, drafted = trends.get("mass_sink"), trends.get("excess", trends.get("mass_drafted"))
    if sink is None or drafted is None:
        return "unknown"
    # An excess that rises and stays below zero is still less than distance explains.
    past = [sink.change < -SHARE, drafted.change > SHARE and drafted.last > 0]
    sure = [sink.high < -SHARE, drafted.low > SHARE]
    if not any(past):
        return "flat"
    return "leaves" if any(a and b for a, b in zip(past, sure, strict=True)) else "unclear"


def _entry(record: Record) -> str:
    before, after = record.mean(0, "mass_sink"), record.mean(1, "mass_sink")
    if before is None or after is None or before < ENTRY_FLOOR:
        return "unknown"
    return "drops" if after < ENTRY * before else "holds"


def _ends(record: Record, names: Sequence[str], one: int, other: int) -> dict[str, tuple[float, float]]:
    pairs = {name: (record.mean(one, name), record.mean(other, name)) for name in names}
    return {name: (a, b) for name, (a, b) in pairs.items() if a is not None and b is not None}


def _say(
    record: Record,
    trends: dict[str, Trend],
    magnitude: str,
    attention: str,
    entry: str,
    collapsed: Sequence[int],
) -> list[str]:
    lines = []
    count = len(record.steps)
    if growth := trends.get("rms_fed"):
        limits = f"{growth.low:.2f} to {growth.high:.2f}"
        lines.append(
            f"the state that is fed back {STAYS.get(magnitude, magnitude)}: RMS {growth.first:.3g} at step 1, "
            f"{growth.last:.3g} at step {record.steps[-1]}; {growth.change:.2f}x over 8 steps "
            f"({limits}; limit {GROWTH})"
        )
    if "mass_sink" in trends and "mass_drafted" in trends:
        sink, drafted = trends["mass_sink"], trends["mass_drafted"]
        over = trends.get("excess")
        beyond = f", of it {over.change:+.3f} ({over.low:+.3f} to {over.high:+.3f}) beyond distance" if over else ""
        lines.append(
            f"attention {MOVES[attention]}: over 8 steps sink {sink.change:+.3f} ({sink.low:+.3f} to {sink.high:+.3f})"
            f", drafted {drafted.change:+.3f}{beyond}; limit {SHARE}"
        )
        if over and over.change > SHARE and over.last <= 0:
            lines.append(
                f"at step {record.steps[-1]} drafted tokens still get {-over.last:.3f} less than a row of depth 0 "
                "gives to as many of its last keys"
            )
        lines.append(
            f"from step 1 to step {record.steps[-1]}: sink {sink.first:.3f} to {sink.last:.3f}, drafted "
            f"{drafted.first:.3f} to {drafted.last:.3f}"
        )
    if (strongest := record.mean(0, "mass_sink")) is not None and strongest < ENTRY_FLOOR:
        lines.append(f"there is no clear sink: the key with the most attention gets {strongest:.3f} in prefill")
    if entry != "unknown":
        before, after = record.mean(0, "mass_sink") or 0.0, record.mean(1, "mass_sink") or 0.0
        lines.append(f"between prefill and step 1 the sink share {entry}: {before:.3f} to {after:.3f}")
    if collapsed:
        lines.append(f"attention has collapsed on about one key at steps {', '.join(map(str, collapsed))}")
    if count < 2:
        lines.append(f"{count} drafted step(s) seen, and slopes need two; fix: more steps, or more requests")
    elif record.steps[-1] < 4:
        lines.append(f"slopes are extrapolated from steps 1 to {record.steps[-1]}")
    return lines
