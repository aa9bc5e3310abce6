"""What the target captures: SGLang's model class before it loads, and its captured layers after SGLang set them."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def model_class(architecture: str) -> type | None:
    """SGLang's class for an architecture, importing only the module that defines it; None if none is found."""
    spec = importlib.util.find_spec("sglang.srt.models")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for file in sorted(Path(folder).glob("*.py")):
            if re.search(rf"^class {re.escape(architecture)}\b", file.read_text(), re.MULTILINE):
                module = importlib.import_module(f"sglang.srt.models.{file.stem}")
                found: type | None = getattr(module, architecture, None)
                return found
    return None


def capturing_modules(model: Any) -> Iterator[Any]:
    """The modules of a target that hold the list of captured boundaries."""
    return (module for module in model.modules() if getattr(module, "layers_to_capture", None))


def align_capture(model: Any, boundaries: list[int]) -> list[int]:
    """Make the target capture exactly ``boundaries``, whatever rule SGLang's class applied to the ids.

    Args:
        model: the loaded target, after SGLang called ``set_eagle3_layers_to_capture``.
        boundaries: ascending block inputs that the head was trained on.

    Returns:
        the boundaries that SGLang had set.

    Raises:
        ValueError: the target marks its captured layers in a way that cannot be read back, so they cannot be checked.
    """
    holders = list(capturing_modules(model))
    if not holders:
        raise ValueError(
            f"{type(model).__name__} does not show which layers it captures, so that they cannot be checked against "
            f"the head's {boundaries}; fix: serve this target without EAGLE31"
        )
    had = sorted(int(layer) for layer in holders[0].layers_to_capture)
    for holder in holders:
        if sorted(holder.layers_to_capture) != boundaries:
            _set(holder, boundaries)
    return had


def _set(holder: Any, boundaries: list[int]) -> None:
    """Targets read the list or, some of them, a mark that only their captured layers have; both are set."""
    layers = list(getattr(holder, "layers", ()))
    if any(hasattr(layer, "_is_layer_to_capture") for layer in layers):
        for index, layer in enumerate(layers):
            layer._is_layer_to_capture = index in boundaries
    holder.layers_to_capture = list(boundaries)
