"""SpecForge and its forks: ``LlamaForCausalLMEagle3`` with ``midlayer.*`` (or ``layers.N.*``) and ``t2d``.

What ``norm_output`` meant changed with its PR 879 (September 2026): before it, the flag decided only whether the logits
are normed, and the un-normed state was fed back whatever it said; since then it decides the feedback. The files of both
look the same.
"""

from __future__ import annotations

from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.dialects.layout import Rules, norm_output_is_feedback
from sglang_eagle31.head.keys import Keys
from sglang_eagle31.head.reading import Reading, Target

NAME = "SpecForge"


def recognise(head: Checkpoint) -> str | None:
    """By its class name together with ``t2d``; forks of it name the layers ``layers.N``."""
    named = "LlamaForCausalLMEagle3" in head.architectures
    layer = next((name for name in ("midlayer", "layers") if any(t.startswith(f"{name}.") for t in head.tensors)), None)
    found = named and layer and "t2d" in head.tensors
    return f"architectures LlamaForCausalLMEagle3 with {layer}.* and t2d" if found else None


def rules(head: Checkpoint) -> Rules:
    """Layer outputs under ``eagle_config``; only forks have more than one layer."""
    forked = any(name.startswith("layers.0.") for name in head.tensors)
    return Rules(NAME, shares_head="null", later=("hidden_norm",) if forked else ())


def settle(head: Checkpoint, target: Target, reading: Reading, keys: Keys) -> None:
    """Without ``norm_output`` the head is EAGLE-3; with it the files cannot tell which meaning it was trained with."""
    flag = norm_output_is_feedback(reading, keys)
    if flag is None and reading.values.get("pre_fc_norm") == "fc_norm":
        reading.ask(
            "feedback",
            "the head has fc_norm.* but config.json has no norm_output, whose default changed with SpecForge's PR 879",
            "feedback=post or feedback=pre, as it was trained",
        )
    elif flag is not None:
        reading.ask(
            "feedback",
            f"config.json says norm_output={str(flag.value).lower()}, which SpecForge read differently before and "
            "after its PR 879",
            "feedback=post for a head trained after it with norm_output=true, feedback=pre for one trained before it "
            "(and logits_norm=false if it said norm_output=false then)",
        )
