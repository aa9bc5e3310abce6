"""The producers' rules: which names, keys, ids and defaults each of them writes and trains with."""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from transformers import LlamaConfig, Qwen3Config

from truth.readers_config import (
    Config,
    Unreadable,
    declared_window,
    flag,
    neutral,
    only,
    require,
    rope,
    section,
    undeclared_window,
)
from truth.reference_rope import yarn_factor

MID, LAYERS, DEEP = "midlayer", "layers.N", "midlayer.N"
IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, kw_only=True)
class Rules:
    """One producer.

    ids: `none` never written; `out` / `boundary` which convention; `vllm` vLLM's places, boundaries; `converted`
    either, so a fact; `nvidia` output ids, but boundaries where they reach the last block; `torchspec` either place,
    boundaries in a vLLM export for Kimi, else outputs. default: whether missing ids are the default triple.
    later: what layers after the first norm; None for one layer; `tensors` as found. model_prefix: whether names start
    with `model.`. feedback: `pre`, `norm_output` (post iff the key), or a producer with a rule of its own.
    """

    layer_prefixes: tuple[str, ...]
    model_prefix: str = "never"  # never | sometimes | always
    ids: str = "out"
    default: bool = True
    default_set: bool = False  # ModelOpt: where two of the triple are the same, one of them
    later: str | None = None
    pre_fc: tuple[str, ...] = ("none",)
    residual: str = "pre"  # pre | key | stated
    feedback: str = "pre"
    attention: str | None = "gqa"
    bias_keys: bool = False
    norm_flags: bool = False  # eagle_config's use_aux_hidden_state, use_*_layernorm are ModelOpt's
    nested: bool = False
    windows: bool = False
    aux_norm_names: bool = False
    ignores_full_d2t: bool = False
    softmax_mscale: bool = True
    shares_head: str = "never"  # never | null (where draft_vocab_size is) | full (vocabulary)


FC_NORM, ANY_NORM = ("none", "fc_norm"), ("none", "fc_norm", "input_norm")

SPECULATORS = Rules(
    layer_prefixes=(LAYERS,),
    ids="boundary",
    later="input_layernorm",
    pre_fc=ANY_NORM,
    residual="key",
    feedback="norm_output",
    bias_keys=True,
    nested=True,
    windows=True,
)
MODELOPT = Rules(
    layer_prefixes=(LAYERS, MID, DEEP),
    later="input_layernorm",
    attention=None,
    bias_keys=True,
    norm_flags=True,
    default_set=True,
)
NEMO = Rules(
    layer_prefixes=(LAYERS,),
    model_prefix="sometimes",  # its server for vLLM strips it
    ids="none",
    pre_fc=FC_NORM,
    feedback="norm_output",
    bias_keys=True,
)
TORCHSPEC = Rules(layer_prefixes=(MID, LAYERS), ids="torchspec", pre_fc=FC_NORM, feedback="norm_output")
RULES: dict[str, Rules] = {
    "safeailab": Rules(layer_prefixes=(MID,), ids="none", ignores_full_d2t=True),
    "specforge": Rules(layer_prefixes=(MID, LAYERS), pre_fc=FC_NORM, feedback="specforge"),
    "eagle31_native": Rules(layer_prefixes=(MID,), pre_fc=FC_NORM, feedback="norm_output"),
    "torchspec": TORCHSPEC,
    "torchspec_mla": replace(TORCHSPEC, attention="mla"),
    "speculators": SPECULATORS,
    "speculators_converted": replace(SPECULATORS, ids="converted", residual="stated"),
    "modelopt_hf": MODELOPT,
    "modelopt_megatron": replace(MODELOPT, layer_prefixes=(MID, DEEP), later="hidden_norm"),
    "nvidia": Rules(
        layer_prefixes=(MID, DEEP, LAYERS),
        ids="nvidia",
        default=False,
        later="tensors",
        pre_fc=ANY_NORM,
        feedback="nvidia",
        shares_head="null",
        attention=None,
        norm_flags=True,
    ),
    "nemo": NEMO,
    "nemo_mla": replace(NEMO, attention="mla", bias_keys=False, softmax_mscale=False),
    "angelslim": Rules(layer_prefixes=(MID,), ids="none"),
    "specdrift": Rules(
        layer_prefixes=(MID, LAYERS), later="hidden_norm", pre_fc=FC_NORM, feedback="specdrift", aux_norm_names=True
    ),
    "vllm": Rules(
        layer_prefixes=(MID, LAYERS),
        model_prefix="sometimes",
        ids="vllm",
        later="input_layernorm",
        pre_fc=ANY_NORM,
        residual="key",
        feedback="norm_output",
        shares_head="full",
        attention=None,
        windows=True,
        bias_keys=True,
    ),
}


def layer_config(config: Config, rules: Rules) -> Config:
    """The keys of the layers: the top level, or speculators' nested config with its class's values for omitted keys."""
    if not rules.nested:
        return config
    stated = dict(section(config, "transformer_layer_config"))
    classes = {"llama": LlamaConfig, "qwen3": Qwen3Config}
    require(stated.get("model_type") in classes, f"transformer_layer_config.model_type={stated.get('model_type')!r}")
    kinds = ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers")
    keys = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps")
    others = ("max_position_embeddings", "attention_bias", "rope_parameters")
    rope_keys = ("rope_theta", "rope_scaling", "partial_rotary_factor", "original_max_position_embeddings")
    plain = {k: v for k, v in stated.items() if k in (*keys, *others, *rope_keys, "mlp_bias", "hidden_activation")}
    for key in ("rope_scaling", "rope_parameters"):  # null counts as absent, which the classes' own checks do not know
        if isinstance(plain.get(key), dict):
            plain[key] = {k: v for k, v in plain[key].items() if v is not None or k == "truncate"}
    full = classes[stated["model_type"]](**plain)
    return {
        **{key: getattr(full, key) for key in keys + others},
        "mlp_bias": getattr(full, "mlp_bias", False),
        **{key: stated[key] for key in kinds if key in stated},
    }


def boundaries(
    config: Config, rules: Rules, blocks: int, states: int, facts: Config, numbered: bool
) -> tuple[int, ...]:
    """The captured boundaries, strictly ascending, as many as fc has room for."""
    found = facts.get("boundaries")
    if found is None:
        found = _stated_boundaries(config, rules, blocks, numbered)
    if found is None:
        require(rules.default, "no layer ids, and no published default for them")
        found = (2, blocks // 2, blocks - 3)
        if rules.default_set:
            found = tuple(sorted(set(found)))
    require(all(isinstance(b, int) and not isinstance(b, bool) and 0 <= b <= blocks for b in found), f"layers {found}")
    require(all(a < b for a, b in zip(found, found[1:], strict=False)), f"layers {found} do not ascend")
    require(len(found) == states, f"{len(found)} layers, fc takes {states}")
    return tuple(found)


def _stated_boundaries(config: Config, rules: Rules, blocks: int, numbered: bool) -> tuple[int, ...] | None:
    top, inner = config.get(IDS), section(config, "eagle_config").get(IDS)
    if rules.ids == "vllm":
        ids = next((i for i in (top, section(config, "dflash_config").get(IDS), inner) if i is not None), None)
    elif rules.ids == "torchspec":
        ids = only((top, inner), IDS)
    elif rules.nested:
        ids = top
    else:
        require(top in (None, inner), f"{IDS} at the top level, where this producer does not write it")
        ids = inner
    if ids is None:
        return None
    require(isinstance(ids, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in ids), f"ids {ids!r}")
    require(rules.ids not in ("none", "converted"), f"{IDS}={ids} in an unknown convention")
    if rules.ids in ("boundary", "vllm"):
        return tuple(ids)
    if rules.ids == "nvidia" and ids and max(ids) == blocks:  # no block has this output
        return tuple(ids)
    if rules.ids == "torchspec" and numbered:  # an export for vLLM
        require(config.get("model_type"), f"{IDS}={ids}: outputs, unless the unstated model_type is kimi_k2")
        if config["model_type"] == "kimi_k2":
            return tuple(ids)
    return tuple(i + 1 for i in ids)


def pre_fc_norm(config: Config, rules: Rules, tensors: dict[str, Tensor], facts: Config) -> str:
    """Tensors decide; flags that are stated, and the fact, must agree."""
    eagle = section(config, "eagle_config")
    fc_norm = any(n.startswith("fc_norm.") for n in tensors)
    input_norm = "input_norm.weight" in tensors
    require(not (fc_norm and input_norm), "fc_norm and input_norm")
    before_fc = [flag(c, "norm_before_fc", None) for c in (config, eagle)]
    if rules.ids != "vllm":  # NVIDIA's key is in eagle_config only, speculators' at the top level only
        neutral(eagle if rules.nested else config, ("norm_before_fc",))
    stated = [("fc_norm", fc_norm, flag(config, key, None)) for key in ("fc_norm", "use_aux_norm")]
    for name, found, said in (*stated, *(("norm_before_fc", input_norm, b) for b in before_fc)):
        require(said is None or said == found, f"{name}={said} contradicts the tensors")
    kind = "fc_norm" if fc_norm else "input_norm" if input_norm else "none"
    require(kind in rules.pre_fc, f"{kind} is not trained by this producer")
    require(facts.get("pre_fc_norm", kind) == kind, "the fact pre_fc_norm contradicts the tensors")
    return kind


def residual(config: Config, rules: Rules, facts: Config) -> str:
    """`norm_before_residual` where it is a key of the producer (absent: its class's False); the others train `pre`."""
    if "residual" in facts:
        return str(facts["residual"])
    if rules.residual == "pre":
        neutral(config, ("norm_before_residual",))
        return "pre"
    stated = flag(config, "norm_before_residual", None)
    require(stated is not None or rules.residual == "key", "norm_before_residual is not stated")
    return "post" if stated else "pre"


def feedback(config: Config, rules: Rules, facts: Config) -> str:
    """Which state goes on to the next step. SpecForge's `norm_output` has had two meanings, so it takes a fact."""
    if "feedback" in facts:
        return str(facts["feedback"])
    stated = flag(config, "norm_output", None)
    if rules.feedback == "pre":
        neutral(config, ("norm_output",))
        return "pre"
    if rules.feedback == "specforge":
        require(stated is None, f"SpecForge norm_output={stated}")
        return "pre"
    if rules.feedback == "specdrift":
        require(stated is not False, "SpecDrift without post-norm feedback")
        return "post"
    if rules.feedback == "nvidia":
        stated = stated or flag(section(config, "eagle_config"), "return_hidden_post_norm")
    elif rules.feedback != "norm_output":
        raise Unreadable(rules.feedback)
    return "post" if stated else "pre"


def rope_of(layer: Config, rules: Rules, facts: Config) -> dict[str, Any]:
    """Positions. NeMo's MLA keeps YaRN's factor on cos and sin, but its softmax scale is without mscale."""
    found = rope(layer, facts)
    scaling = found["rope_scaling"]
    if not rules.softmax_mscale and scaling and scaling["rope_type"] == "yarn":
        factor = yarn_factor(scaling, mla=True)
        rest = {k: v for k, v in scaling.items() if k not in ("mscale", "mscale_all_dim")}
        found["rope_scaling"] = {**rest, "attention_factor": factor}
    return found


def window(layer: Config, rules: Rules, num_layers: int, facts: Config) -> int | None:
    """Keys that a query sees, itself included; None for all."""
    if "sliding_window" in facts:
        return facts["sliding_window"]  # type: ignore[no-any-return]
    if rules.windows:
        return declared_window(layer, num_layers)
    undeclared_window(layer)
    return None
