"""Every head of the matrix: as its producer writes it, with one thing broken, or of another kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from checkpoint_case import Case, head
from checkpoint_damaged import LAYERS, LOST
from checkpoint_unusual import SWITCHES, UNTOLD
from exact import answers
from markers import SHAPE
from truth import producers

__all__ = ["Case", "cases"]

TITLES: Mapping[str, str] = {
    "safeailab": "SafeAILab EAGLE-3, `LlamaForCausalLM` in its config",
    "specforge": "SpecForge EAGLE-3",
    "specforge31": "SpecForge EAGLE 3.1, trained after its PR 879",
    "specforge31_before_879": "SpecForge EAGLE 3.1, trained before its PR 879",
    "specforge31_raw": "SpecForge EAGLE 3.1, before PR 879, `norm_output: false`: logits without norm",
    "eagle31_native": "`python -m sglang_eagle31 train`",
    "torchspec": "TorchSpec EAGLE-3",
    "torchspec31": "TorchSpec EAGLE 3.1",
    "torchspec_vllm": "TorchSpec EAGLE-3, its export for vLLM",
    "torchspec_mla": "TorchSpec EAGLE-3, latent attention (Kimi K2)",
    "torchspec_mla31": "TorchSpec EAGLE 3.1, latent attention (Kimi K2)",
    "torchspec_mla_vllm_kimi": "TorchSpec EAGLE 3.1, latent attention, its export for vLLM (layer ids raised by one)",
    "angelslim": "AngelSlim",
    "angelslim_tied": "AngelSlim, `tie_word_embeddings: true` beside an own `lm_head`",
    "angelslim_cosyvoice": "AngelSlim CosyVoice 3, which declares 24 layers and ships one",
    "specdrift": "SpecDrift, two layers, keys of SGLang PR 24663",
    "specdrift_legacy": "SpecDrift, `use_aux_norm` and `aux_norm_low/mid/high`",
    "vllm": "vLLM's class names, layer ids at the top level",
    "vllm_qwen3": "vLLM's Qwen3 class: q/k norms, `norm_before_residual`",
    "speculators": "speculators, its trainer's defaults: `input_norm`, residual after the norm, sliding window",
    "speculators_plain": "speculators without switches and without layer ids",
    "speculators_unstated": "speculators without `norm_before_residual` in its config",
    "speculators31": "speculators EAGLE 3.1 (`fc_norm`, `norm_output`)",
    "speculators_qwen3": "speculators with Qwen3 layers (q/k norms)",
    "speculators_two_layers": "speculators, two layers",
    "speculators_converted": "speculators, converted from another format (layer ids copied)",
    "modelopt_hf": "ModelOpt, Hugging Face export",
    "modelopt_hf_two_layers": "ModelOpt, Hugging Face export, two layers",
    "modelopt_mla": "ModelOpt, Hugging Face export, latent attention, no `draft_vocab_size`",
    "modelopt_no_aux": "ModelOpt, Hugging Face export, fed with the target's last state",
    "modelopt_megatron": "ModelOpt, Megatron export, reduced vocabulary (its export loses `d2t`)",
    "modelopt_megatron_full_vocab": "ModelOpt, Megatron export, full vocabulary",
    "modelopt_megatron_deep": "ModelOpt, Megatron export, two layers",
    "modelopt_megatron_no_first_norm": "ModelOpt, Megatron export, `use_input_layernorm_in_first_layer: false`",
    "modelopt_megatron_no_last_norm": "ModelOpt, Megatron export, `use_last_layernorm: false`",
    "nvidia": "NVIDIA, as its published heads",
    "nvidia_v3": "NVIDIA gpt-oss v3 layout: `norm_before_fc`, layer ids that count inputs",
    "nvidia_post_norm": "NVIDIA, `return_hidden_post_norm`",
    "nvidia_no_head": "NVIDIA, the target's `lm_head` (`draft_vocab_size: null`)",
    "nvidia_wide": "NVIDIA, two layers, `next_layer_regular: false`",
    "nvidia_deep": "NVIDIA, two layers",
    "nvidia_fc_bias": "NVIDIA, `fc` with a bias",
    "nvidia_no_aux": "NVIDIA, fed with the target's last state",
    "nemo": "NeMo AutoModel EAGLE-3",
    "nemo31": "NeMo AutoModel EAGLE 3.1",
    "nemo_bias": "NeMo AutoModel, attention biases (gpt-oss targets)",
    "nemo_mlp_bias": "NeMo AutoModel, MLP biases",
    "nemo_mla": "NeMo AutoModel, latent attention (DeepSeek V3 targets)",
    "nemo_gelu": "NeMo AutoModel, GELU (Gemma 4 targets)",
}
OTHERS: Mapping[str, str] = {
    "p_eagle_speculators": "P-EAGLE, speculators",
    "p_eagle_specforge": "P-EAGLE, SpecForge",
    "p_eagle_aws": "P-EAGLE under the class name of an EAGLE-3 head",
    "p_eagle_nemo": "P-EAGLE, NeMo AutoModel",
    "medusa": "Medusa heads",
    "eagle1": "EAGLE-1",
    "eagle2": "EAGLE-2",
    "baldeagle": "BaldEagle (EAGLE-1/2)",
    "mtp": "a multi-token-prediction layer (DeepSeek V3 NextN)",
    "modelopt_no_aux_narrow": "ModelOpt without captured states, whose layer never sees the embedding",
}


def _producers() -> list[Case]:
    found = []
    for name, variant in producers.VARIANTS.items():
        overrides = {} if variant.refused else answers(name, SHAPE)
        if name == "modelopt_no_aux":  # it has only one of the two norms
            overrides.pop("double_norm", None)
        found.append(Case(name, "producer", TITLES[name], head(name), overrides))
    return found


def _strangers() -> list[Case]:
    def writer(name: str) -> Callable[[Path], Path]:
        return lambda folder: producers.write(folder, name, SHAPE)

    return [Case(name, "another", OTHERS[name], writer(name)) for name in producers.STRANGERS]


def cases() -> list[Case]:
    """Every case, names unique."""
    found = [*_producers(), *LOST, *LAYERS, *SWITCHES, *_strangers(), *UNTOLD]
    assert len({case.name for case in found}) == len(found)
    return found
