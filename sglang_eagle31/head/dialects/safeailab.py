"""SafeAILab EAGLE-3: ``midlayer.*`` under a plain Llama config, no layer ids, no norm flags."""

from __future__ import annotations

from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.dialects import layer_ids
from sglang_eagle31.head.dialects.layout import Rules
from sglang_eagle31.head.dialects.rope import ask_base
from sglang_eagle31.head.keys import Keys
from sglang_eagle31.head.reading import Reading, Target

NAME = "SafeAILab EAGLE-3"


def recognise(head: Checkpoint) -> str | None:
    """By its layer name under the architecture of a plain Llama, or under SGLang's name when it was repackaged."""
    plain = set(head.architectures) <= {"LlamaForCausalLM", "LlamaForCausalLMEagle3"}
    layered = "fc.weight" in head.tensors and any(name.startswith("midlayer.") for name in head.tensors)
    found = plain and layered and "eagle_config" not in head.config
    return "midlayer.* under a plain Llama config" if found else None


def rules(head: Checkpoint) -> Rules:
    """Captures the input of blocks 2, N//2 and N-3, as its code does."""
    return Rules(NAME, ids="input")


def settle(head: Checkpoint, target: Target, reading: Reading, keys: Keys) -> None:
    """The pre-norm state is fed back; EAGLE 3.1 is not its business."""
    if keys.find("norm_output") or reading.values.get("pre_fc_norm") == "fc_norm":
        reading.refusals.append(
            "the head has norm_output or fc_norm.*, which SafeAILab's EAGLE-3 does not know, and nothing else tells "
            "who trained it; fix: --eagle31-override producer=NAME, or restore the eagle_config that its trainer wrote"
        )
    if "t2d" not in head.tensors and reading.values["use_aux_hidden_state"]:
        found = (
            "config.json has no eagle_config and the file no t2d, which SafeAILab writes: it may have lost layer ids"
        )
        reading.ask("aux_layers", found, layer_ids.OVERRIDE)
    ask_base(reading)
