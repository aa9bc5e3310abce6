"""Formats of SafeAILab, SpecForge, TorchSpec, AngelSlim, SpecDrift, vLLM and this package's trainer."""

from __future__ import annotations

from typing import Any

from truth.producers_layout import IDS, Config, Head, Variant, latent, llama, midlayer, plain, variant

EAGLE31: dict[str, Any] = {"pre_fc_norm": "fc_norm"}
COPIED: dict[str, Any] = {"own_embedding": True}
"""The target's embedding is saved with the head."""


def safeailab(head: Head) -> Config:
    """``eagle/traineagle3/config.json``: a plain Llama config, ``head_dim`` only where it is not ``H / heads``."""
    shape = head.shape
    implied = shape.heads * shape.head_dim == shape.hidden
    return llama(
        head,
        "LlamaForCausalLM",
        head_dim=... if implied else shape.head_dim,
        attention_dropout=...,
        mlp_bias=...,
        transformers_version="4.28.1",
    )


def specforge(head: Head) -> Config:
    """An exported SpecForge head: captured layers by the ids of their outputs."""
    return llama(
        head,
        "LlamaForCausalLMEagle3",
        target_hidden_size=head.shape.target_hidden,
        target_model_type=None,
        eagle_config={IDS: head.outputs, "use_aux_hidden_state": True},
    )


def specforge31(head: Head) -> Config:
    """With a norm per captured state and ``norm_output``."""
    return {**specforge(head), "fc_norm": True, "norm_output": True}


def specforge31_raw(head: Head) -> Config:
    """With ``norm_output`` false, which meant un-normed logits before SpecForge PR 879."""
    return {**specforge31(head), "norm_output": False}


def native(head: Head) -> Config:
    """This package's trainer: SpecForge's layout and the version."""
    return {**specforge31(head), "sglang_eagle31_version": "0.1.0"}


def torchspec(head: Head) -> Config:
    """TorchSpec's ``convert_to_hf``."""
    return llama(
        head,
        "LlamaForCausalLMEagle3",
        target_hidden_size=head.shape.target_hidden,
        eagle_config={IDS: head.outputs, "use_aux_hidden_state": True},
        _torchspec_version="0.1.0",
    )


def torchspec31(head: Head) -> Config:
    """TorchSpec since its PR 97."""
    return {**torchspec(head), "fc_norm": True, "norm_output": True}


def torchspec_mla(head: Head) -> Config:
    """Kimi K2's attention; the MLP is dense."""
    drop = dict.fromkeys(("head_dim", "mlp_bias", "pretraining_tp"), ...)
    config = {**torchspec(head), "architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2"}
    return {key: value for key, value in {**config, **latent(head)}.items() if key not in drop}


def torchspec_mla31(head: Head) -> Config:
    """The same as EAGLE 3.1."""
    return {**torchspec_mla(head), "fc_norm": True, "norm_output": True}


def torchspec_mla_vllm(head: Head) -> Config:
    """vLLM export of a Kimi head: the only one whose ids are raised to block inputs."""
    return {**torchspec_mla31(head), "eagle_config": {IDS: head.boundaries, "use_aux_hidden_state": True}}


def angelslim(head: Head) -> Config:
    """AngelSlim: no layer ids; a target's type and modality."""
    return llama(head, "Eagle3LlamaForCausalLM", target_model_type="qwen3", modal_type="LLM")


def angelslim_tied(head: Head) -> Config:
    """Tied by its config, although it ships a head of its own."""
    return {**angelslim(head), "tie_word_embeddings": True}


def angelslim_cosyvoice(head: Head) -> Config:
    """The template's 24 layers, of which there is one."""
    config = {**angelslim_tied(head), "architectures": ["CosyVoice3Eagle3LlamaForCausalLM"], "num_hidden_layers": 24}
    return {**config, "target_model_type": "cosyvoice3", "modal_type": "TTS"}


def specdrift(head: Head) -> Config:
    """SpecDrift with the keys of SGLang PR 24663."""
    config = {**specforge31(head), "num_aux_hidden_states": len(head.boundaries)}
    return {key: value for key, value in config.items() if key != "target_model_type"}


def specdrift_legacy(head: Head) -> Config:
    """Before the keys were renamed."""
    config = {**specdrift(head), "use_aux_norm": True}
    return {key: value for key, value in config.items() if key != "fc_norm"}


def aux_norms(name: str) -> str:
    """``aux_norm_low``, ``_mid`` and ``_high`` for the norms of the captured states."""
    for k, place in enumerate(("low", "mid", "high")):
        name = name.replace(f"fc_norm.{k}.", f"aux_norm_{place}.")
    return midlayer(name)


def vllm(head: Head) -> Config:
    """vLLM's class names, with block inputs at the top level."""
    more = {IDS: head.boundaries, "norm_before_residual": False, "target_hidden_size": head.shape.target_hidden}
    return llama(head, "Eagle3LlamaForCausalLM", **more)


def vllm_qwen3(head: Head) -> Config:
    """A Qwen3 layer under vLLM's class name."""
    config = {**vllm(head), "architectures": ["Eagle3Qwen3ForCausalLM"], "model_type": "qwen3"}
    config["norm_before_residual"] = True
    return {key: value for key, value in config.items() if key not in ("mlp_bias", "pretraining_tp")}


_TORCHSPEC: dict[str, Any] = {"metadata": {"torchspec_version": "0.1.0"}}
_MLA: dict[str, Any] = {**_TORCHSPEC, "yarn": True}
_KIMI = {**COPIED, "attention": "mla"}

VARIANTS: tuple[Variant, ...] = (
    variant("safeailab", "safeailab", safeailab, midlayer, ids="absent"),
    variant("specforge", "specforge", specforge, midlayer, maps="always both"),
    variant(
        "specforge31",
        "specforge",
        specforge31,
        midlayer,
        weights=EAGLE31,
        feedback="post",
        overrides={"feedback": "post"},
        maps="always both",
    ),
    variant(
        "specforge31_before_879",
        "specforge",
        specforge31,
        midlayer,
        weights=EAGLE31,
        overrides={"feedback": "pre"},
        maps="always both",
    ),
    variant(
        "specforge31_raw",
        "specforge",
        specforge31_raw,
        midlayer,
        weights=EAGLE31,
        logits="raw",
        overrides={"feedback": "pre", "logits": "raw"},
        maps="always both",
    ),
    variant("eagle31_native", "eagle31_native", native, midlayer, weights=EAGLE31, feedback="post"),
    variant("torchspec", "torchspec", torchspec, midlayer, weights=COPIED, **_TORCHSPEC),
    variant(
        "torchspec31", "torchspec", torchspec31, midlayer, weights={**EAGLE31, **COPIED}, feedback="post", **_TORCHSPEC
    ),
    variant("torchspec_vllm", "torchspec", torchspec, plain, weights=COPIED, **_TORCHSPEC),
    variant("torchspec_mla", "torchspec_mla", torchspec_mla, midlayer, weights=_KIMI, **_MLA),
    variant(
        "torchspec_mla31",
        "torchspec_mla",
        torchspec_mla31,
        midlayer,
        weights={**EAGLE31, **_KIMI},
        feedback="post",
        **_MLA,
    ),
    variant(
        "torchspec_mla_vllm_kimi",
        "torchspec_mla",
        torchspec_mla_vllm,
        plain,
        weights={**EAGLE31, **_KIMI},
        feedback="post",
        ids="boundary",
        **_MLA,
    ),
    variant("angelslim", "angelslim", angelslim, midlayer, weights=COPIED, ids="absent"),
    variant("angelslim_tied", "angelslim", angelslim_tied, midlayer, weights=COPIED, ids="absent"),
    variant("angelslim_cosyvoice", "angelslim", angelslim_cosyvoice, midlayer, weights=COPIED, ids="absent"),
    variant(
        "specdrift",
        "specdrift",
        specdrift,
        plain,
        weights={**EAGLE31, "layers": 2, "later_norm": "hidden_norm"},
        feedback="post",
        overrides={"feedback": "post"},
    ),
    variant("specdrift_legacy", "specdrift", specdrift_legacy, aux_norms, weights=EAGLE31, feedback="post"),
    variant("vllm", "vllm", vllm, plain, ids="boundary", asks_layers="unless default"),
    variant(
        "vllm_qwen3",
        "vllm",
        vllm_qwen3,
        plain,
        weights={"qk_norm": True},
        residual="post",
        ids="boundary",
        asks_layers="unless default",
    ),
)
