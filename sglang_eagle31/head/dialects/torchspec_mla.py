"""TorchSpec, MLA heads (Kimi, DeepSeek): ``Eagle3DeepseekV2ForCausalLM``, latent attention of width 2H."""

from __future__ import annotations

from dataclasses import replace

from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.dialects import modelopt, torchspec
from sglang_eagle31.head.dialects.layout import Rules, norm_output_is_feedback
from sglang_eagle31.head.dialects.sizes import put_mla_scale
from sglang_eagle31.head.keys import Keys
from sglang_eagle31.head.reading import Reading, Target

NAME = "TorchSpec MLA"


def recognise(head: Checkpoint) -> str | None:
    """By latent attention with TorchSpec's provenance, or with its architecture and no trace of ModelOpt."""
    latent = any(name.endswith("self_attn.kv_a_proj_with_mqa.weight") for name in head.tensors)
    if not latent:
        return None
    evidence = torchspec.recognise(head)
    if evidence:
        return f"{evidence}, kv_a_proj_with_mqa"
    named = "Eagle3DeepseekV2ForCausalLM" in head.architectures
    ours = named and modelopt.recognise(head) is None
    return "architectures Eagle3DeepseekV2ForCausalLM with kv_a_proj_with_mqa" if ours else None


def rules(head: Checkpoint) -> Rules:
    """Layer outputs, except in its export for vLLM of a Kimi head, which adds one."""
    return replace(torchspec.rules(head), producer=NAME, ids_at=("eagle_config.", ""))


def settle(head: Checkpoint, target: Target, reading: Reading, keys: Keys) -> None:
    """Interleaved RoPE; yarn's mscale enters the softmax scale."""
    norm_output_is_feedback(reading, keys)
    put_mla_scale(reading, with_mscale=True)
    torchspec.ask_export(head, reading, keys)
    torchspec.note_pruning(reading)
    if reading.values["rope_scaling"] and reading.values["rope_theta"] != 10000.0:
        reading.notes.append(
            f"some of its versions built scaled RoPE with base 10000 whatever the config said; rope_theta="
            f"{reading.values['rope_theta']:g} is used; if acceptance is low, try --eagle31-override rope_theta=10000"
        )
