"""DrafterSpec fields as vLLM's EAGLE-3 draft classes compute them, and where in the source each is decided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_eagle31.tools.audit.engines.hf_config import HfConfig
from sglang_eagle31.tools.audit.engines.outcome import plain_rope
from sglang_eagle31.tools.audit.engines.vllm_layers import FILES, Family, biases, norm_before_fc


def vllm_fields(config: HfConfig, family: Family, boundaries: tuple[int, ...] | None, own_head: bool) -> dict[str, Any]:
    """The fields that are decided by config.json; ``boundaries`` only where they are known."""
    rope = config.rope
    before = [
        name
        for name, on in (("input_norm", norm_before_fc(config, family)), ("fc_norm", config.get("fc_norm", False)))
        if on
    ]
    heads, kv_heads, head_dim = config.heads
    qkv, _, mlp = biases(config)
    fields: dict[str, Any] = {
        "num_layers": int(config.get("num_hidden_layers")),
        "num_heads": heads,
        "rms_norm_eps": float(config.get("rms_norm_eps")),
        "pre_fc_norm": " then ".join(before) or "none",
        "residual": "post" if config.get("norm_before_residual", False) else "pre",
        "feedback": "post" if config.get("norm_output", False) else "pre",
        "logits": "norm",
        "first_norms": ("input_layernorm", "hidden_norm"),
        "double_norm": False,
        "final_norm": True,
        "later_norm": "input_layernorm",
        "fc_bias": False,
        "qkv_bias": qkv and family != "mla",
        "mlp_bias": mlp and family == "llama",
        "qk_norm": family == "qwen3",
        "own_head": own_head,
        "rope_theta": float(rope["rope_theta"] or 10000.0),
        "rope_scaling": plain_rope(rope),
        "sliding_window": _window(config, family),
        "attention": "mla" if family == "mla" else "gqa",
    }
    if boundaries is not None:
        fields |= {"boundaries": boundaries, "use_aux_hidden_state": boundaries != ()}
    if family == "mla":
        dims = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        return fields | {name: config.get(name) for name in dims}
    factor = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    return fields | {"num_kv_heads": kv_heads, "head_dim": head_dim, "partial_rotary_factor": float(factor)}


def _window(config: HfConfig, family: Family) -> int | None:
    """Keys that a query sees where every layer slides; a mix is given as it is for the first layer."""
    types = list(config.get("layer_types") or ())
    sliding = family != "mla" and bool(types) and types[0] == "sliding_attention"
    return config.get("sliding_window") if sliding else None


def vllm_causes(family: Family) -> Mapping[str, str]:
    """Where each of those fields is decided."""
    file = FILES[family]
    return {
        "num_layers": f"{file} builds num_hidden_layers of config.json",
        "pre_fc_norm": f"{file} reads fc_norm at the top level, and runs every norm that is flagged",
        "residual": f"{file} reads norm_before_residual (speculators/algos.py: true where an eagle3 file has no key)",
        "feedback": f"{file} feeds back the normed state only for norm_output",
        "logits": f"{file} always norms before lm_head",
        "first_norms": f"{file} always has both norms",
        "double_norm": f"{file} norms the state once",
        "final_norm": f"{file} always has the final norm",
        "later_norm": f"{file} uses input_layernorm after the first layer",
        "fc_bias": f"{file} gives fc no bias, and unexpected biases are ignored (models/utils.py)",
        "qkv_bias": f"{file} reads attention_bias; other biases are ignored (models/utils.py)",
        "mlp_bias": f"{file} and models/llama.py read mlp_bias; other biases are ignored (models/utils.py)",
        "qk_norm": f"only qwen3_eagle3.py has q_norm and k_norm; the class here is in {file}",
        "own_head": "spec_decode/eagle/utils.py shares the target's lm_head only where the file has none",
        "rope_theta": "config.json, 10000 without one",
        "rope_scaling": "rope_parameters of config.json",
        "sliding_window": f"{file} reads layer_types and sliding_window",
        "attention": f"architectures chose {file}",
        "boundaries": "spec_decode/eagle/eagle3_utils.py reads top-level ids as boundaries, else a default triple",
        "use_aux_hidden_state": "eagle_config.use_aux_hidden_state",
        "num_kv_heads": "config.json",
        "head_dim": "config.json; larger projections are cut",
        "partial_rotary_factor": "rope_parameters of config.json",
    }
