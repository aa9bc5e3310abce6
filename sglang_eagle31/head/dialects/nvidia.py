"""Heads that NVIDIA publishes: ModelOpt's files with TensorRT-LLM's keys under ``eagle_config``."""

from __future__ import annotations

from dataclasses import replace

from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.dialects import layer_ids, modelopt
from sglang_eagle31.head.dialects.layout import Rules, norm_output_is_feedback
from sglang_eagle31.head.dialects.sizes import put_mla_scale
from sglang_eagle31.head.keys import EAGLE, Keys
from sglang_eagle31.head.reading import Reading, Target

NAME = "NVIDIA"
WRITTEN = ("norm_before_fc", "return_hidden_post_norm", "eh_proj_before_attn", "eh_proj_bias")


def recognise(head: Checkpoint) -> str | None:
    """By the keys that only TensorRT-LLM reads."""
    eagle = head.config.get("eagle_config")
    key = next((key for key in WRITTEN if isinstance(eagle, dict) and key in eagle), None)
    return f"config key {EAGLE}{key}" if key else None


def rules(head: Checkpoint) -> Rules:
    """ModelOpt's."""
    return replace(
        modelopt.rules(head),
        producer=NAME,
        pre_fc=("none", "fc_norm", "input_norm"),
        later=("input_layernorm", "hidden_norm", "both"),
    )


def settle(head: Checkpoint, target: Target, reading: Reading, keys: Keys) -> None:
    """Post-norm feedback under two names; layer ids in two conventions."""
    modelopt.settle_norms(target, reading, keys)
    put_mla_scale(reading, with_mscale=True)
    norm_output_is_feedback(reading, keys, "", EAGLE)
    post = keys.flag("return_hidden_post_norm", EAGLE)
    if post is not None and post.value:
        reading.put("feedback", "post", f"{post.source}=true")
    projected = keys.flag("eh_proj_before_attn", EAGLE)
    keys.find("eh_proj_bias", EAGLE)
    if projected is not None and projected.value:
        reading.refusals.append(
            f"config.json has {projected.where}=true: embedding and state are projected before attention; this package "
            "does not run it; fix: serve this head with TensorRT-LLM"
        )
    _ask_ids(target, reading, keys)


def _ask_ids(target: Target, reading: Reading, keys: Keys) -> None:
    """Heads with ``norm_before_fc`` were published with layer inputs, the others with layer outputs."""
    if reading.values["pre_fc_norm"] != "input_norm":
        return
    ids = keys.ids(layer_ids.IDS, EAGLE)
    if ids is None:
        return
    if target.num_layers is None or max(ids.value) < target.num_layers:
        layer_ids.ask_convention(
            reading, list(ids.value), "NVIDIA published layer outputs, and layer inputs with norm_before_fc"
        )
