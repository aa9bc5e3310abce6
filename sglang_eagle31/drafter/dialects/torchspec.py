"""TorchSpec, Llama heads: ``_torchspec_version`` in config.json or ``torchspec_version`` in the files' metadata."""

from __future__ import annotations

from sglang_eagle31.drafter.checkpoint import Checkpoint
from sglang_eagle31.drafter.dialects.llama_layout import Rules, read_llama
from sglang_eagle31.drafter.reading import Reading, Target

NAME = "TorchSpec"


def recognise(head: Checkpoint) -> str | None:
    """By the provenance that its converter writes."""
    if "_torchspec_version" in head.config:
        return "config key _torchspec_version"
    return "safetensors metadata torchspec_version" if "torchspec_version" in head.metadata else None


def translate(head: Checkpoint, target: Target) -> Reading:
    """EAGLE 3.1 came with norm_output meaning post-norm feedback (PR 97), so the flag decides."""
    reading = read_llama(head, target, Rules(NAME))
    post = bool(head.config.get("norm_output", False))
    reading.put("feedback", "post" if post else "pre", f"config norm_output={post}")
    return reading
