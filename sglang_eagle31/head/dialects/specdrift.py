"""SpecDrift: EAGLE 3.1 under its first names, ``use_aux_norm`` and ``aux_norm_low``, ``_mid``, ``_high``."""

from __future__ import annotations

from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.dialects.layout import Rules, norm_output_is_feedback
from sglang_eagle31.head.keys import Keys
from sglang_eagle31.head.reading import Reading, Target

NAME = "SpecDrift"


def recognise(head: Checkpoint) -> str | None:
    """By its names."""
    if "use_aux_norm" in head.config:
        return "config key use_aux_norm"
    named = any(name.startswith("aux_norm_") for name in head.tensors)
    return "tensors aux_norm_*" if named else None


def rules(head: Checkpoint) -> Rules:
    """SpecForge's layout, of which it is a fork."""
    names = tuple((rf"^aux_norm_{name}\.", f"fc_norm.{k}.") for k, name in enumerate(("low", "mid", "high")))
    return Rules(NAME, ((r"^midlayer\.", "layers.0."), *names), later=("hidden_norm",))


def settle(head: Checkpoint, target: Target, reading: Reading, keys: Keys) -> None:
    """``norm_output`` is the feedback, as in the SGLang code that its author wrote (PR 24663); false is doubtful."""
    flag = norm_output_is_feedback(reading, keys)
    if flag is not None and not flag.value:
        reading.ask(
            "feedback",
            "the head is SpecDrift's, which feeds the normed state back, but config.json has norm_output=false",
            "feedback=post (EAGLE 3.1) or feedback=pre, as it was trained",
        )
