"""vLLM's own names: ``Eagle3LlamaForCausalLM`` or ``Eagle3Qwen3ForCausalLM`` with ``layers.N.*``, layer inputs."""

from __future__ import annotations

from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.dialects import layer_ids
from sglang_eagle31.head.dialects.layout import Rules, norm_output_is_feedback
from sglang_eagle31.head.dialects.window import by_layer_types
from sglang_eagle31.head.keys import Keys
from sglang_eagle31.head.reading import Reading, Target

NAME = "vLLM"
CLASSES = {"Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM"}


def recognise(head: Checkpoint) -> str | None:
    """By its class name."""
    named = set(head.architectures) & CLASSES
    return f"architectures {', '.join(sorted(named))}" if named else None


def rules(head: Checkpoint) -> Rules:
    """Ids at the top level are layer inputs, as vLLM takes them; elsewhere they may be copied outputs."""
    renames = ((r"^midlayer\.", "layers.0."), (r"^model\.", ""))
    return Rules(
        NAME,
        renames,
        ids_at=("",),
        ids="input",
        bias_flags=True,
        pre_fc=("none", "fc_norm", "input_norm"),
        shares_head="full",
        later=("input_layernorm",),
    )


def settle(head: Checkpoint, target: Target, reading: Reading, keys: Keys) -> None:
    """Flags as vLLM reads them: false when they are not written."""
    residual = keys.flag("norm_before_residual")
    if residual is not None:
        side = "post" if residual.value else "pre"
        reading.put("residual", side, f"{residual.source}={str(residual.value).lower()}")
    norm_output_is_feedback(reading, keys)
    ids = keys.ids(layer_ids.IDS, "")
    if ids is not None and layer_ids.look_copied(ids.value, target):
        layer_ids.ask_convention(
            reading, list(ids.value), "vLLM takes them as layer inputs, but these are the default layer outputs"
        )
    by_layer_types(reading, keys)
