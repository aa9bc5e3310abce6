"""Formats of ModelOpt (Hugging Face and Megatron exports), NVIDIA's published heads and NeMo AutoModel."""

from __future__ import annotations

from functools import partial
from typing import Any

from truth.producers_layout import (
    IDS,
    Config,
    Head,
    Variant,
    latent,
    llama,
    midlayer,
    midlayers,
    plain,
    scaling,
    variant,
    without,
)


def modelopt(head: Head, *, aux: bool = True, architecture: str = "LlamaForCausalLMEagle3", **eagle: Any) -> Config:
    """ModelOpt's template: every switch is under ``eagle_config``."""
    switches = {
        IDS: head.outputs if aux else [],
        "use_aux_hidden_state": aux,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
        "parallel_draft_heads_num_layers": 1,
        **eagle,
    }
    return llama(head, architecture, pad_token_id=None, eagle_config=switches)


def modelopt_mla(head: Head) -> Config:
    """The Kimi template, which has no ``draft_vocab_size``."""
    config = {**modelopt(head, architecture="Eagle3DeepseekV2ForCausalLM"), "model_type": "kimi_k2", **latent(head)}
    drop = ("draft_vocab_size", "head_dim", "mlp_bias", "pretraining_tp", "pad_token_id")
    return {key: value for key, value in config.items() if key not in drop}


def nvidia(head: Head, *, top: Config | None = None, **eagle: Any) -> Config:
    """A published head: ModelOpt's keys and some of TensorRT-LLM's."""
    switches = {
        IDS: head.outputs,
        "use_aux_hidden_state": True,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        **eagle,
    }
    return without({**llama(head, "LlamaForCausalLMEagle3", eagle_config=switches), **(top or {})})


def nvidia_v3(head: Head) -> Config:
    """Block inputs where the other heads have outputs, and one norm over all captured states."""
    switches: Config = {IDS: head.boundaries, "norm_before_fc": True}
    return nvidia(head, **switches)


def nvidia_no_aux(head: Head) -> Config:
    """Fed with the target's last state."""
    switches: Config = {IDS: [], "use_aux_hidden_state": False}
    return nvidia(head, **switches)


def target_config(head: Head, model_type: str) -> Config:
    """The target's own config, as transformers 5 writes it: its depth, its type and its class's other keys."""
    shape = head.shape
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "dtype": head.dtype_name,
        "eos_token_id": 2,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.inner,
        "max_position_embeddings": shape.max_positions,
        "mlp_bias": False,
        "model_type": model_type,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.target_layers,
        "num_key_value_heads": shape.kv_heads,
        "pad_token_id": None,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_parameters": {
            "rope_type": "default",
            **scaling(shape.rope_scaling or {}),
            "rope_theta": shape.rope_theta,
        },
        "transformers_version": "5.2.0",
        "use_cache": True,
        "vocab_size": shape.vocab,
    }


def nemo(head: Head, model_type: str = "llama", **more: Any) -> Config:
    """NeMo AutoModel: the target's config with the draft's keys on top; captured layers are not written."""
    draft = {
        "architectures": ["LlamaEagle3DraftModel"],
        "attn_implementation": "sdpa",
        "draft_vocab_size": head.draft_vocab,
        "fc_norm": False,
        "norm_output": False,
        "parallel_drafting": False,
        "target_hidden_size": head.shape.target_hidden,
        "tie_word_embeddings": False,
    }
    return without({**target_config(head, model_type), **draft, **more})


def nemo_mla(head: Head) -> Config:
    """A DeepSeek V3 target: latent attention, and keys of experts that the draft does not have."""
    experts = {"first_k_dense_replace": 3, "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2}
    return nemo(head, "deepseek_v3", **latent(head), head_dim=head.shape.rope, mlp_bias=..., **experts)


def nemo_gelu(head: Head) -> Config:
    """A Gemma 4 target's activation."""
    return nemo(head, "gemma4_text", hidden_act="gelu_pytorch_tanh", mlp_bias=...)


def model_prefix(name: str) -> str:
    """``model.*`` except for the head and the vocabulary map."""
    return name if name.startswith(("lm_head.", "d2t")) else f"model.{name}"


def _modelopt(name: str, config: Any, rename: Any = plain, producer: str = "modelopt_hf", **more: Any) -> Variant:
    return variant(name, producer, config, rename, **{"maps": "d2t", **more})


def _megatron(name: str, rename: Any = midlayer, *, weights: Config, config: Any = modelopt, **more: Any) -> Variant:
    return _modelopt(name, config, rename, "modelopt_megatron", weights=weights, **more)


def _nvidia(name: str, config: Any = nvidia, rename: Any = midlayer, **more: Any) -> Variant:
    return _modelopt(name, config, rename, "nvidia", **{"asks_layers": "unless default", **more})


def _nemo(name: str, config: Any = nemo, producer: str = "nemo", **more: Any) -> Variant:
    weights = {"own_embedding": True, **more.pop("weights", {})}
    return variant(name, producer, config, model_prefix, weights=weights, ids="absent", **more)


_FULL: Config = {"reduced": False}
_DEEP: Config = {"layers": 2, "later_norm": "hidden_norm"}
_NO_AUX: Config = {"use_aux_hidden_state": False}

VARIANTS: tuple[Variant, ...] = (
    _modelopt("modelopt_hf", modelopt),
    _modelopt("modelopt_hf_two_layers", modelopt, weights={"layers": 2}),
    _modelopt("modelopt_mla", modelopt_mla, weights={"attention": "mla", **_FULL}, yarn=True),
    _modelopt(
        "modelopt_no_aux", partial(modelopt, aux=False), weights={**_NO_AUX, "first_norms": ("input_layernorm",)}
    ),
    _megatron("modelopt_megatron", weights={}, omits=("d2t",), refused="d2t is missing: its export never writes it"),
    _megatron("modelopt_megatron_full_vocab", weights=_FULL),
    _megatron(
        "modelopt_megatron_deep",
        midlayers,
        weights={**_FULL, **_DEEP},
        config=partial(modelopt, architecture="LlamaForCausalLMEagle3Deep"),
    ),
    _megatron(
        "modelopt_megatron_no_first_norm",
        weights={**_FULL, "first_norms": ("input_layernorm",)},
        config=partial(modelopt, use_input_layernorm_in_first_layer=False),
    ),
    _megatron(
        "modelopt_megatron_no_last_norm",
        weights={**_FULL, "final_norm": False},
        config=partial(modelopt, use_last_layernorm=False),
    ),
    _nvidia("nvidia"),
    _nvidia("nvidia_v3", nvidia_v3, weights={"pre_fc_norm": "input_norm"}, ids="boundary", asks_layers="unless last"),
    _nvidia("nvidia_post_norm", partial(nvidia, return_hidden_post_norm=True), feedback="post"),
    _nvidia("nvidia_no_head", partial(nvidia, top={"draft_vocab_size": None}), weights={**_FULL, "own_head": False}),
    _nvidia(
        "nvidia_wide",
        partial(nvidia, next_layer_regular=False),
        midlayers,
        weights={"layers": 2, "later_norm": "both"},
    ),
    _nvidia("nvidia_deep", partial(nvidia, next_layer_regular=True), midlayers, weights=_DEEP),
    _nvidia("nvidia_fc_bias", partial(nvidia, top={"bias": True}), plain, weights={"fc_bias": True}),
    _nvidia("nvidia_no_aux", nvidia_no_aux, weights=_NO_AUX, asks_layers="never"),
    _nemo("nemo"),
    _nemo("nemo31", partial(nemo, fc_norm=True, norm_output=True), weights={"pre_fc_norm": "fc_norm"}, feedback="post"),
    _nemo("nemo_bias", partial(nemo, attention_bias=True), weights={"biases": ("qkv", "o")}),
    _nemo("nemo_mlp_bias", partial(nemo, mlp_bias=True), weights={"biases": ("mlp",)}),
    _nemo("nemo_mla", nemo_mla, "nemo_mla", weights={"attention": "mla"}),
    _nemo("nemo_gelu", nemo_gelu, hidden_act="gelu_pytorch_tanh"),
)
