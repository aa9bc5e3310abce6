"""Parameters of SGLang's two EAGLE3 draft classes and the names that their loaders accept.

``cut`` and ``pad`` are those of its linear layers on one GPU (layers/linear.py): a q, k, v, gate or up projection with
more rows than the config says, and an o or down projection with more columns, is cut without a word.
"""

from __future__ import annotations

import re

from sglang_eagle31.tools.audit.engines.hf_config import HfConfig
from sglang_eagle31.tools.audit.engines.parameters import Slot

Slots = dict[str, Slot]


def llama_slots(config: HfConfig, states: int, target_hidden: int) -> Slots:
    """Parameters of LlamaForCausalLMEagle3 by full name; ``states`` is what fc is built for."""
    hidden, width = int(config.get("hidden_size")), states * target_hidden
    slots = _shared(config)
    slots["model.fc.weight"] = Slot((hidden, width))
    if config.get("bias", False):
        slots["model.fc.bias"] = Slot((hidden,))
    if llama_norm_before_fc(config):
        slots["model.input_norm.weight"] = Slot((width,))
    if fc_norm_flag(config):
        slots |= {f"model.fc_norm.{k}.weight": Slot((target_hidden,)) for k in range(states)}
    for layer in range(int(config.get("num_hidden_layers"))):
        slots |= _llama_layer(config, layer)
    return slots


def _llama_layer(config: HfConfig, layer: int) -> Slots:
    hidden = int(config.get("hidden_size"))
    heads, kv_heads, head_dim = config.heads
    prefix, width = f"model.layers.{layer}.", 2 * hidden if layer == 0 else hidden
    slots = {
        f"{prefix}self_attn.{name}_proj.weight": Slot((count * head_dim, width), cut=(0,))
        for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))
    }
    slots[f"{prefix}self_attn.o_proj.weight"] = Slot((hidden, heads * head_dim), cut=(1,), pad=(1,))
    if config.get("attention_bias", False) or config.get("bias", False):
        slots[f"{prefix}self_attn.o_proj.bias"] = Slot((hidden,), needed=False)
    slots[f"{prefix}input_layernorm.weight"] = Slot((hidden,), needed=layer == 0)
    return slots | {f"{prefix}{name}": slot for name, slot in _block(config).items()}


def mla_slots(config: HfConfig, states: int, target_hidden: int) -> Slots:
    """Parameters of Eagle3DeepseekV2ForCausalLM by full name, with q_lora_rank and one layer."""
    hidden, heads = int(config.get("hidden_size")), int(config.get("num_attention_heads"))
    q_rank, kv_rank = int(config.get("q_lora_rank")), int(config.get("kv_lora_rank"))
    nope, rope, value = (int(config.get(name)) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    attention = {
        "q_a_proj": Slot((q_rank, 2 * hidden)),
        "q_a_layernorm": Slot((q_rank,)),
        "q_b_proj": Slot((heads * (nope + rope), q_rank), cut=(0,)),
        "kv_a_proj_with_mqa": Slot((kv_rank + rope, 2 * hidden)),
        "kv_a_layernorm": Slot((kv_rank,)),
        "kv_b_proj": Slot((heads * (nope + value), kv_rank), cut=(0,)),
        "o_proj": Slot((hidden, heads * value), cut=(1,), pad=(1,)),
    }
    slots = _shared(config) | {"model.fc.weight": Slot((hidden, states * target_hidden), cut=(0,))}
    if config.get("bias", False):
        slots["model.fc.bias"] = Slot((hidden,))
    if fc_norm_flag(config):
        slots |= {f"model.fc_norm.{k}.weight": Slot((target_hidden,)) for k in range(states)}
    slots |= {f"model.midlayer.self_attn.{name}.weight": slot for name, slot in attention.items()}
    slots |= {f"model.midlayer.{name}": slot for name, slot in _block(config).items()}
    slots["model.midlayer.input_layernorm.weight"] = Slot((hidden,))
    return slots


def _block(config: HfConfig) -> Slots:
    """What both kinds of layer have after the attention, and its hidden_norm."""
    hidden = int(config.get("hidden_size"))
    inner_key = "intermediate_size_mlp" if config.model_type == "llama4_text" else "intermediate_size"
    inner = int(config.get(inner_key) or 0)
    rows = Slot((inner, hidden), cut=(0,), pad=(0,))
    return {
        "hidden_norm.weight": Slot((hidden,)),
        "post_attention_layernorm.weight": Slot((hidden,)),
        "mlp.gate_proj.weight": rows,
        "mlp.up_proj.weight": rows,
        "mlp.down_proj.weight": Slot((hidden, inner), cut=(1,), pad=(1,)),
    }


def _shared(config: HfConfig) -> Slots:
    hidden, vocab = int(config.get("hidden_size")), int(config.get("vocab_size"))
    slots = {"model.norm.weight": Slot((hidden,)), "model.embed_tokens.weight": Slot((vocab, hidden), needed=False)}
    if not config.get("tie_word_embeddings", False):
        slots["lm_head.weight"] = Slot((int(config.get("draft_vocab_size") or vocab), hidden), needed=False)
    return slots


def fc_norm_flag(config: HfConfig) -> bool:
    """Both classes read it at the top level only."""
    return bool(config.get("fc_norm") or config.get("use_aux_norm", False))


def llama_norm_before_fc(config: HfConfig) -> bool:
    """Read in ``eagle_config`` first; the MLA class reads it nowhere."""
    return bool(config.nested("eagle_config").get("norm_before_fc", config.get("norm_before_fc", False)))


_LEGACY = {
    "midlayer": "layers.0",
    "aux_norm_low": "fc_norm.0",
    "aux_norm_mid": "fc_norm.1",
    "aux_norm_high": "fc_norm.2",
}


def llama_name(name: str, slots: Slots) -> str | None:
    """Parameter that LlamaForCausalLMEagle3 loads a tensor into (or would); None for the maps."""
    for legacy, new in _LEGACY.items():
        name = name.replace(legacy, new)
    if "d2t" in name or "t2d" in name:
        return None
    return name if name in slots else f"model.{name}"


def mla_name(name: str, slots: Slots) -> str | None:
    """Parameter that Eagle3DeepseekV2ForCausalLM loads a tensor into (or would); None for the maps."""
    if re.search(r"(^|\.)(d2t|t2d)$", name):
        return None
    renamed = re.sub(r"^layers\.0\.", "midlayer.", name)
    return renamed if renamed.startswith("lm_head.") else f"model.{renamed}"
