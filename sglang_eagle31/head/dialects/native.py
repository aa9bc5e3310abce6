"""Heads of this package: those of its trainer (SpecForge's layout, marked) and staged ones (the spec itself)."""

from __future__ import annotations

from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.dialects.layout import Rules, norm_output_is_feedback
from sglang_eagle31.head.dialects.window import by_layer_types
from sglang_eagle31.head.keys import Keys
from sglang_eagle31.head.reading import Reading, Target
from sglang_eagle31.head.spec import DrafterSpec

NAME = "sglang-eagle31"
TRAINED = "sglang_eagle31_version"
DEPTH = "sglang_eagle31_trained_depth"
STAGED = "eagle31_spec"
STAGED_NAMES = "eagle31_names"


def recognise(head: Checkpoint) -> str | None:
    """By the key that our exporter writes."""
    return f"config key {TRAINED}" if TRAINED in head.config else None


def rules(head: Checkpoint) -> Rules:
    """SpecForge's layout."""
    return Rules(NAME, shares_head="null")


def settle(head: Checkpoint, target: Target, reading: Reading, keys: Keys) -> None:
    """``norm_output`` says whether the post-norm state is fed back; a window has transformers' keys."""
    norm_output_is_feedback(reading, keys)
    if keys.find("layer_types") is not None:  # the exporter writes it beside a window; a window alone is a question
        by_layer_types(reading, keys)
    depth = keys.count(DEPTH)
    if depth is not None:
        reading.notes.append(f"trained with {depth.value} unrolled draft steps ({depth.source})")


def staged(head: Checkpoint) -> Reading:
    """The reading of a staged head, which states its spec. A broken spec is a refusal."""
    try:
        spec = DrafterSpec.from_json(head.config[STAGED])
        names = {str(old): str(new) for old, new in head.config[STAGED_NAMES].items()}
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        refusal = f"config.json has a broken {STAGED} ({error}); fix: give the head that was staged, not the cache"
        return Reading(NAME, refusals=[refusal])
    reading = Reading(spec.producer, f"config key {STAGED}", names=names)
    for name, value in spec.to_json().items():
        if name not in ("producer", "sources"):
            kept = tuple(value) if isinstance(value, list) else value
            reading.put(name, kept, spec.sources.get(name, "staged spec"))
    return reading
