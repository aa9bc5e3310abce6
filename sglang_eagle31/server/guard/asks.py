"""What requests ask of speculation, in SGLang's ``custom_params``: a cap on their drafts, or a shape to measure.

``{"speculative_num_steps": N}`` caps the drafted tokens of a round of this request; 0 is no speculation for it.
``{"eagle31_shape": "3,1,4"}`` pins the shape of every round whose requests all pin the same, for measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_eagle31.maths.shape import NO_SPECULATION, Shape

CAP, PIN = "speculative_num_steps", "eagle31_shape"


@dataclass(frozen=True)
class Asks:
    """Of one batch.

    Attributes:
        caps: steps that each request allows; None where it does not say.
        pin: the shape that all requests pin.
    """

    caps: tuple[int | None, ...]
    pin: Shape | None = None

    @classmethod
    def of(cls, params: Sequence[dict[str, Any] | None]) -> Asks:
        """From the ``custom_params`` of each request; what `wrong` finds fault with counts as not said."""
        if not any(params):
            return cls((None,) * len(params))
        caps = tuple(_cap(one) for one in params)
        pins = {_pin(one) for one in params}
        return cls(caps, pins.pop() if len(pins) == 1 else None)

    def fit(self, wanted: Shape, shapes: Sequence[Shape]) -> Shape:
        """``wanted``, or where no request may draft so deep, the widest of ``shapes`` that one may."""
        if None in self.caps:
            return wanted
        most = max(cap for cap in self.caps if cap is not None)
        if wanted.steps <= most:
            return wanted
        able = [one for one in shapes if 0 < one.steps <= most and one.draft_tokens <= wanted.draft_tokens]
        return max(able, key=lambda one: (one.draft_tokens, one.steps), default=NO_SPECULATION)

    def capped(self, shape: Shape) -> dict[int, int]:
        """Steps by row, of the requests that allow fewer than ``shape`` drafts."""
        return {row: cap for row, cap in enumerate(self.caps) if cap is not None and cap < shape.steps}


def depth(params: dict[str, Any] | None, steps: int) -> int:
    """Steps of a round that count for a request with these ``custom_params``."""
    cap = _cap(params)
    return steps if cap is None else min(cap, steps)


def wrong(params: dict[str, Any] | None, rejection: Callable[[], bool] = lambda: False) -> str | None:
    """What is wrong with the ``custom_params`` of a request, and the fix; None where nothing is.

    ``rejection`` says whether the server verifies by rejection sampling, whose kernel reads no tree and so no cap.
    """
    if not isinstance(params, dict):
        return None
    if params.get(CAP) is not None and _cap(params) is None:
        return f"custom_params {CAP}={params[CAP]!r}: expected a number of steps; fix: 0 (no speculation) or more"
    if params.get(CAP) is not None and rejection():
        return (
            f"custom_params {CAP}={params[CAP]!r}: --speculative-use-rejection-sampling accepts drafts past it; fix: "
            "leave it out, or a server without that flag"
        )
    if params.get(PIN) is not None and _pin(params) is None:
        return f"custom_params {PIN}={params[PIN]!r}: expected steps,topk,draft_tokens; fix: for example 3,1,4"
    return None


def _cap(params: dict[str, Any] | None) -> int | None:
    value = params.get(CAP) if isinstance(params, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _pin(params: dict[str, Any] | None) -> Shape | None:
    text = params.get(PIN) if isinstance(params, dict) else None
    try:
        return Shape.parse(text) if isinstance(text, str) else None
    except ValueError:
        return None
