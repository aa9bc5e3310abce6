"""SpecForge: ``LlamaForCausalLMEagle3`` with ``midlayer.*`` and ``t2d``.

What ``norm_output`` meant changed with its PR 879 (September 2026): before it, the flag decided only whether the logits
are normed, and the un-normed state was fed back whatever it said; since then it decides the feedback. The files of both
look the same.
"""

from __future__ import annotations

from sglang_eagle31.drafter.checkpoint import Checkpoint
from sglang_eagle31.drafter.dialects.llama_layout import Rules, read_llama
from sglang_eagle31.drafter.reading import Reading, Target

NAME = "SpecForge"


def recognise(head: Checkpoint) -> str | None:
    """By its class name together with its layer name."""
    named = "LlamaForCausalLMEagle3" in (head.config.get("architectures") or ())
    layered = "t2d" in head.tensors and any(name.startswith("midlayer.") for name in head.tensors)
    return "architectures LlamaForCausalLMEagle3 with midlayer.* and t2d" if named and layered else None


def translate(head: Checkpoint, target: Target) -> Reading:
    """Without ``norm_output`` the head is EAGLE-3; with it the files cannot tell which meaning it was trained with."""
    reading = read_llama(head, target, Rules(NAME))
    flag = head.config.get("norm_output")
    if flag is None and reading.values.get("pre_fc_norm") == "fc_norm":
        reading.put("feedback", "pre", "no config key norm_output")
        reading.questions["feedback"] = (
            "the head has fc_norm.* but config.json has no norm_output, whose default changed with SpecForge's PR 879; "
            "fix: --eagle31-override feedback=post or feedback=pre, as it was trained"
        )
        return reading
    if flag is None:
        reading.put("feedback", "pre", "no config key norm_output: EAGLE-3 feedback")
        return reading
    reading.put("feedback", "post" if flag else "pre", f"config norm_output={flag}")
    reading.questions["feedback"] = (
        f"config.json says norm_output={str(flag).lower()}, which SpecForge read differently before and after its PR "
        "879; fix: --eagle31-override feedback=post for a head trained after it with norm_output=true, "
        "feedback=pre for one trained before it (and logits=raw if it said norm_output=false then)"
    )
    return reading
