"""Parameters of vLLM's EAGLE-3 draft classes, fused ones by their parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from sglang_eagle31.tools.audit.engines.hf_config import HfConfig
from sglang_eagle31.tools.audit.engines.parameters import Slot

Family = Literal["llama", "qwen3", "mla"]
FILES: Mapping[Family, str] = {"llama": "llama_eagle3.py", "qwen3": "qwen3_eagle3.py", "mla": "deepseek_eagle3.py"}
ARCHITECTURES: Mapping[str, Family] = {
    **dict.fromkeys(
        (
            "PEagleDraftModel",
            "PeagleLlamaForCausalLM",
            "Eagle3LlamaForCausalLM",
            "Eagle3MiniMaxM2ForCausalLM",
            "LlamaForCausalLMEagle3",
            "Eagle3Qwen2_5vlForCausalLM",
            "Eagle3Qwen3vlForCausalLM",
        ),
        "llama",
    ),
    **dict.fromkeys(("Eagle3Qwen3ForCausalLM", "PeagleQwen3ForCausalLM"), "qwen3"),
    **dict.fromkeys(("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM"), "mla"),
}
"""vLLM's registry of EAGLE-3 heads (models/registry.py)."""


def vllm_slots(config: HfConfig, family: Family, states: int, target_hidden: int, target_vocab: int) -> dict[str, Slot]:
    """Parameters by full name; a missing one is not noticed, an unknown name stops the server."""
    hidden, vocab = int(config.get("hidden_size")), int(config.get("vocab_size"))
    draft_vocab = int(config.get("draft_vocab_size") or vocab)
    aux = family == "mla" or config.nested("eagle_config").get("use_aux_hidden_state", True)
    slots = {
        "model.norm.weight": Slot((hidden,)),
        "model.embed_tokens.weight": Slot((vocab, hidden), needed=False),
        "lm_head.weight": Slot((draft_vocab, hidden), needed=False),
    }
    if draft_vocab != target_vocab:
        slots["draft_id_to_target_id"] = Slot((draft_vocab,), needed=False)
    if aux:
        slots["model.fc.weight"] = Slot((hidden, states * target_hidden))
    if aux and norm_before_fc(config, family):
        slots["model.input_norm.weight"] = Slot((states * target_hidden,))
    if aux and config.get("fc_norm", False):
        slots |= {f"model.fc_norm.{k}.weight": Slot((target_hidden,)) for k in range(states)}
    for layer in range(int(config.get("num_hidden_layers"))):
        attention = _mla(config, layer) if family == "mla" else _gqa(config, family, layer)
        slots |= {f"model.layers.{layer}.{name}": slot for name, slot in (attention | _block(config)).items()}
        slots[f"model.layers.{layer}.hidden_norm.weight"] = Slot((hidden,), needed=layer == 0)
    return slots


def norm_before_fc(config: HfConfig, family: Family) -> bool:
    """The MLA class has none."""
    flag = config.nested("eagle_config").get("norm_before_fc", config.get("norm_before_fc", False))
    return family != "mla" and bool(flag)


def biases(config: HfConfig) -> tuple[bool, bool, bool]:
    """Whether q, k and v, o, and the MLP have biases."""
    return (
        bool(config.get("attention_bias", False)),
        bool(config.get("attention_bias", False) or config.get("bias", False)),
        bool(config.get("mlp_bias", False)),
    )


def _gqa(config: HfConfig, family: Family, layer: int) -> dict[str, Slot]:
    hidden = int(config.get("hidden_size"))
    heads, kv_heads, head_dim = config.heads
    qkv, o, _ = biases(config)
    slots = {"self_attn.o_proj.weight": Slot((hidden, heads * head_dim), cut=(1,))}
    for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        width = 2 * hidden if layer == 0 else hidden
        slots[f"self_attn.{name}_proj.weight"] = Slot((count * head_dim, width), cut=(0,))
        if qkv:
            slots[f"self_attn.{name}_proj.bias"] = Slot((count * head_dim,), cut=(0,))
    if o and family == "llama":
        slots["self_attn.o_proj.bias"] = Slot((hidden,))
    if family == "qwen3":
        slots |= {f"self_attn.{name}_norm.weight": Slot((head_dim,)) for name in ("q", "k")}
    return slots


def _mla(config: HfConfig, layer: int) -> dict[str, Slot]:
    hidden, heads = int(config.get("hidden_size")), int(config.get("num_attention_heads"))
    nope, rope, value = (int(config.get(name)) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    width, kv_rank = 2 * hidden if layer == 0 else hidden, int(config.get("kv_lora_rank"))
    q_rank = config.get("q_lora_rank")
    slots = {
        "kv_a_proj_with_mqa": Slot((kv_rank + rope, width)),
        "kv_a_layernorm": Slot((kv_rank,)),
        "kv_b_proj": Slot((heads * (nope + value), kv_rank), cut=(0,)),
        "o_proj": Slot((hidden, heads * value), cut=(1,)),
    }
    if q_rank is None:
        slots["q_proj"] = Slot((heads * (nope + rope), width), cut=(0,))
    else:
        slots["q_a_proj"] = Slot((int(q_rank), width))
        slots["q_a_layernorm"] = Slot((int(q_rank),))
        slots["q_b_proj"] = Slot((heads * (nope + rope), int(q_rank)), cut=(0,))
    return {f"self_attn.{name}.weight": slot for name, slot in slots.items()}


def _block(config: HfConfig) -> dict[str, Slot]:
    hidden, inner = int(config.get("hidden_size")), int(config.get("intermediate_size") or 0)
    slots = {
        "input_layernorm.weight": Slot((hidden,)),
        "post_attention_layernorm.weight": Slot((hidden,)),
        "mlp.gate_proj.weight": Slot((inner, hidden), cut=(0,)),
        "mlp.up_proj.weight": Slot((inner, hidden), cut=(0,)),
        "mlp.down_proj.weight": Slot((hidden, inner), cut=(1,)),
    }
    if biases(config)[2]:
        sizes = {"gate": inner, "up": inner, "down": hidden}
        slots |= {f"mlp.{name}_proj.bias": Slot((size,)) for name, size in sizes.items()}
    return slots


def vllm_name(name: str) -> str | None:
    """Parameter that a tensor goes to; None for ``t2d``."""
    if "t2d" in name:
        return None
    if "d2t" in name:
        return name.replace("d2t", "draft_id_to_target_id")
    return name if "lm_head" in name else f"model.{name}".replace("midlayer.", "layers.0.")


TARGETS = frozenset(
    """AfmoeForCausalLM ApertusForCausalLM Cohere2MoeForCausalLM Cosmos3ForConditionalGeneration DeepseekForCausalLM
    DeepseekV2ForCausalLM DeepseekV3ForCausalLM Ernie4_5ForCausalLM Exaone4_5_ForConditionalGeneration
    Gemma4ForCausalLM Gemma4ForConditionalGeneration Gemma4UnifiedForConditionalGeneration GlmMoeDsaForCausalLM
    GptOssForCausalLM GraniteForCausalLM GraniteMoeForCausalLM GraniteMoeSharedForCausalLM IQuestCoderForCausalLM
    InternLM3ForCausalLM InternS1ProForConditionalGeneration InternS2MobiusForConditionalGeneration
    InternS2PreviewForConditionalGeneration KimiK25ForConditionalGeneration LagunaForCausalLM Llama4ForCausalLM
    Llama4ForConditionalGeneration LlamaForCausalLM LlavaForConditionalGeneration MiMoForCausalLM
    MiMoV2FlashForCausalLM MiMoV2ForCausalLM MiniCPM3ForCausalLM MiniCPMForCausalLM MiniMaxM2ForCausalLM
    Ministral3ForCausalLM Mistral3ForConditionalGeneration MistralForCausalLM MistralLarge3ForCausalLM
    MuseGlimmerForCausalLM MuseGlimmerForConditionalGeneration NemotronHForCausalLM Phi3ForCausalLM
    PixtralForConditionalGeneration Plamo3ForCausalLM Qwen2ForCausalLM Qwen2_5_VLForConditionalGeneration
    Qwen3ForCausalLM Qwen3MoeForCausalLM Qwen3NextForCausalLM Qwen3OmniMoeForConditionalGeneration
    Qwen3VLForConditionalGeneration Qwen3VLMoeForConditionalGeneration Qwen3_5ForCausalLM
    Qwen3_5ForConditionalGeneration Qwen3_5MoeForCausalLM Qwen3_5MoeForConditionalGeneration
    SarvamMLAForCausalLM Step1ForCausalLM TeleChat2ForCausalLM TeleFLMForCausalLM""".split()
)
"""Targets whose class has SupportsEagle3 as a base; what the Transformers backend adds was not followed."""
