"""Formats of speculators: the draft's layer config is nested and written as differences from its class's defaults."""

from __future__ import annotations

from functools import partial
from typing import Any

from truth.producers_layout import IDS, Config, Head, Variant, plain, scaling, variant

LLAMA_DEFAULTS: Config = {
    "attention_bias": False,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "mlp_bias": False,
    "num_hidden_layers": 32,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
"""Of transformers 4's ``LlamaConfig``."""


def layer_config(head: Head, window: bool) -> Config:
    """A ``LlamaConfig`` of transformers 4, less what equals its defaults."""
    shape = head.shape
    config = {
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "max_position_embeddings": shape.max_positions,
        "model_type": "llama",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": head.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_scaling": None if shape.rope_scaling is None else dict(shape.rope_scaling),
        "rope_theta": shape.rope_theta,
        "torch_dtype": head.dtype_name,
        "vocab_size": shape.vocab,
    }
    if window:
        config |= {"layer_types": ["sliding_attention"] * head.layers, "sliding_window": shape.window}
    absent = object()
    return {key: value for key, value in config.items() if LLAMA_DEFAULTS.get(key, absent) != value}


def new_layer_config(head: Head, model_type: str) -> Config:
    """A layer config of transformers 5: RoPE's base is in ``rope_parameters``, and most keys are written."""
    shape = head.shape
    config = {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": head.dtype_name,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "max_position_embeddings": shape.max_positions,
        "model_type": model_type,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": head.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_parameters": {
            "rope_type": "default",
            **scaling(shape.rope_scaling or {}),
            "rope_theta": shape.rope_theta,
        },
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": shape.vocab,
    }
    if model_type == "qwen3":
        full = ["full_attention"] * head.layers
        return {**config, "layer_types": full, "sliding_window": None, "use_sliding_window": False}
    return {**config, "mlp_bias": False, "pretraining_tp": 1}


def speculators(head: Head, layer: Config, **switches: Any) -> Config:
    """The parts that all have; captured layers are block inputs at the top level."""
    return {
        "architectures": ["Eagle3Speculator"],
        "draft_vocab_size": head.draft_vocab,
        IDS: head.boundaries,
        "embed_requires_grad": False,
        "fc_norm": False,
        "norm_before_fc": False,
        "norm_before_residual": False,
        "norm_output": False,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"architectures": [head.shape.target_architecture], "name_or_path": "target"},
        },
        "speculators_model_type": "eagle3",
        "speculators_version": "0.5.0",
        "target_hidden_size": None,
        "torch_dtype": head.dtype_name,
        "transformer_layer_config": layer,
        "transformers_version": "4.57.1",
        **switches,
    }


def trained(head: Head, window: bool = False, **switches: Any) -> Config:
    """A head of the trainer."""
    return speculators(head, layer_config(head, window), **switches)


def recent(head: Head, model_type: str = "llama", **switches: Any) -> Config:
    """A head of the trainer, saved with transformers 5 and by the class's name."""
    config = speculators(head, new_layer_config(head, model_type), **switches)
    config |= {"architectures": ["Eagle3DraftModel"], "dtype": head.dtype_name, "transformers_version": "5.2.0"}
    del config["torch_dtype"]
    return config


def unstated(head: Head) -> Config:
    """Without ``norm_before_residual``, for which the class and vLLM have different defaults."""
    config = trained(head)
    del config["norm_before_residual"]
    return config


def converted(head: Head) -> Config:
    """``speculators convert``, early: output ids copied into a key that means inputs, and no key of later norms."""
    config = trained(head, auto_map={"": "eagle3.Eagle3SpeculatorConfig"}, speculators_version="0.1.0")
    config[IDS] = head.outputs
    later = ("embed_requires_grad", "fc_norm", "norm_before_fc", "norm_output")
    return {key: value for key, value in config.items() if key not in later}


def _variant(name: str, config: Any, producer: str = "speculators", **more: Any) -> Variant:
    weights = {"own_embedding": True, **more.pop("weights", {})}
    ids = {"ids": "boundary", "asks_layers": "unless default", **more}
    return variant(name, producer, config, plain, weights=weights, **ids)


_FULL: Config = {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True}
_NO_IDS: Config = {IDS: None}
_POST: Config = {"residual": "post", "feedback": "post"}

VARIANTS: tuple[Variant, ...] = (
    _variant(
        "speculators",
        partial(trained, window=True, **_FULL),
        weights={"pre_fc_norm": "input_norm"},
        windowed=True,
        **_POST,
    ),
    _variant("speculators_plain", partial(trained, **_NO_IDS), ids="absent", asks_layers="never"),
    _variant("speculators_unstated", unstated, overrides={"residual": "pre"}),
    _variant(
        "speculators31",
        partial(recent, norm_before_residual=True, fc_norm=True, norm_output=True),
        weights={"pre_fc_norm": "fc_norm"},
        **_POST,
    ),
    _variant(
        "speculators_qwen3",
        partial(recent, model_type="qwen3", **_FULL),
        weights={"pre_fc_norm": "input_norm", "qk_norm": True},
        **_POST,
    ),
    _variant(
        "speculators_two_layers", partial(trained, norm_before_residual=True), weights={"layers": 2}, residual="post"
    ),
    _variant("speculators_converted", converted, "speculators_converted", ids="output", asks_layers="always"),
)
