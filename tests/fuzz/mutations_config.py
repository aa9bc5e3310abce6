"""Mutations of config.json: values, places and names of keys, layer ids, positions, windows, other producers' keys."""

from __future__ import annotations

import copy
import random
from typing import Any

from mutations import Head, kind, typo
from truth import producers

IDS = "eagle_aux_hidden_state_layer_ids"
SECTIONS = ("", "eagle_config", "transformer_layer_config", "dflash_config")
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 64, 2**31, 2**63, 10**400, 0.0, 0.5, -1.5, 1e-300, 1e300),
    *(float("nan"), float("inf"), "", "64", "true", "none", "nan", [], [1], [None], [[1, 2, 3]], {}, {"a": 1}),
    *("x" * 5000, list(range(100_000)), {"a": {"b": {"c": [1, {"d": None}]}}}, ["LlamaForCausalLM"]),
)
SEMANTIC: tuple[tuple[str, Any], ...] = (
    *((key, flag) for flag in (True, False) for key in ("norm_before_residual", "norm_before_fc", "fc_norm")),
    *((key, flag) for flag in (True, False) for key in ("use_aux_norm", "norm_output", "return_hidden_post_norm")),
    *((key, flag) for flag in (True, False) for key in ("use_input_layernorm_in_first_layer", "use_last_layernorm")),
    *((key, flag) for flag in (True, False) for key in ("use_aux_hidden_state", "next_layer_regular", "bias")),
    *((key, flag) for flag in (True, False) for key in ("attention_bias", "mlp_bias", "rope_interleave")),
    *((key, True) for key in ("use_mtp_layernorm", "eh_proj_before_attn", "eh_proj_bias", "parallel_drafting")),
    *((key, True) for key in ("mla_use_nope", "mla_use_output_gate", "attn_output_gate", "use_sliding_window")),
    *((key, 4) for key in ("parallel_draft_step", "mask_token_id", "ptd_token_id", "pard_token", "num_depths")),
    *((key, 0.5) for key in ("partial_rotary_factor", "logit_scale", "logits_scaling", "final_logit_softcapping")),
    *((key, 2.0) for key in ("residual_multiplier", "embedding_multiplier", "attention_multiplier")),
    *((key, 4) for key in ("sliding_window", "num_aux_hidden_states", "max_window_layers", "query_pre_attn_scalar")),
    *((key, 3) for key in ("num_aux_hidden_states", "num_nextn_predict_layers", "kv_lora_rank", "v_head_dim")),
    *((key, "gelu") for key in ("hidden_act", "hidden_activation")),
    *((key, "gelu_pytorch_tanh") for key in ("hidden_act", "hidden_activation")),
    *((key, 1e-3) for key in ("rms_norm_eps", "layer_norm_eps", "norm_eps")),
    *((key, 123.0) for key in ("rope_theta", "rope_base", "rotary_emb_base", "rope_local_base_freq")),
    *((key, 32) for key in ("head_dim", "num_key_value_heads", "target_hidden_size", "hidden_size", "vocab_size")),
    *((key, 1024) for key in ("max_position_embeddings", "original_max_position_embeddings", "vocab_size")),
    ("quantization_config", {"quant_method": "fp8"}),
    ("compression_config", {"format": "int"}),
    ("dflash_config", {"mask_token_id": 3}),
    ("layer_types", ["sliding_attention"]),
    ("layer_types", ["full_attention"]),
    ("tie_word_embeddings", True),
    ("speculators_model_type", "peagle"),
    ("speculators_model_type", "eagle3"),
    ("_torchspec_version", "0.1.0"),
    ("sglang_eagle31_version", "0.1.0"),
    ("eagle31_converted", True),
    ("eagle31_spec", {"producer": "x"}),
    ("medusa_num_heads", 3),
)
ROPES: tuple[dict[str, Any], ...] = (
    {"rope_type": "linear", "factor": 2.0},
    {"type": "linear", "factor": 4},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0},
    {"type": "yarn", "factor": 16.0, "beta_fast": 16, "beta_slow": 2.0, "attention_factor": 1.2},
    {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5},
    {"rope_type": "yarn", "factor": 4.0, "truncate": False},
    {"rope_type": "default"},
    {"rope_type": "default", "rope_theta": 777.0},
)
ROPE_EXTRAS: tuple[tuple[str, Any], ...] = (
    *(("factor", value) for value in (None, 0, -2, 1, 1.0, "4", True, float("inf"), [4])),
    *(("original_max_position_embeddings", value) for value in (512, 2048.0, 0, "512", None, -1, 10**9)),
    *(("rope_theta", value) for value in (123.0, 0, "1e4", None)),
    *(
        ("rope_type", value)
        for value in ("mrope", "su", "longrope", "deepseek_yarn", "proportional", None, 3, ["yarn"])
    ),
    *((key, value) for key in ("attention_factor", "mscale", "mscale_all_dim") for value in (None, 0, 0.7, "1", -1)),
    *((key, value) for key in ("beta_fast", "beta_slow", "low_freq_factor") for value in (None, 0, 64, "1", True)),
    *(("mrope_section", [2, 3, 3]), ("mrope_interleaved", True), ("alpha", 2.0), ("truncate", False), ("truncate", 0)),
    *(("partial_rotary_factor", value) for value in (0.5, 0.3, 1.0, 1.5, "0.5", 0)),
    *(("short_factor", [1.0]), ("extrapolation_factor", 0.5), ("high_freq_factor", 1.0), ("type", "yarn")),
)


def paths(config: dict[str, Any]) -> list[tuple[str, ...]]:
    """Every key, nested ones included, sorted."""
    found: list[tuple[str, ...]] = []
    for name, value in config.items():
        found.append((name,))
        if isinstance(value, dict):
            found += [(name, *rest) for rest in paths(value)]
    return sorted(found)


def holder(config: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The object that has the last key of a path."""
    for name in path[:-1]:
        config = config[name]
    return config


def section(head: Head, name: str) -> dict[str, Any]:
    """A nested object of the config, made if it is not there."""
    if not name:
        return head.config
    if not isinstance(head.config.get(name), dict):
        head.config[name] = {}
    return head.config[name]  # type: ignore[no-any-return]


def dotted(path: tuple[str, ...]) -> str:
    """As it is written in messages."""
    return ".".join(path)


@kind
def config_delete(head: Head, rng: random.Random) -> str:
    path = rng.choice(paths(head.config))
    del holder(head.config, path)[path[-1]]
    return dotted(path)


@kind
def config_rename(head: Head, rng: random.Random) -> str:
    path = rng.choice(paths(head.config))
    inner, new = holder(head.config, path), typo(path[-1], rng)
    inner[new] = inner.pop(path[-1])
    return f"{dotted(path)} -> {new!r}"


@kind
def config_retype(head: Head, rng: random.Random) -> str:
    path = rng.choice(paths(head.config))
    inner = holder(head.config, path)
    old, value = inner[path[-1]], copy.deepcopy(rng.choice(VALUES))
    changed = [str(old), [old], {"value": old}, value, value, value]
    inner[path[-1]] = rng.choice(changed)
    return f"{dotted(path)}={old!r} -> {str(inner[path[-1]])[:60]!r}"


@kind
def config_number(head: Head, rng: random.Random) -> str:
    """A number near the right one, or a flag turned."""
    numeric = [p for p in paths(head.config) if isinstance(holder(head.config, p)[p[-1]], int | float)]
    path = rng.choice(numeric)
    inner = holder(head.config, path)
    old = inner[path[-1]]
    near = [old + 1, old - 1, old * 2, old // 2, old / 2, -old, float(old), old * 10**6, 0]
    inner[path[-1]] = (not old) if isinstance(old, bool) else rng.choice(near)
    return f"{dotted(path)}={old!r} -> {inner[path[-1]]!r}"


@kind
def config_move(head: Head, rng: random.Random) -> str:
    """A key in another section, alone or as well, with its value or another one."""
    path = rng.choice(paths(head.config))
    old = holder(head.config, path)[path[-1]]
    to = rng.choice([name for name in SECTIONS if name != (path[0] if len(path) > 1 else "") and name != path[-1]])
    if rng.random() < 0.6:
        del holder(head.config, path)[path[-1]]
    section(head, to)[path[-1]] = copy.deepcopy(old)
    return f"{dotted(path)} -> {to or 'top'}"


@kind
def config_copy(head: Head, rng: random.Random) -> str:
    """The same key in a second section with another value."""
    path = rng.choice(paths(head.config))
    old = holder(head.config, path)[path[-1]]
    value = {bool: lambda: not old, int: lambda: old + 1, float: lambda: old * 2, list: lambda: old[:-1]}
    to = rng.choice([name for name in SECTIONS if name != (path[0] if len(path) > 1 else "")])
    section(head, to)[path[-1]] = value.get(type(old), lambda: rng.choice(VALUES[:30]))()
    return f"{dotted(path)}={str(old)[:30]} and {to or 'top'} has {str(section(head, to)[path[-1]])[:60]}"


@kind
def config_semantic(head: Head, rng: random.Random) -> str:
    """A key of some producer that could change the computation."""
    key, value = rng.choice(SEMANTIC)
    to = rng.choice(("", "", "eagle_config", "transformer_layer_config" if "speculators" in head.variant else ""))
    section(head, to)[key] = copy.deepcopy(value)
    return f"{to}.{key}={value!r}"


@kind
def config_foreign(head: Head, rng: random.Random) -> str:
    """Keys of another producer's head beside, or in place of, this one's."""
    other = rng.choice(sorted(producers.VARIANTS))
    config = producers.VARIANTS[other].files(producers.head(other, head.shape), head.shape)[0]
    if rng.random() < 0.3:
        head.config, head.other = {**config, **head.config}, other
        return f"missing keys of {other}"
    if rng.random() < 0.3:
        head.config, head.other = copy.deepcopy(config), other
        return f"the config of {other}"
    fresh = sorted(set(config) - set(head.config)) or sorted(config)
    key = rng.choice(fresh)
    head.config[key] = copy.deepcopy(config[key])
    head.other = other if key == "eagle_config" else ""
    return f"{key} of {other}"


@kind
def config_architectures(head: Head, rng: random.Random) -> str:
    names = ["LlamaForCausalLM", "LlamaForCausalLMEagle3", "LlamaForCausalLMEagle3Deep", "Eagle3LlamaForCausalLM"]
    names += ["Eagle3Speculator", "LlamaEagle3DraftModel", "Eagle3DeepseekV2ForCausalLM", "Eagle3Qwen3ForCausalLM"]
    names += ["PEagleDraftModel", "LlamaForCausalLMEagle", "Unknown", "CosyVoice3Eagle3LlamaForCausalLM"]
    one = rng.choice(names)
    odd: tuple[Any, ...] = ([one], [one], [one], rng.sample(names, 2), one, [], None, 5, {one: 1}, [3], [[one]], True)
    head.config["architectures"] = rng.choice(odd)
    return str(head.config["architectures"])


@kind
def config_ids(head: Head, rng: random.Random) -> str:
    """Layer ids permuted, repeated, shifted, more, fewer, none, or at another place."""
    found = [path for path in paths(head.config) if path[-1] == IDS]
    at = found[0] if found else rng.choice(((IDS,), ("eagle_config", IDS)))
    inner = section(head, at[0] if len(at) > 1 else "")
    old = inner.get(IDS) or [1, 3, 4]
    count = head.shape.target_layers
    changed: tuple[Any, ...] = (
        *(old[::-1], old + old[-1:], [old[0]] * 3, [i + 1 for i in old], [i - 1 for i in old], [*old, 6], old[:-1]),
        *([], None, [0, 1, 2], [-1, 2, 4], [2, 4, count], [2, 4, count - 1], [2, 4, count + 1], [2, 4, 10**9], [1]),
        *([float(i) for i in old], [str(i) for i in old], [*old[:-1], True], ",".join(map(str, old)), old[0], [old]),
        *({"0": 1}, list(range(100_000)), [1, 3, 4], [2, 4, 5], [1, 3, 6], [3, 5, 6]),
    )
    inner[IDS] = rng.choice(changed)
    return f"{dotted(at)}={str(inner[IDS])[:60]}"


@kind
def config_rope(head: Head, rng: random.Random) -> str:
    """A scaling that can be run, or one of its numbers missing, ill-typed or another one."""
    layer = section(head, "transformer_layer_config" if "transformer_layer_config" in head.config else "")
    where = rng.choice(("rope_scaling", "rope_scaling", "rope_parameters"))
    scaling = dict(rng.choice(ROPES))
    if isinstance(layer.get(where), dict) and rng.random() < 0.5:
        scaling = dict(layer[where])
    for key, value in rng.sample(ROPE_EXTRAS, rng.choice((0, 0, 1, 1, 2))):
        scaling[key] = value
    if rng.random() < 0.2:
        scaling.pop(rng.choice(sorted(scaling)))
    if rng.random() < 0.5:
        layer.pop("rope_parameters" if where == "rope_scaling" else "rope_scaling", None)
    layer[where] = scaling
    if rng.random() < 0.2:
        layer.pop("rope_theta", None)
    return f"{where}={scaling}"
