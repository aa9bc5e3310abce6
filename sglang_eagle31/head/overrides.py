"""``--eagle31-override KEY=VALUE``: the facts that a user may state, and how their values are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def one_of(*allowed: str) -> Callable[[str], str]:
    """A parser that takes one of a few words."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"expected {' or '.join(allowed)}")
        return text

    return parse


def flag(text: str) -> bool:
    """true or false."""
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.lower() == "true"


def logits(text: str) -> str:
    """Whether the logits are normed."""
    return "norm" if flag(text) else "raw"


def boundaries(text: str) -> tuple[int, ...]:
    """Block numbers, e.g. ``2,15,27``."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError("expected block numbers, e.g. 2,15,27") from error


def positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    """A parser for a positive integer or number."""

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = 0
        if not 0 < value < float("inf"):
            raise ValueError(f"expected a positive {'integer' if kind is int else 'number'}")
        return value

    return parse


def window(text: str) -> float | None:
    """Keys that a query sees, itself included, or ``none``."""
    return None if text == "none" else positive(int)(text)


OVERRIDES: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "aux_layers": ("boundaries", boundaries),
    "feedback": ("feedback", one_of("pre", "post")),
    "residual": ("residual", one_of("pre", "post")),
    "logits_norm": ("logits", logits),
    "pre_fc_norm": ("pre_fc_norm", one_of("none", "fc_norm", "input_norm")),
    "double_norm": ("double_norm", flag),
    "own_embedding": ("own_embedding", flag),
    "rope_theta": ("rope_theta", positive(float)),
    "max_position_embeddings": ("max_position_embeddings", positive(int)),
    "sliding_window": ("sliding_window", window),
}
FREE = ("producer", "ignore")
"""Overrides of the reading itself: who wrote the head, and config keys that mean nothing (comma-separated)."""


def pairs(items: list[str]) -> dict[str, str]:
    """``KEY=VALUE`` items as a mapping. Raises ValueError for one without ``=``."""
    wrong = [item for item in items if "=" not in item]
    if wrong:
        raise ValueError(f"--override {wrong[0]}: expected KEY=VALUE; fix: for example --override feedback=post")
    return {key.strip(): value.strip() for key, _, value in (item.partition("=") for item in items)}
