"""DrafterSpec fields as SGLang's two EAGLE3 draft classes compute them, and where in the source each is decided."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sglang_eagle31.head.reading import Target
from sglang_eagle31.head.sglang_targets import SGLANG_TARGETS
from sglang_eagle31.tools.audit.engines import sglang_layers as layers
from sglang_eagle31.tools.audit.engines.hf_config import HfConfig
from sglang_eagle31.tools.audit.engines.outcome import plain_rope

VERSION = "0.5.23"
LLAMA, MLA = "LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"
IDS = "eagle_aux_hidden_state_layer_ids"
FILES: Mapping[str, str] = {LLAMA: "llama_eagle3.py", MLA: "kimi_k25_eagle3.py"}


def sglang_fields(config: HfConfig, arch: str, boundaries: tuple[int, ...] | None, own_head: bool) -> dict[str, Any]:
    """DrafterSpec fields as the draft class computes them; ``boundaries`` only where they are known."""
    rope = config.rope
    before = [name for name, on in _pre_fc(config, arch) if on]
    heads, kv_heads, head_dim = config.heads
    fields: dict[str, Any] = {
        "num_layers": int(config.get("num_hidden_layers")),
        "num_heads": heads,
        "rms_norm_eps": float(config.get("rms_norm_eps")),
        "use_aux_hidden_state": boundaries != (),
        "pre_fc_norm": " then ".join(before) or "none",
        "residual": "pre",
        "feedback": "post" if config.get("norm_output", False) else "pre",
        "logits": "norm",
        "first_norms": ("input_layernorm", "hidden_norm"),
        "double_norm": False,
        "final_norm": True,
        "later_norm": "hidden_norm",
        "fc_bias": bool(config.get("bias", False)),
        "qkv_bias": False,
        "mlp_bias": False,
        "qk_norm": False,
        "own_head": own_head,
        "rope_theta": None if rope["rope_theta"] is None else float(rope["rope_theta"]),
        "rope_scaling": plain_rope(rope),
        "sliding_window": None,
        "attention": "gqa" if arch == LLAMA else "mla",
    }
    if boundaries is not None:
        fields["boundaries"] = boundaries
    if arch == LLAMA:
        factor = float(config.raw.get("partial_rotary_factor") or 1.0)
        return fields | {"num_kv_heads": kv_heads, "head_dim": head_dim, "partial_rotary_factor": factor}
    dims = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return fields | {name: config.get(name) for name in dims} | {"softmax_scale": mla_scale(config)}


def _pre_fc(config: HfConfig, arch: str) -> tuple[tuple[str, bool], ...]:
    before = arch == LLAMA and layers.llama_norm_before_fc(config)
    return (("input_norm", before), ("fc_norm", layers.fc_norm_flag(config)))


def mla_scale(config: HfConfig) -> float:
    """DeepSeek's softmax scale: mscale^2 / sqrt(nope + rope), mscale of YaRN's ``mscale_all_dim`` (1 without)."""
    rope = config.rope
    width = int(config.get("qk_nope_head_dim")) + int(config.get("qk_rope_head_dim"))
    all_dim, factor = rope.get("mscale_all_dim") or 0, rope.get("factor") or 1
    scaled = rope["rope_type"] in ("yarn", "deepseek_yarn") and all_dim and factor > 1
    mscale = 0.1 * float(all_dim) * math.log(float(factor)) + 1.0 if scaled else 1.0
    return float(mscale**2 / math.sqrt(width))


def sglang_causes(arch: str, target: Target) -> Mapping[str, str]:
    """Where each of those fields is decided."""
    file, rule = FILES[arch], SGLANG_TARGETS.get(target.architecture)
    rules = {
        "output": "every id plus one",
        "first_is_1": "ids plus one if the first is 1, else as stated",
        "max_is_depth": "ids as stated if the largest is the depth, else plus one",
    }
    how = f"{rule.file}: {rules[rule.ids]}" if rule else "no rule"
    return {
        "num_layers": f"{file} builds num_hidden_layers of config.json; layers without tensors stay uninitialised",
        "use_aux_hidden_state": "spec_aux_hidden_state.py reads eagle_config.use_aux_hidden_state",
        "boundaries": f"spec_aux_hidden_state.py reads only eagle_config.{IDS}, else a default triple; {how}",
        "pre_fc_norm": f"{file} reads fc_norm at the top level only, and runs every norm that is flagged",
        "residual": f"{file} reads no norm_before_residual",
        "feedback": f"{file} feeds back the normed state only for norm_output at the top level",
        "logits": f"{file} always norms before lm_head",
        "first_norms": f"{file} always has both norms and reads no use_input_layernorm_in_first_layer",
        "double_norm": f"{file} norms the state once",
        "final_norm": f"{file} always has the final norm and reads no use_last_layernorm; its gain stays one, so the "
        "first choice of each step is right and the probabilities in a tree are not",
        "later_norm": f"{file} uses hidden_norm in every layer and ignores input_layernorm after the first",
        "fc_bias": f"{file} gives fc a bias only for the key bias",
        "qkv_bias": f"{file} builds qkv_proj without bias",
        "mlp_bias": "models/llama.py: LlamaMLP has no bias",
        "qk_norm": f"{file} has no q_norm and k_norm",
        "own_head": "eagle_worker_v2.py: init_lm_head",
        "rope_theta": "transformers takes the base of config.json, 10000 without one",
        "rope_scaling": "rope_parameters of config.json",
        "partial_rotary_factor": "models/llama.py reads it at the top level of config.json only",
        "sliding_window": f"{file} reads no layer_types or sliding_window; only --speculative-draft-window-size",
        "attention": f"architectures chose {file}",
        "num_kv_heads": "config.json",
        "head_dim": "config.json; larger projections are cut",
        "softmax_scale": "deepseek_v2.py applies YaRN's mscale_all_dim squared",
    }
