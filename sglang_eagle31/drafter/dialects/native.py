"""Heads of this package: those of its trainer (SpecForge's layout, marked) and staged ones (the spec itself)."""

from __future__ import annotations

from sglang_eagle31.drafter.checkpoint import Checkpoint
from sglang_eagle31.drafter.dialects.llama_layout import Rules, read_llama
from sglang_eagle31.drafter.reading import Reading, Target
from sglang_eagle31.drafter.spec import DrafterSpec

NAME = "sglang-eagle31"
TRAINED = "sglang_eagle31_version"
STAGED = "eagle31_spec"
STAGED_NAMES = "eagle31_names"


def recognise(head: Checkpoint) -> str | None:
    """By the key that our exporter or our staging writes."""
    return next((f"config key {key}" for key in (STAGED, TRAINED) if key in head.config), None)


def translate(head: Checkpoint, target: Target) -> Reading:
    """A staged head states its spec; in a trained one ``norm_output`` says whether the post-norm state is fed back."""
    if STAGED in head.config:
        return _staged(head)
    reading = read_llama(head, target, Rules(NAME))
    post = bool(head.config.get("norm_output", False))
    reading.put("feedback", "post" if post else "pre", f"config norm_output={post}")
    return reading


def _staged(head: Checkpoint) -> Reading:
    spec = DrafterSpec.from_json(head.config[STAGED])
    reading = Reading(spec.producer)
    for name, value in spec.to_json().items():
        if name not in ("producer", "sources"):
            reading.put(name, value, spec.sources.get(name, "staged spec"))
    reading.names.update(head.config[STAGED_NAMES])
    return reading
