"""SafeAILab EAGLE-3: ``midlayer.*`` under a plain Llama config, no layer ids, no norm flags."""

from __future__ import annotations

from sglang_eagle31.drafter.checkpoint import Checkpoint
from sglang_eagle31.drafter.dialects.llama_layout import Rules, read_llama
from sglang_eagle31.drafter.reading import Reading, Target

NAME = "SafeAILab EAGLE-3"


def recognise(head: Checkpoint) -> str | None:
    """By its layer name under the architecture of a plain Llama, or under SGLang's name when it was repackaged."""
    names = set(head.config.get("architectures") or ("LlamaForCausalLM",))
    plain = names <= {"LlamaForCausalLM", "LlamaForCausalLMEagle3"} and "eagle_config" not in head.config
    layered = "fc.weight" in head.tensors and any(name.startswith("midlayer.") for name in head.tensors)
    return "midlayer.* under a plain Llama config" if plain and layered else None


def translate(head: Checkpoint, target: Target) -> Reading:
    """Captures the input of blocks 2, N//2 and N-3, as its code does; the pre-norm state is fed back."""
    reading = read_llama(head, target, Rules(NAME))
    reading.put("feedback", "pre", "EAGLE-3 as SafeAILab publishes it")
    if "norm_output" in head.config or reading.values.get("pre_fc_norm") == "fc_norm":
        reading.refusals.append(
            "the head has norm_output or fc_norm.*, which SafeAILab's EAGLE-3 does not know, and nothing else tells "
            "who trained it; fix: restore the eagle_config that its trainer wrote"
        )
    return reading
