"""The formats that a head can be written in: config.json and tensor names for a DrafterSpec.

A format writes what it has words for. Whether that is the whole head is checked on the result, by what its engine would
make of it (`convert.run`), so nothing here refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sglang_eagle31.head.dialects.layer_ids import IDS
from sglang_eagle31.head.reading import Target
from sglang_eagle31.head.spec import DrafterSpec
from sglang_eagle31.tools.audit.engines import sglang_capture

LAYER_IN_SPECFORGE = "midlayer."
OWN_OF_SPECULATORS = ("target_hidden_size", "torch_dtype")
"""Keys that speculators writes at the top level and not in the nested layer config."""


@dataclass(frozen=True)
class Format:
    """How one format writes a head.

    Attributes:
        config: config.json of a spec on a target.
        rename: canonical tensor name to the format's.
        always_d2t: whether ``d2t`` is written even when the vocabularies are the same (zeros then).
    """

    config: Callable[[DrafterSpec, Target, str], dict[str, Any]]
    rename: Callable[[str], str]
    always_d2t: bool = False


def sglang(spec: DrafterSpec, target: Target, dtype: str) -> dict[str, Any]:
    """For stock SGLang: the ids that make its class for this target capture the head's boundaries."""
    latent = spec.attention == "mla"
    config = {
        "architectures": ["Eagle3DeepseekV2ForCausalLM" if latent else "LlamaForCausalLMEagle3"],
        "model_type": "deepseek_v3" if latent else "llama",
        **_layers(spec, dtype),
        "draft_vocab_size": _own_vocabulary(spec),
        "bias": spec.fc_bias,
        "attention_bias": spec.qkv_bias or spec.o_bias,
        "mlp_bias": spec.mlp_bias,
        "norm_output": spec.feedback == "post",
        **_norms(spec),
        "eagle_config": {"use_aux_hidden_state": spec.use_aux_hidden_state},
    }
    if spec.use_aux_hidden_state:
        config["eagle_config"][IDS] = _ids_for(spec, target)
    if latent:
        config |= _latent(spec)
    return config


def specforge(spec: DrafterSpec, target: Target, dtype: str) -> dict[str, Any]:
    """For SpecForge, after its PR 879: ``norm_output`` is the feedback."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **_layers(spec, dtype),
        "draft_vocab_size": spec.draft_vocab_size,
        "norm_output": spec.feedback == "post",
        "fc_norm": spec.pre_fc_norm == "fc_norm",
        "eagle_config": {IDS: [b - 1 for b in spec.boundaries], "use_aux_hidden_state": True},
    }


def vllm(spec: DrafterSpec, target: Target, dtype: str) -> dict[str, Any]:
    """For vLLM: a speculators config (layer inputs at the top level), or a flat one for MLA, which that cannot say."""
    if spec.attention == "mla":
        return {
            "architectures": ["Eagle3DeepseekV2ForCausalLM"],
            "model_type": "kimi_k2",  # vLLM takes a deepseek_v3 draft for MTP
            **_layers(spec, dtype),
            **_latent(spec),
            **_norms(spec),
            "draft_vocab_size": _own_vocabulary(spec),
            "norm_output": spec.feedback == "post",
            "norm_before_residual": spec.residual == "post",
            IDS: list(spec.boundaries),
        }
    layer = {name: value for name, value in _layers(spec, dtype).items() if name not in OWN_OF_SPECULATORS}
    layer |= {"model_type": "qwen3" if spec.qk_norm else "llama"}
    layer |= {"attention_bias": spec.qkv_bias, "mlp_bias": spec.mlp_bias}
    if spec.sliding_window is not None:
        sliding = ["sliding_attention"] * spec.num_layers
        layer |= {"sliding_window": spec.sliding_window, "use_sliding_window": True, "layer_types": sliding}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.5.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": None, "architectures": [target.architecture]},
        },
        "transformer_layer_config": layer,
        "draft_vocab_size": _own_vocabulary(spec),
        "target_hidden_size": None if spec.target_hidden_size == spec.hidden_size else spec.target_hidden_size,
        "norm_before_residual": spec.residual == "post",
        "norm_before_fc": spec.pre_fc_norm == "input_norm",
        "fc_norm": spec.pre_fc_norm == "fc_norm",
        "norm_output": spec.feedback == "post",
        IDS: list(spec.boundaries),
        "torch_dtype": dtype,
    }


def _layers(spec: DrafterSpec, dtype: str) -> dict[str, Any]:
    scaling = dict(spec.rope_scaling) if spec.rope_scaling else None
    partial = {} if spec.partial_rotary_factor == 1 else {"partial_rotary_factor": spec.partial_rotary_factor}
    return {
        "hidden_size": spec.hidden_size,
        "target_hidden_size": spec.target_hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "hidden_act": spec.hidden_act,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_theta": spec.rope_theta,
        "rope_scaling": scaling,
        **partial,
        "max_position_embeddings": spec.max_position_embeddings,
        "vocab_size": spec.vocab_size,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
    }


def _own_vocabulary(spec: DrafterSpec) -> int | None:
    """Null says that the head shares the target's ``lm_head``."""
    return spec.draft_vocab_size if spec.own_head else None


def _norms(spec: DrafterSpec) -> dict[str, Any]:
    return {"fc_norm": spec.pre_fc_norm == "fc_norm", "norm_before_fc": spec.pre_fc_norm == "input_norm"}


def _latent(spec: DrafterSpec) -> dict[str, Any]:
    names = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return {name: getattr(spec, name) for name in names}


def _ids_for(spec: DrafterSpec, target: Target) -> list[int]:
    """Layer outputs, unless SGLang's rule for this target takes the boundaries themselves."""
    outputs = [boundary - 1 for boundary in spec.boundaries]
    if target.num_layers is None:
        return outputs
    for ids in (outputs, list(spec.boundaries)):
        if sglang_capture(target.architecture, ids, target.num_layers) == spec.boundaries:
            return ids
    return outputs


def midlayer(name: str) -> str:
    """``layers.0.`` as ``midlayer.``."""
    return name.replace("layers.0.", LAYER_IN_SPECFORGE, 1) if name.startswith("layers.0.") else name


def canonical(name: str) -> str:
    """``layers.N.``, as this package and vLLM have it."""
    return name


FORMATS: Mapping[str, Format] = {
    "sglang": Format(sglang, canonical),
    "vllm": Format(vllm, canonical),
    "specforge": Format(specforge, midlayer, always_d2t=True),
}
