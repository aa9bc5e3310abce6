"""Positions: RoPE base, scaling, the rotated part of a head, and the length that the head was made for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_eagle31.head.keys import Found, Keys, is_number
from sglang_eagle31.head.reading import Reading

MOST_POSITIONS = 2**24
KINDS: Mapping[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor", "original_max_position_embeddings"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
    "yarn": frozenset(
        {"factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow"}
        | {"mscale", "mscale_all_dim", "truncate"}
    ),
}
"""Kinds of scaling, and their numbers."""
NEEDED: dict[str, tuple[str, ...]] = {kind: ("factor",) for kind in KINDS if kind != "default"}
NEEDED["llama3"] = ("factor", "low_freq_factor", "high_freq_factor")
NOT_SCALING = ("rope_type", "type", "rope_theta", "partial_rotary_factor")


def read_rope(reading: Reading, keys: Keys) -> None:
    """Put ``rope_theta``, ``rope_scaling``, ``partial_rotary_factor`` and ``max_position_embeddings``."""
    parameters, legacy = keys.mapping("rope_parameters"), keys.mapping("rope_scaling")
    both = parameters or legacy
    if parameters and legacy and _differ(parameters, legacy):
        reading.refusals.append(
            "config.json has rope_parameters and another rope_scaling; fix: keep the one it was trained with"
        )
    inner: Mapping[str, Any] = both.value if both else {}
    _base(reading, keys, both, inner)
    scaling = _scaling(both) if both else None
    length = keys.count("max_position_embeddings")
    fallback = int(keys.default("max_position_embeddings") or 2048)
    positions = int(length.value) if length else fallback
    source = length.source if length else f"default of {keys.class_name}"
    reading.put("max_position_embeddings", positions, source)
    before = keys.count("original_max_position_embeddings")
    if both and scaling is not None and before is not None and scaling["rope_type"] in ("llama3", "yarn"):
        scaling["original_max_position_embeddings"] = before.value  # transformers: the config's own key wins
    wrong = _wrong(inner, scaling) or _too_long(positions, scaling)
    if legacy and not wrong:
        wrong = _wrong(legacy.value, _scaling(legacy))
    if wrong:
        where = both.where if both else "max_position_embeddings"
        reading.refusals.append(f"config.json has {where}={dict(inner) or positions}: {wrong}")
    reading.put("rope_scaling", scaling, both.source if both else "no scaling in the config")
    _partial(reading, keys, inner)


def ask_base(reading: Reading) -> None:
    """Where the training code used base 10000 whatever the config said, another base in the config is a question."""
    base = reading.values["rope_theta"]
    if base != 10000.0:
        reading.ask(
            "rope_theta",
            f"config.json has rope_theta={base:g}; the training code of {reading.producer} used RoPE base 10000 "
            "whatever the config said, its inference code reads the config",
            f"rope_theta=10000 if it was trained by that code, rope_theta={base:g} if by one that reads the config",
        )


def _differ(one: Found, other: Found) -> bool:
    """Whether two statements of the same disagree; a base or a part that only one of them has is no disagreement."""
    both = set(one.value) & set(other.value)
    return _scaling(one) != _scaling(other) or any(one.value[name] != other.value[name] for name in both)


def _partial(reading: Reading, keys: Keys, inner: Mapping[str, Any]) -> None:
    top, nested = keys.number("partial_rotary_factor"), inner.get("partial_rotary_factor")
    factor = nested if nested is not None else top.value if top else 1.0
    rotated = factor * reading.values["head_dim"] if is_number(factor) else 0
    if not is_number(factor) or factor > 1 or int(rotated) % 2 or int(rotated) < 2:
        has = f"config.json has partial_rotary_factor={factor!r} of head_dim={reading.values['head_dim']}"
        reading.refusals.append(f"{has}, expected 0 to 1 and an even number of rotated dimensions; fix: correct it")
        factor = 1.0
    elif top and float(top.value) != float(factor):
        has = f"config.json has {top.where}={top.value} and partial_rotary_factor={factor} beside the RoPE scaling"
        reading.refusals.append(f"{has}; fix: keep the one it was trained with")
    reading.put("partial_rotary_factor", float(factor), "config" if factor != 1 else "whole heads are rotated")


def _wrong(inner: Mapping[str, Any], scaling: Mapping[str, Any] | None) -> str:
    """What is wrong with a RoPE scaling, with the fix; "" if nothing is."""
    kind, other = inner.get("rope_type"), inner.get("type")
    if kind is not None and other is not None and kind != other:
        return f"rope_type {kind!r} and type {other!r}; fix: keep the one it was trained with"
    kind = next((value for value in (kind, other) if value is not None), "default")
    if not isinstance(kind, str) or kind not in KINDS:
        return f"type {kind!r}, and this package runs {', '.join(KINDS)}; fix: serve this head elsewhere"
    given = {name: value for name, value in inner.items() if name not in NOT_SCALING and value is not None}
    if "truncate" in inner and inner["truncate"] is None:
        return "truncate null; fix: true or false"
    unknown = sorted(set(given) - KINDS[kind])
    if unknown:
        return f"{', '.join(map(str, unknown))} of type {kind!r} is not run by this package; fix: serve it elsewhere"
    ill = sorted(
        name
        for name, value in given.items()
        if not (isinstance(value, bool) if name == "truncate" else _is_size(value))
    )
    ill += [name for name in NEEDED.get(kind, ()) if not is_number(given.get(name))]
    zero = [
        name for name, value in given.items() if value == 0 and name not in ("mscale", "mscale_all_dim", "truncate")
    ]
    if ill or zero:
        return f"{', '.join(dict.fromkeys(ill + zero))} is not a number that it can be; fix: correct it"
    if scaling is not None and kind == "llama3" and scaling["low_freq_factor"] >= scaling["high_freq_factor"]:
        return "low_freq_factor is not below high_freq_factor; fix: correct it"
    return ""


def _too_long(positions: int, scaling: Mapping[str, Any] | None) -> str:
    """SGLang makes a table of every position, of yarn's for the stretched original length."""
    stretched = positions
    if scaling is not None and scaling.get("rope_type") == "yarn" and is_number(scaling.get("factor")):
        old = scaling.get("original_max_position_embeddings", positions)
        stretched = int(float(old) * float(scaling["factor"])) if is_number(old) else positions
    if max(positions, stretched) <= MOST_POSITIONS:
        return ""
    return f"a table of {max(positions, stretched)} positions, more than {MOST_POSITIONS}; fix: correct the length"


def _base(reading: Reading, keys: Keys, both: Found | None, inner: Mapping[str, Any]) -> None:
    top, nested = keys.number("rope_theta"), inner.get("rope_theta")
    if nested is not None and not is_number(nested):
        reading.refusals.append(f"config.json has rope_theta={nested!r}, expected a positive number; fix: correct it")
        nested = None
    if top and nested is not None and float(top.value) != float(nested):
        reading.ask(
            "rope_theta",
            f"config.json has rope_theta={top.value} and {both.where if both else ''}.rope_theta={nested}",
            f"rope_theta={top.value} or rope_theta={nested}, as it was trained",
        )
    if top:
        reading.put("rope_theta", float(top.value), top.source)
    elif nested is not None:
        reading.put("rope_theta", float(nested), f"{both.source if both else 'config'}.rope_theta")
    else:
        reading.put("rope_theta", float(keys.default("rope_theta") or 10000.0), f"default of {keys.class_name}")


def _scaling(found: Found) -> dict[str, Any] | None:
    inner = found.value
    kind = inner.get("rope_type", inner.get("type"))
    if kind in (None, "default"):
        return None
    rest = {name: value for name, value in inner.items() if name not in NOT_SCALING and value is not None}
    return {"rope_type": kind, **{name: _real(name, value) for name, value in rest.items()}}


def _real(name: str, value: Any) -> Any:
    """SGLang builds some tables for real numbers only."""
    return float(value) if name == "factor" and is_number(value) else value


def _is_size(value: Any) -> bool:
    return is_number(value) or (value == 0 and not isinstance(value, bool))
