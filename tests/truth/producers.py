"""The same draft head in the file format of every producer, independent of the package that reads them.

write(folder, "nemo31")                            a head of the default shape, seed 0
VARIANTS["nemo31"].facts(Shape())                  what it computes
VARIANTS["specforge31"].answers(Shape())           what its user has to state, e.g. {"feedback": "post"}
write(folder, "specforge", change={"norm.weight": None}, config={"rope_theta": ...})    broken on purpose
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from truth import producers_speculators, producers_trainers, producers_vendors
from truth.producers_layout import Variant
from truth.producers_strangers import STRANGERS, Stranger
from truth.producers_weights import Shape, canonical

__all__ = ["STRANGERS", "VARIANTS", "Shape", "Stranger", "Variant", "canonical", "head", "save", "write"]

VARIANTS: Mapping[str, Variant] = {
    variant.name: variant
    for module in (producers_trainers, producers_speculators, producers_vendors)
    for variant in module.VARIANTS
}
"""Everything that a producer writes and that is an EAGLE-3 or EAGLE 3.1 chain, by name."""


def head(variant: str, shape: Shape | None = None, seed: int = 0, **knobs: Any) -> dict[str, Tensor]:
    """`canonical` weights as ``variant`` has them; ``knobs`` are those of `canonical`, e.g. ``own_embedding``."""
    return canonical(shape or Shape(), seed, **{**VARIANTS[variant].weights, **knobs})


def save(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> Path:
    """``config.json`` and ``model.safetensors``; the folder is made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    # Tensors that share memory cannot be saved.
    save_file(
        {name: tensor.clone().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors", metadata
    )
    return folder


def write_target(folder: Path, shape: Shape | None = None, **changes: Any) -> Path:
    """The config.json of the target that heads of ``shape`` are for, with ``changes`` on top; it has no weights."""
    shape = shape or Shape()
    config = {
        "architectures": [shape.target_architecture],
        "num_hidden_layers": shape.target_layers,
        "hidden_size": shape.target_hidden,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.max_positions,
        **changes,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write(
    folder: Path,
    variant: str,
    shape: Shape | None = None,
    seed: int = 0,
    weights: Mapping[str, Tensor] | None = None,
    config: Mapping[str, Any] | None = None,
    change: Mapping[str, Tensor | None] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """Write a head as its producer does.

    Args:
        folder: made if it is not there.
        variant: a key of `VARIANTS` or `STRANGERS`.
        shape: sizes; the default shape without.
        seed: of the weights.
        weights: canonical names; `head` without. Not for strangers.
        config: keys on top of the producer's; ``...`` as a value removes the key.
        change: tensors by the producer's names on top; None removes the tensor. They keep their dtype.
        dtype: of the floating-point tensors.

    Returns:
        ``folder``.
    """
    shape = shape or Shape()
    if variant in STRANGERS:
        assert weights is None, f"{variant} is no EAGLE-3 head: it has no canonical weights"
        made, drawn = STRANGERS[variant].build(shape, seed)
        tensors = {name: value.to(dtype) if value.is_floating_point() else value for name, value in drawn.items()}
        metadata = {"format": "pt"}
    else:
        given = head(variant, shape, seed) if weights is None else weights
        made, tensors, metadata = VARIANTS[variant].files(given, shape, dtype)
    merged = {key: value for key, value in {**made, **(config or {})}.items() if value is not ...}
    kept = {name: value for name, value in {**tensors, **(change or {})}.items() if value is not None}
    return save(folder, merged, kept, metadata)
