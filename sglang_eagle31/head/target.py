"""A target's facts from its config.json alone: no weights, no transformers, no SGLang."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sglang_eagle31.head.checkpoint import Checkpoint, local_folder
from sglang_eagle31.head.keys import is_count
from sglang_eagle31.head.reading import Target
from sglang_eagle31.head.sglang_targets import CAPTURES_LAST_BOUNDARY

TEXT = ("text_config", "llm_config", "language_config")
IDS = "eagle_aux_hidden_state_layer_ids"


def read_target(path: str) -> Target:
    """The target at ``path`` (a folder, or a repository in the cache).

    Raises:
        ValueError: no config.json, or one that does not state the sizes.
    """
    folder = local_folder(path)
    file = folder / "config.json"
    if not file.is_file():
        raise ValueError(f"{folder} holds no config.json; fix: give the folder of the target")
    try:
        config = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is not JSON ({error}); fix: fetch it again") from error
    text = next((config[name] for name in TEXT if isinstance(config.get(name), Mapping)), config)
    sizes: dict[str, Any] = {name: text.get(name) for name in ("num_hidden_layers", "hidden_size", "vocab_size")}
    wrong = [f"{name}={value!r}" for name, value in sizes.items() if not is_count(value)]
    if wrong:
        raise ValueError(f"{file} has {', '.join(wrong)}, expected positive integers; fix: give a decoder's folder")
    architecture = str((config.get("architectures") or ["unknown"])[0])
    length: Any = text.get("max_position_embeddings")
    return Target(
        architecture=architecture,
        num_layers=int(sizes["num_hidden_layers"]),
        hidden_size=int(sizes["hidden_size"]),
        vocab_size=int(sizes["vocab_size"]),
        context_length=int(length) if is_count(length) else 2048,
        dtype=str(text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or "bfloat16"),
        folder=folder,
        last_boundary=architecture in CAPTURES_LAST_BOUNDARY,
    )


def guess_target(head: Checkpoint) -> Target:
    """What a head's own files say of a target that was not given; its depth stays unknown.

    Raises:
        ValueError: the files do not state the target's width or vocabulary.
    """
    config = {**_nested(head.config, "transformer_layer_config"), **head.config}
    ids = config.get(IDS) or _nested(config, "eagle_config").get(IDS)
    fc = next((tensor for name, tensor in head.tensors.items() if name.endswith("fc.weight")), None)
    t2d = next((tensor for name, tensor in head.tensors.items() if name.endswith("t2d")), None)
    states = len(ids) if isinstance(ids, list) and ids else 3
    width: Any = config.get("target_hidden_size")
    if not is_count(width):
        width = fc.shape[1] // states if fc and len(fc.shape) == 2 else config.get("hidden_size")
    vocabulary: Any = t2d.shape[0] if t2d and t2d.shape else config.get("vocab_size")
    if not is_count(width) or not is_count(vocabulary):
        raise ValueError(f"{head.folder} does not state its target's width or vocabulary; fix: --target TARGET")
    length: Any = config.get("max_position_embeddings")
    return Target("unknown", None, int(width), int(vocabulary), int(length) if is_count(length) else 1)


def _nested(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    inner = config.get(name)
    return inner if isinstance(inner, Mapping) else {}
