"""TorchSpec, Llama heads: ``_torchspec_version`` in config.json or ``torchspec_version`` in the files' metadata."""

from __future__ import annotations

from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.dialects import layer_ids
from sglang_eagle31.head.dialects.layout import Rules, norm_output_is_feedback
from sglang_eagle31.head.keys import EAGLE, Keys
from sglang_eagle31.head.reading import Reading, Target

NAME = "TorchSpec"


def recognise(head: Checkpoint) -> str | None:
    """By the provenance that its converter writes."""
    if "_torchspec_version" in head.config:
        return "config key _torchspec_version"
    return "safetensors metadata torchspec_version" if "torchspec_version" in head.metadata else None


def rules(head: Checkpoint) -> Rules:
    """Layer outputs under ``eagle_config``, except in its export for vLLM of a Kimi head, which adds one."""
    exported = any(name.startswith("layers.0.") for name in head.tensors)
    inputs = exported and head.config.get("model_type") == "kimi_k2"
    return Rules(NAME, ids="input" if inputs else "output")


def settle(head: Checkpoint, target: Target, reading: Reading, keys: Keys) -> None:
    """EAGLE 3.1 came with ``norm_output`` meaning post-norm feedback (PR 97), so the flag decides."""
    norm_output_is_feedback(reading, keys)
    ask_export(head, reading, keys)
    note_pruning(reading)


def ask_export(head: Checkpoint, reading: Reading, keys: Keys) -> None:
    """Its export for vLLM raises the ids of Kimi heads, so they are open where the model type is not stated."""
    ids = keys.ids(layer_ids.IDS, EAGLE, "")
    exported = any(name.startswith("layers.0.") for name in head.tensors)
    if exported and ids is not None and head.config.get("model_type") is None:
        why = "TorchSpec's export for vLLM writes layer inputs for a Kimi head, and config.json has no model_type"
        layer_ids.ask_convention(reading, list(ids.value), why)


def note_pruning(reading: Reading) -> None:
    """Its ``--prune-vocab`` takes wrong rows of ``lm_head``, and the files do not show whether it was used."""
    if reading.values.get("vocab_map"):
        reading.notes.append(
            "if its vocabulary was pruned by convert_to_hf --prune-vocab, lm_head has wrong rows in every engine; "
            "acceptance near 1.0 means that: train with draft_vocab_size instead"
        )
