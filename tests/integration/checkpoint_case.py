"""What a case of the matrix is, and how a head is written that is trained or damaged in one way of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import markers
from markers import SHAPE
from torch import Tensor
from truth import producers

IDS = "eagle_aux_hidden_state_layer_ids"
LLAMA = {"architectures": ["LlamaForCausalLMEagle3"]}
ELSEWHERE = (1, 3, 6)
"""Captured layers other than the default triple of the target, 2, 4, 5."""
AWAY = replace(SHAPE, boundaries=ELSEWHERE)
FOUR = replace(SHAPE, boundaries=(1, 3, 5, 6))
ONE = replace(SHAPE, boundaries=(4,))
SAY_AWAY = {"aux_layers": "1,3,6"}


@dataclass(frozen=True)
class Case:
    """One folder with a head.

    Attributes:
        name: of the folder.
        kind: ``producer`` as it writes, ``broken`` in one way, ``another`` kind of draft, or ``untold``: the files do
            not show how it was trained.
        title: what the file is, for users.
        write: writes it.
        overrides: what its user has to say.
        reports: public reports of the same, as ``repository#number``.
        algorithm: of stock SGLang.
        long_context: the head is fine, and the server's context is too long for it.
    """

    name: str
    kind: Literal["producer", "broken", "another", "untold"]
    title: str
    write: Callable[[Path], Path]
    overrides: Mapping[str, str] = field(default_factory=dict)
    reports: tuple[str, ...] = ()
    algorithm: str = "EAGLE3"
    long_context: bool = False


def head(
    variant: str,
    shape: producers.Shape = SHAPE,
    *,
    config: Mapping[str, Any] | None = None,
    change: Callable[[dict[str, Tensor]], Mapping[str, Tensor | None]] | None = None,
    trained: Mapping[str, Any] | None = None,
    **knobs: Any,
) -> Callable[[Path], Path]:
    """A writer: the variant's head, trained with other switches or weights, and then changed on disk.

    ``change`` gets the canonical weights and returns tensors by the names on disk, None for one that is removed.
    """

    def write(folder: Path) -> Path:
        weights = markers.weights_of(variant, shape, trained, **knobs)
        changes = change(weights) if change else None
        return producers.write(folder, variant, shape, weights=weights, config=config, change=changes)

    return write


def without(*names: str) -> Callable[[dict[str, Tensor]], Mapping[str, None]]:
    """A change that removes tensors."""
    return lambda weights: dict.fromkeys(names)


def eagle_config(**keys: Any) -> dict[str, Any]:
    """The whole ``eagle_config`` of a config.json."""
    return {"eagle_config": {"use_aux_hidden_state": True, **keys}}


def outputs(shape: producers.Shape) -> list[int]:
    """The captured layers by the ids of their outputs."""
    return [b - 1 for b in shape.boundaries]
