"""Widths and counts of a head: from its tensors, and from config.json what tensors cannot show."""

from __future__ import annotations

import math
import re
from typing import Any

from sglang_eagle31.head.checkpoint import Checkpoint, Tensor
from sglang_eagle31.head.keys import EAGLE, Keys, is_number
from sglang_eagle31.head.reading import Reading, Target

MLA_DEFAULTS = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
"""Of transformers' DeepseekV3Config, for keys that are not written; a null ``q_lora_rank`` is one query projection."""


def read_sizes(head: Checkpoint, target: Target, reading: Reading, keys: Keys) -> None:
    """Put every dimension; a contradiction between tensors and config is a refusal."""
    tensors = {new: head.tensors[old] for old, new in reading.names.items()}
    layers = sorted({int(match[1]) for name in tensors if (match := re.match(r"layers\.(\d{1,4})\.", name))})
    reading.put("num_layers", len(layers), "tensors " + ", ".join(f"layers.{layer}" for layer in layers))
    if not layers:
        what = "the file has no decoder layer (no tensor layers.N.* or midlayer.*)"
        reading.refusals.append(f"{what}, so it is no EAGLE-3 head; fix: give a draft head, or rename its tensors")
        return
    if layers != list(range(len(layers))):
        reading.refusals.append(
            f"the file has layers {layers} (tensors layers.N.*): some are missing; fix: export the head again"
        )
    _aux(tensors, target, reading, keys)
    gate = tensors.get("layers.0.mlp.gate_proj.weight")
    reading.put("intermediate_size", _side(gate, 0), "tensor layers.0.mlp.gate_proj.weight")
    eps = keys.number("rms_norm_eps")
    fallback = float(keys.default("rms_norm_eps") or 1e-6)
    reading.put("rms_norm_eps", float(eps.value) if eps else fallback, _from(eps, keys))
    heads = keys.count("num_attention_heads")
    count = int(heads.value if heads else keys.default("num_attention_heads") or 0)
    if count < 1:
        reading.refusals.append("config.json states no num_attention_heads; fix: add the head's")
        kv_heads = keys.count("num_key_value_heads")
        count = int(kv_heads.value) if kv_heads else 1
    reading.put("num_heads", count, _from(heads, keys))
    if any(name.endswith("self_attn.kv_a_proj_with_mqa.weight") for name in tensors):
        _mla(tensors, reading, keys, count)
    else:
        _gqa(reading, keys, count)
    _stated(target, reading, keys)


def _aux(tensors: dict[str, Tensor], target: Target, reading: Reading, keys: Keys) -> None:
    """The hidden size, and how many target states ``fc`` reads."""
    aux = keys.flag("use_aux_hidden_state", EAGLE, "")
    reading.put("target_hidden_size", target.hidden_size, target.source)
    if aux is not None and not aux.value:
        reading.put("use_aux_hidden_state", False, f"{aux.source}=false")
        width = _side(tensors.get("layers.0.post_attention_layernorm.weight"), 0)
        reading.put("hidden_size", width, "tensor layers.0.post_attention_layernorm.weight")
        if width != target.hidden_size:
            reading.refusals.append(
                f"the head reads the target's final state of width {target.hidden_size} without an fc, but its own "
                f"width is {width}; fix: use the head of this target"
            )
        return
    fc = tensors.get("fc.weight")
    if fc is None or len(fc.shape) != 2:
        reading.refusals.append("tensor fc.weight is missing, so this is no EAGLE-3 head; fix: give an EAGLE-3 head")
    width = _side(fc, 0)
    reading.put("hidden_size", width, "tensor fc.weight")
    if fc is not None and len(fc.shape) == 2 and fc.shape[1] % target.hidden_size == 0:
        reading.captured = fc.shape[1] // target.hidden_size


def _gqa(reading: Reading, keys: Keys, heads: int) -> None:
    kv_heads, stated = keys.count("num_key_value_heads"), keys.count("head_dim")
    # Qwen3's config class has a head_dim of its own; Llama's divides the width.
    head_dim = int(stated.value if stated else keys.default("head_dim") or reading.values["hidden_size"] // heads)
    fallback = int(keys.default("num_key_value_heads") or heads)
    reading.put("num_kv_heads", int(kv_heads.value) if kv_heads else fallback, _from(kv_heads, keys))
    reading.put("head_dim", head_dim, stated.source if stated else "hidden size / heads")
    reading.put("attention", "gqa", "tensors self_attn.q_proj, k_proj, v_proj")
    for name in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        reading.put(name, None if name == "q_lora_rank" else 0, "no MLA")
    reading.put("softmax_scale", None, "1 / sqrt(head_dim)")
    if heads % reading.values["num_kv_heads"]:
        reading.refusals.append(
            f"config.json has num_attention_heads={heads}, which num_key_value_heads={reading.values['num_kv_heads']} "
            "does not divide; fix: correct it"
        )


def _mla(tensors: dict[str, Tensor], reading: Reading, keys: Keys, heads: int) -> None:
    """Multi-head latent attention; its dimensions are those of the tensors, and config.json must agree."""
    part = {name.removeprefix("layers.0.self_attn."): tensor for name, tensor in tensors.items()}
    q_lora = _side(part.get("q_a_layernorm.weight"), 0) or None
    kv_lora = _side(part.get("kv_a_layernorm.weight"), 0)
    rope = _side(part.get("kv_a_proj_with_mqa.weight"), 0) - kv_lora
    query = part.get("q_b_proj.weight") if q_lora else part.get("q_proj.weight")
    found = {
        "q_lora_rank": q_lora,
        "kv_lora_rank": kv_lora,
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": _side(query, 0) // heads - rope,
        "v_head_dim": _side(part.get("o_proj.weight"), 1) // heads,
    }
    for name, value in found.items():
        reading.put(name, value, "tensors of self_attn")
        stated = keys.count(name)
        says = stated.value if stated else None if keys.has(name) else MLA_DEFAULTS[name]
        if says != value:
            where = f"{stated.where}={stated.value}" if stated else f"{name} left out or null, which means {says}"
            reading.refusals.append(f"config.json has {where}, the tensors say {value}; fix: correct one of them")
    if min(kv_lora, rope, found["qk_nope_head_dim"] or 0, found["v_head_dim"] or 0) < 1:
        reading.refusals.append(
            f"the MLA tensors do not fit num_attention_heads={heads} ({found}); fix: export the head again"
        )
    reading.put("attention", "mla", "tensor self_attn.kv_a_proj_with_mqa")
    reading.put("head_dim", rope + max(1, found["qk_nope_head_dim"] or 0), "qk_nope_head_dim + qk_rope_head_dim")
    reading.put("num_kv_heads", heads, "MLA")
    keys.count("num_key_value_heads"), keys.count("head_dim")
    interleaved = keys.flag("rope_interleave")
    if interleaved is not None and not interleaved.value:
        has = f"config.json has {interleaved.where}=false, and this package rotates MLA heads by pairs"
        reading.refusals.append(f"{has}; fix: serve this head elsewhere")


def put_mla_scale(reading: Reading, with_mscale: bool) -> None:
    """The softmax scale of MLA: ``1 / sqrt(nope + rope)``, times ``mscale^2`` for trainers that apply yarn's.

    ``mscale = 0.1 * mscale_all_dim * ln(factor) + 1`` for a factor above 1 (YaRN, arXiv 2309.00071, as DeepSeek-V2
    uses it).
    """
    values = reading.values
    if values.get("attention") != "mla":
        return
    scaling = values.get("rope_scaling") or {}
    all_dim, factor = scaling.get("mscale_all_dim"), scaling.get("factor", 1.0)
    mscale = 1.0
    if with_mscale and is_number(all_dim) and is_number(factor) and factor > 1:  # else it is refused already
        mscale = 0.1 * float(all_dim or 0.0) * math.log(factor) + 1.0
    scale = mscale**2 * values["head_dim"] ** -0.5
    reading.put("softmax_scale", scale, f"{reading.producer}: mscale {mscale:.4g}, head size {values['head_dim']}")


def _stated(target: Target, reading: Reading, keys: Keys) -> None:
    """Sizes that config.json states and that must be the tensors' or the target's."""
    values = reading.values
    for name, value, whose in (
        ("hidden_size", values["hidden_size"], "the tensors say"),
        ("intermediate_size", values["intermediate_size"], "the tensors say"),
        ("target_hidden_size", target.hidden_size, "but the target has"),
    ):
        stated = keys.count(name, *(("",) if name == "target_hidden_size" else ()))
        if stated is None and name == "hidden_size" and keys.default(name) != value:
            reading.refusals.append(f"config.json states no hidden_size, the tensors say {value}; fix: add it")
        if stated and value and stated.value != value:  # 0: the tensor is missing, which the loader says
            fix = "use the head of this target" if name == "target_hidden_size" else "correct one of them"
            reading.refusals.append(f"config.json has {stated.where}={stated.value}, {whose} {value}; fix: {fix}")
    number = keys.count("num_aux_hidden_states", "", EAGLE)
    if number and reading.captured and number.value != reading.captured:
        reading.refusals.append(
            f"config.json has {number.where}={number.value}, fc.weight is made for {reading.captured} states of width "
            f"{target.hidden_size}; fix: correct the key"
        )


def _side(tensor: Tensor | None, axis: int) -> int:
    return tensor.shape[axis] if tensor is not None and len(tensor.shape) > axis else 0


def _from(found: Any, keys: Keys) -> str:
    return found.source if found else f"default of {keys.class_name}"
