"""The Llama layout that SafeAILab, SpecForge, TorchSpec and our trainer share; each of them adds its own rules.

Tensors decide wherever they can: layer count, widths, biases, norms, own head and own embedding.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglang_eagle31.drafter.checkpoint import Checkpoint
from sglang_eagle31.drafter.reading import Reading, Target

IDS = "eagle_aux_hidden_state_layer_ids"
IGNORED = re.compile(r"^(t2d|.*rotary_emb\.inv_freq)$")

# Keys that change what a head computes, with the only values under which this layout is the plain one.
PLAIN: Mapping[str, tuple[Any, ...]] = {
    "norm_before_residual": (None, False),
    "norm_before_fc": (None, False),
    "parallel_drafting": (None, False),
    "mask_token_id": (None,),
    "ptd_token_id": (None,),
    "pard_token": (None,),
    "sliding_window": (None,),
    "partial_rotary_factor": (None, 1, 1.0),
    "logit_scale": (None, 1, 1.0),
    "quantization_config": (None,),
    "hidden_act": (None, "silu"),
}
PLAIN_EAGLE: Mapping[str, tuple[Any, ...]] = {
    "use_aux_hidden_state": (None, True),
    "use_input_layernorm_in_first_layer": (None, True),
    "use_last_layernorm": (None, True),
    "use_mtp_layernorm": (None, False),
    "next_layer_regular": (None, True),
    "eh_proj_before_attn": (None, False),
    "norm_before_fc": (None, False),
    "return_hidden_post_norm": (None, False),
    "fc_norm": (None,),
    "norm_output": (None,),
    "parallel_draft_step": (None, 1),
}


@dataclass(frozen=True)
class Rules:
    """What a producer adds: its name. Ids in ``eagle_config`` are ids of the layer whose *output* is taken."""

    producer: str


def read_llama(head: Checkpoint, target: Target, rules: Rules) -> Reading:
    """Everything about a Llama-layout head except its feedback, which each producer decides."""
    reading = Reading(rules.producer)
    _names(head, reading)
    if "fc.weight" not in head.tensors:
        reading.refusals.append(f"{head.folder}: fc.weight is missing, so this is no EAGLE-3 head")
        return reading
    _plain_keys(head, reading)
    _sizes(head, target, reading)
    _switches(head, reading)
    _boundaries(head, target, reading)
    _rope(head, reading)
    return reading


def _names(head: Checkpoint, reading: Reading) -> None:
    for name in head.tensors:
        if not IGNORED.match(name):
            canonical = re.sub(r"^midlayer\.", "layers.0.", name)
            if canonical in reading.names.values():
                reading.refusals.append(f"{name} is in the file twice, as midlayer.* and as layers.0.*")
            reading.names[name] = canonical


def _plain_keys(head: Checkpoint, reading: Reading) -> None:
    eagle = head.config.get("eagle_config") or {}
    for config, plain, where in ((head.config, PLAIN, ""), (eagle, PLAIN_EAGLE, "eagle_config.")):
        for key, allowed in plain.items():
            if config.get(key) not in allowed:
                has = f"config.json has {where}{key}={config[key]!r}, which {reading.producer} heads do not have"
                if key == "sliding_window":
                    reading.questions[key] = (
                        f"{has}; fix: --eagle31-override {key}=W if it sees W keys, itself included"
                    )
                else:
                    reading.refusals.append(f"{has} and this layout cannot run; fix: convert the head")
    windowed = set(head.config.get("layer_types") or ()) - {"full_attention"}
    if windowed:
        reading.refusals.append(
            f"config.json has layer_types={sorted(windowed)}, which {reading.producer} heads do not have and this "
            "layout cannot run; fix: convert the head"
        )


def _sizes(head: Checkpoint, target: Target, reading: Reading) -> None:
    config, tensors = head.config, head.tensors
    canonical = {new: tensors[old] for old, new in reading.names.items()}
    layers = {int(match[1]) for name in canonical if (match := re.match(r"layers\.(\d+)\.", name))}
    hidden = tensors["fc.weight"].shape[0]
    heads = int(config.get("num_attention_heads") or 0)
    if heads < 1:
        heads = 1
        reading.refusals.append("config.json states no num_attention_heads; fix: add the head's")
    reading.put("hidden_size", hidden, "tensor fc.weight")
    reading.put("target_hidden_size", target.hidden_size, "target config")
    reading.put("num_layers", len(layers), "tensors " + ", ".join(f"layers.{layer}" for layer in sorted(layers)))
    reading.put("num_heads", heads, "config num_attention_heads")
    reading.put("num_kv_heads", int(config.get("num_key_value_heads") or heads), "config num_key_value_heads")
    head_dim = config.get("head_dim")
    reading.put("head_dim", int(head_dim or hidden // heads), "config head_dim" if head_dim else "hidden size / heads")
    gate = canonical.get("layers.0.mlp.gate_proj.weight")
    reading.put("intermediate_size", gate.shape[0] if gate else 0, "tensor mlp.gate_proj.weight")
    reading.put("rms_norm_eps", float(config.get("rms_norm_eps", 1e-6)), "config rms_norm_eps")
    reading.put("vocab_size", target.vocab_size, "target config")
    stated = config.get("target_hidden_size")
    if stated not in (None, target.hidden_size):
        reading.refusals.append(
            f"config.json says target_hidden_size={stated}, but the target has {target.hidden_size}; "
            "fix: use the head of this target"
        )
    _vocabulary(head, target, reading)


def _vocabulary(head: Checkpoint, target: Target, reading: Reading) -> None:
    tensors, stated = head.tensors, head.config.get("draft_vocab_size")
    own_head = "lm_head.weight" in tensors
    size = tensors["lm_head.weight"].shape[0] if own_head else int(stated or target.vocab_size)
    reading.put("draft_vocab_size", size, "tensor lm_head.weight" if own_head else "config draft_vocab_size")
    reading.put("own_head", own_head, f"tensor lm_head.weight {'present' if own_head else 'absent'}")
    own_embedding = "embed_tokens.weight" in tensors
    present = "present" if own_embedding else "absent"
    reading.put("own_embedding", own_embedding, f"tensor embed_tokens.weight {present}")
    reading.put("vocab_map", size < target.vocab_size, f"draft vocabulary {size} of {target.vocab_size}")
    if stated not in (None, size):
        reading.refusals.append(f"config.json says draft_vocab_size={stated}, lm_head.weight has {size} rows")
    if head.config.get("tie_word_embeddings") and own_embedding and not own_head:
        reading.refusals.append(
            "config.json ties lm_head to an embedding of the head's own; fix: export lm_head.weight as well"
        )
    if size > target.vocab_size:
        reading.refusals.append(f"the head has {size} tokens, the target only {target.vocab_size}")
    elif not own_head and stated is not None:
        reading.refusals.append(
            f"config.json states draft_vocab_size={stated}, so lm_head.weight should be there and is not; fix: export "
            "the head, or set draft_vocab_size to null if it shares the target's"
        )
    elif "d2t" in tensors and size == target.vocab_size:
        reading.names.pop("d2t")
        if bool((head.load("d2t") != 0).any()):
            reading.refusals.append("d2t maps to other tokens although the draft vocabulary is the target's")
    elif "d2t" in tensors and tensors["d2t"].shape == (size,):
        reading.refusals += check_vocabulary_map(head, target.vocab_size)


def check_vocabulary_map(head: Checkpoint, vocab_size: int) -> list[str]:
    """Reasons for which ``d2t`` is not ``target_id = draft_id + d2t[draft_id]``, checked with ``t2d`` if shipped."""
    import torch

    d2t = head.load("d2t").long()
    ids = d2t + torch.arange(d2t.numel())
    if bool((ids[1:] <= ids[:-1]).any()) or int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        absolute = bool((d2t[1:] > d2t[:-1]).all()) and int(d2t.max()) < vocab_size
        hint = " (it looks like absolute ids)" if absolute else ""
        return [f"d2t is not in offset form over {vocab_size} target tokens{hint}; fix: store used[i] - i"]
    if "t2d" in head.tensors:
        used = head.load("t2d").bool()
        if used.numel() != vocab_size:
            return [f"t2d has {used.numel()} tokens, the target {vocab_size}; fix: use the head of this target"]
        if int(used.sum()) != ids.numel() or not bool(used[ids].all()):
            return ["d2t and t2d name different tokens; fix: export the head again"]
    elif ids.numel() > 1 and bool((d2t[1:] > d2t[:-1]).all()):
        return ["d2t may be offsets or absolute ids, and no t2d tells which; fix: store t2d beside it"]
    return []


def _switches(head: Checkpoint, reading: Reading) -> None:
    config, names = head.config, set(reading.names.values())
    normed = sum(name.startswith("fc_norm.") for name in names)
    reading.put("pre_fc_norm", "fc_norm" if normed else "none", f"{normed} tensors fc_norm.*")
    flag = config.get("fc_norm", config.get("use_aux_norm"))
    if flag is not None and bool(flag) != bool(normed):
        reading.refusals.append(f"config.json says fc_norm={flag}, but the file has {normed} tensors fc_norm.*")
    for field, tensor in (
        ("fc_bias", "fc.bias"),
        ("qkv_bias", "layers.0.self_attn.q_proj.bias"),
        ("o_bias", "layers.0.self_attn.o_proj.bias"),
        ("mlp_bias", "layers.0.mlp.gate_proj.bias"),
        ("qk_norm", "layers.0.self_attn.q_norm.weight"),
    ):
        reading.put(field, tensor in names, f"tensor {tensor} {'present' if tensor in names else 'absent'}")
    hidden_norm = "layers.1.hidden_norm.weight" in names
    reading.put("later_norm", "hidden_norm" if hidden_norm else "input_layernorm", "tensors of layer 1, if any")
    reading.put("residual", "pre", f"{reading.producer} adds the un-normed state")
    reading.put("logits", "norm", f"{reading.producer} norms before lm_head")
    reading.put(
        "hidden_act", "silu", "config hidden_act" if config.get("hidden_act") else "default of the Llama config"
    )
    reading.put("sliding_window", None, "no window in the config")


def _boundaries(head: Checkpoint, target: Target, reading: Reading) -> None:
    depth = target.num_layers
    ids = (head.config.get("eagle_config") or {}).get(IDS)
    if ids is None:
        reading.put("boundaries", (2, depth // 2, depth - 3), f"default of {reading.producer}: no ids stated")
    else:
        reading.put("boundaries", tuple(int(i) + 1 for i in ids), f"config eagle_config.{IDS}={ids}, layer outputs")
    if IDS in head.config:
        reading.questions["boundaries"] = (
            f"config.json has {IDS}={head.config[IDS]} at the top level, where {reading.producer} does not write it; "
            "fix: --eagle31-override aux_layers=b,b,b (boundary b is the input of block b)"
        )


def _rope(head: Checkpoint, reading: Reading) -> None:
    config = head.config
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    theta = config.get("rope_theta", (rope or {}).get("rope_theta"))
    reading.put("rope_theta", float(theta or 10000.0), "config rope_theta" if theta else "default of the Llama config")
    kind = (rope or {}).get("rope_type", (rope or {}).get("type", "default"))
    scaling = None if kind == "default" else dict(rope or {})
    if "mrope_section" in (rope or {}):
        reading.refusals.append("config.json has mrope_section: heads of multimodal targets are not supported")
    reading.put("rope_scaling", scaling, "config rope_parameters or rope_scaling")
    length = config.get("max_position_embeddings")
    reading.put("max_position_embeddings", int(length or 2048), "config" if length else "default of the Llama config")
