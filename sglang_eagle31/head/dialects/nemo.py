"""NeMo AutoModel: ``LlamaEagle3DraftModel`` over the *target's* config, ``model.layers.0.*``, default layers."""

from __future__ import annotations

from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.dialects.layout import Rules, norm_output_is_feedback
from sglang_eagle31.head.dialects.sizes import put_mla_scale
from sglang_eagle31.head.dialects.window import ask_window
from sglang_eagle31.head.keys import Keys
from sglang_eagle31.head.reading import Reading, Target

NAME = "NeMo AutoModel"


def recognise(head: Checkpoint) -> str | None:
    """By its class name, which it writes for every backbone, or by its prefix."""
    named = "LlamaEagle3DraftModel" in head.architectures
    if named:
        return "architectures LlamaEagle3DraftModel"
    layered = "model.fc.weight" in head.tensors and "model.layers.0.hidden_norm.weight" in head.tensors
    return "tensors model.fc and model.layers.0.hidden_norm" if layered else None


def rules(head: Checkpoint) -> Rules:
    """Ids are not written: the default layers. Its config is the target's, whose keys mean nothing in the head."""
    target_keys = {"qk_norm", "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"}
    target_keys |= {"quantization_config", "compression_config", "num_experts_per_tok", "norm_topk_prob"}
    return Rules(
        NAME, ((r"^model\.", ""),), ids_at=(), bias_flags=True, gemma_keys=True, ignored=frozenset(target_keys)
    )


def settle(head: Checkpoint, target: Target, reading: Reading, keys: Keys) -> None:
    """``norm_output`` is the feedback; its MLA does not apply yarn's mscale."""
    norm_output_is_feedback(reading, keys)
    put_mla_scale(reading, with_mscale=False)
    ask_window(reading, keys)
