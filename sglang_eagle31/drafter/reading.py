"""What a dialect made of a checkpoint: the fields of the spec, open questions, and reasons to refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sglang_eagle31.drafter.spec import DrafterSpec


@dataclass(frozen=True)
class Target:
    """Facts of the target model that a head is read against; ``context_length`` is what the server will serve."""

    architecture: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    context_length: int
    dtype: str = "auto"


@dataclass
class Reading:
    """A head as one dialect reads it.

    Attributes:
        values: spec fields found so far.
        sources: where each value came from.
        names: original tensor name to canonical name.
        questions: facts that the files cannot decide, as field name to the message that names the override.
        refusals: reasons for which the head cannot be run as it was trained.
    """

    producer: str
    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    questions: dict[str, str] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)

    def put(self, name: str, value: Any, source: str) -> None:
        """Set one spec field with its source."""
        self.values[name] = value
        self.sources[name] = source

    def override(self, pairs: Mapping[str, str]) -> None:
        """Apply ``--eagle31-override`` pairs; a bad key or value becomes a refusal."""
        for key, text in pairs.items():
            if key not in OVERRIDES:
                known = ", ".join(OVERRIDES)
                self.refusals.append(f"--eagle31-override {key}={text}: unknown key; known: {known}")
                continue
            name, parse = OVERRIDES[key]
            try:
                self.put(name, parse(text), f"--eagle31-override {key}={text}")
            except ValueError as error:
                self.refusals.append(f"--eagle31-override {key}={text}: {error}")
            self.questions.pop(name, None)

    def reasons(self) -> list[str]:
        """Every reason to refuse: refusals and open questions."""
        return self.refusals + list(self.questions.values())

    def spec(self) -> DrafterSpec:
        """The finished spec; call it only when `reasons` is empty."""
        return DrafterSpec(producer=self.producer, sources=dict(self.sources), **self.values)


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"expected {' or '.join(allowed)}")
        return text

    return parse


def _boundaries(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError("expected block numbers, e.g. 2,15,27") from error


def _positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = 0
        if not 0 < value < float("inf"):
            raise ValueError(f"expected a positive {'integer' if kind is int else 'number'}")
        return value

    return parse


OVERRIDES: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "aux_layers": ("boundaries", _boundaries),
    "feedback": ("feedback", _one_of("pre", "post")),
    "residual": ("residual", _one_of("pre", "post")),
    "logits": ("logits", _one_of("norm", "raw")),
    "rope_theta": ("rope_theta", _positive(float)),
    "max_position_embeddings": ("max_position_embeddings", _positive(int)),
    "sliding_window": ("sliding_window", _positive(int)),
}
