"""An engine's effect on a head, and its comparison with what the head was trained to compute."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sglang_eagle31.head.spec import DrafterSpec

Kind = Literal["exact", "wrong", "stops", "unknown"]


@dataclass(frozen=True)
class Loss:
    """Something of the head that the engine leaves out or makes up.

    ``field`` names the spec field that shows the same; it is said only once, by the field if there is a spec.
    """

    text: str
    field: str | None = None


@dataclass(frozen=True)
class Stops:
    """The engine refuses or crashes: while it starts, or at its first forward pass.

    With CUDA graphs the first forward pass is part of the start.
    """

    when: Literal["start", "first request"]
    why: str


@dataclass(frozen=True)
class Runs:
    """The engine serves the head.

    Attributes:
        fields: values of DrafterSpec fields that the engine uses; a field that it cannot be told for is absent.
        causes: where in the engine each field is decided.
        losses: what is lost, whatever the spec says.
        open: what decides over right or wrong and cannot be told from the files at hand.
        notes: what holds only with another setting of the engine; it decides nothing here.
    """

    fields: Mapping[str, Any]
    causes: Mapping[str, str] = field(default_factory=dict)
    losses: tuple[Loss, ...] = ()
    open: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


Effect = Stops | Runs


@dataclass(frozen=True)
class Outcome:
    """What one engine would do with a head.

    Attributes:
        kind: ``exact`` as trained, ``wrong`` (serves another function), ``stops``, or ``unknown``.
        reasons: one sentence each; notes on other settings come last, also when exact.
        versions: of the engine that was read.
        evidence: ``read`` from its source, or what a caller has seen.
    """

    kind: Kind
    reasons: tuple[str, ...]
    versions: str
    evidence: str = "read"

    def to_json(self) -> dict[str, Any]:
        """A JSON object, as ``audit --json`` prints it."""
        return {
            "outcome": self.kind,
            "reasons": list(self.reasons),
            "versions": self.versions,
            "evidence": self.evidence,
        }


def compare(effect: Effect, spec: DrafterSpec | None, versions: str, evidence: str = "read") -> Outcome:
    """The engine's effect against the head's spec; without a spec, losses alone decide."""
    if isinstance(effect, Stops):
        return Outcome("stops", (f"at {effect.when}: {effect.why}",), versions, evidence)
    differing = [] if spec is None else [name for name in effect.fields if _differs(name, effect.fields[name], spec)]
    reasons = [_sentence(name, effect, spec) for name in differing]
    shown = set() if spec is None else set(effect.fields)
    reasons += [loss.text for loss in effect.losses if loss.field not in shown]
    if reasons:
        return Outcome("wrong", (*reasons, *effect.open, *effect.notes), versions, evidence)
    if spec is None or effect.open:
        unread = (
            () if spec else ("what the head was trained to compute is not settled, so only losses were looked for",)
        )
        return Outcome("unknown", (*effect.open, *unread, *effect.notes), versions, evidence)
    return Outcome("exact", effect.notes, versions, evidence)


def _sentence(name: str, effect: Runs, spec: DrafterSpec | None) -> str:
    cause = effect.causes.get(name)
    text = f"{name}: runs {effect.fields[name]!r}, trained with {getattr(spec, name)!r}"
    return f"{text} ({cause})" if cause else text


def _differs(name: str, value: Any, spec: DrafterSpec) -> bool:
    if not hasattr(spec, name) or (name == "later_norm" and spec.num_layers == 1):
        return False
    wanted = getattr(spec, name)
    if name == "softmax_scale" and wanted is None:
        return False
    if name == "rope_scaling":
        return plain_rope(value) != plain_rope(wanted)
    if isinstance(value, float) or isinstance(wanted, float):
        return value is None or wanted is None or not math.isclose(value, wanted, rel_tol=1e-6)
    if isinstance(value, tuple):
        return set(value) != set(wanted)
    return bool(value != wanted)


def plain_rope(scaling: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """RoPE scaling without base, partial factor and the older key ``type``; None for the default kind."""
    if not scaling:
        return None
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return None
    rest = {k: v for k, v in scaling.items() if k not in ("rope_theta", "type", "rope_type", "partial_rotary_factor")}
    return {"rope_type": kind, **{k: v for k, v in rest.items() if v is not None}}
