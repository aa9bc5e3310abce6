"""What every producer's layout shares: names, widths, switches, layer ids and positions of an EAGLE-3 head.

Tensors decide wherever they can. A producer's dialect gives the `Rules` and then settles what is its own: residual,
feedback, windows, doubts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.dialects import layer_ids, sizes, vocabulary
from sglang_eagle31.head.dialects.rope import read_rope
from sglang_eagle31.head.dialects.window import ask_window
from sglang_eagle31.head.keys import EAGLE, Found, Keys
from sglang_eagle31.head.reading import Reading, Target

IDS = "eagle_aux_hidden_state_layer_ids"
IGNORED = re.compile(r"^(t2d|(.*\.)?rotary_emb\.inv_freq|verifier_(lm_head|norm)\..*)$")
LLAMA: Mapping[str, Any] = {"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 2048}


@dataclass(frozen=True)
class Rules:
    """What a producer's files are like.

    Attributes:
        producer: its name.
        renames: regular expressions and replacements that turn its tensor names into canonical ones.
        places: where it writes the keys of the layers and of the head; the first that has a key wins.
        defaults, class_name: what its config class takes for keys that are not written, and that class.
        ids_at: dotted places of its layer ids; none where it writes none.
        ids: whether they name the layer whose output or whose input (the boundary) is taken.
        default_ids: whether files without ids mean EAGLE-3's default triple by its published rule.
        bias_flags: whether its ``attention_bias`` and ``mlp_bias`` speak of the head (else they are the target's).
        ignored: keys that it writes and that change nothing in its heads.
        pre_fc: the norms before ``fc`` that it trains.
        shares_head: whether a head may leave ``lm_head`` to the target: never, where ``draft_vocab_size`` is null, or
            with the full vocabulary.
        gemma_keys: whether ``hidden_activation``, Gemma's name of ``hidden_act``, speaks of the head.
        later: the norms before the attention of its layers after the first; without, its heads have one layer.
    """

    producer: str
    renames: tuple[tuple[str, str], ...] = ((r"^midlayer\.", "layers.0."),)
    places: tuple[str, ...] = ("",)
    defaults: Mapping[str, Any] = field(default_factory=lambda: LLAMA)
    class_name: str = "the Llama config"
    ids_at: tuple[str, ...] = (EAGLE,)
    ids: Literal["output", "input"] = "output"
    default_ids: bool = True
    bias_flags: bool = False
    ignored: frozenset[str] = frozenset()
    pre_fc: tuple[str, ...] = ("none", "fc_norm")
    shares_head: Literal["never", "null", "full"] = "never"
    gemma_keys: bool = False
    later: tuple[str, ...] = ()


def read_layout(head: Checkpoint, target: Target, rules: Rules) -> tuple[Reading, Keys]:
    """Everything that the layouts share; residual ``pre``, feedback ``pre``, normed logits and no window to begin with.

    Returns:
        the reading, and the keys for what the dialect reads itself; it ends with `finish`.
    """
    reading = Reading(rules.producer)
    keys = Keys(head.config, rules.places, rules.defaults, rules.class_name, reading.refusals)
    keys.check_sections()
    _names(head, reading, rules)
    _switches(reading, keys, rules)
    _bias_flags(reading, keys, rules)
    sizes.read_sizes(head, target, reading, keys)
    if reading.values.get("num_layers", 0) < 1:
        return reading, keys
    vocabulary.read_vocabulary(head, target, reading, keys, rules.shares_head)
    layer_ids.read_ids(target, reading, keys, rules.ids_at, rules.ids, rules.default_ids)
    read_rope(reading, keys)
    return reading, keys


def finish(reading: Reading, keys: Keys, rules: Rules, overrides: Mapping[str, str]) -> Reading:
    """Refuse, by name, the keys that could change the computation and that nothing has read."""
    if not any(name.endswith("sliding_window") for name in keys.read):
        ask_window(reading, keys)
    _check_layers(reading, rules)
    ignored = rules.ignored | {key.strip() for key in overrides.get("ignore", "").split(",")}
    for found in keys.astray(ignored):
        name = found.where.rpartition(".")[2]
        reading.refusals.append(
            f"config.json has {found.where}={found.value!r}, where {reading.producer} does not write that key; "
            f"fix: move it to where it belongs, or --eagle31-override ignore={name} if it changes nothing in this head"
        )
    for found in keys.unread(ignored):
        name = found.where.rpartition(".")[2]
        if name == "norm_before_residual":
            has = f"config.json has {found.where}={found.value!r}, which {reading.producer} does not write"
            reading.ask("residual", has, "residual=post if it was trained so, residual=pre if the key means nothing")
            continue
        reading.refusals.append(
            f"config.json has {found.where}={found.value!r}, which {reading.producer} heads do not have and this "
            f"package cannot run; fix: --eagle31-override ignore={name} if it changes nothing in this head"
        )
    return reading


def _check_layers(reading: Reading, rules: Rules) -> None:
    """Layers that the producer's code does not build: nothing says what such a head computes."""
    values = reading.values
    if values.get("pre_fc_norm", "none") not in rules.pre_fc:
        reading.refusals.append(
            f"the tensors have {values['pre_fc_norm']}, which {reading.producer} does not train; "
            "fix: --eagle31-override producer=NAME, of who trained it"
        )
    if values.get("attention") == "mla" and values.get("softmax_scale") is None:
        reading.refusals.append(
            f"tensor self_attn.kv_a_proj_with_mqa: {reading.producer} trains no latent attention (MLA); "
            "fix: --eagle31-override producer=NAME, of who trained it"
        )
    if values.get("num_layers", 0) > 1 and values["later_norm"] not in rules.later:
        has = f"{values['num_layers']} layers, and before the attention of layers.1 {values['later_norm']}"
        builds = " or ".join(rules.later) or "one layer"
        reading.refusals.append(
            f"the tensors are of {has}, where {reading.producer} has {builds}; "
            "fix: --eagle31-override producer=NAME, of who trained it"
        )


def _names(head: Checkpoint, reading: Reading, rules: Rules) -> None:
    taken: set[str] = set()
    for name in head.tensors:
        if IGNORED.match(name):
            continue
        canonical = name
        for pattern, replacement in rules.renames:
            canonical = re.sub(pattern, replacement, canonical)
        if canonical in taken:
            reading.refusals.append(f"tensor {name} is in the file twice, under two names; fix: export the head again")
        taken.add(canonical)
        reading.names[name] = canonical


def _switches(reading: Reading, keys: Keys, rules: Rules) -> None:
    names = set(reading.names.values())
    _pre_fc_norm(reading, keys, names)
    for switch, tensor in (
        ("fc_bias", "fc.bias"),
        ("qkv_bias", "layers.0.self_attn.q_proj.bias"),
        ("o_bias", "layers.0.self_attn.o_proj.bias"),
        ("mlp_bias", "layers.0.mlp.gate_proj.bias"),
        ("qk_norm", "layers.0.self_attn.q_norm.weight"),
    ):
        reading.put(switch, tensor in names, _presence(tensor, tensor in names))
    reading.put("use_aux_hidden_state", True, "EAGLE-3 reads captured states")
    reading.put("first_norms", ("input_layernorm", "hidden_norm"), "EAGLE-3's first layer")
    reading.put("double_norm", False, f"{reading.producer} norms the state once")
    reading.put("residual", "pre", f"{reading.producer} adds the un-normed state")
    reading.put("feedback", "pre", f"{reading.producer} feeds the un-normed state back")
    reading.put("logits", "norm", f"{reading.producer} norms before lm_head")
    reading.put("sliding_window", None, "no window in the config")
    later = [name for name in ("input_layernorm", "hidden_norm") if f"layers.1.{name}.weight" in names]
    kind = "both" if len(later) == 2 else later[0] if later else "hidden_norm"
    reading.put("later_norm", kind, f"tensors layers.1.{kind}" if later else "one layer")
    reading.put("final_norm", True, "EAGLE-3's final norm")
    _activation(reading, keys, rules)


def _pre_fc_norm(reading: Reading, keys: Keys, names: set[str]) -> None:
    normed = sum(name.startswith("fc_norm.") for name in names)
    whole = "input_norm.weight" in names
    kind = "fc_norm" if normed else "input_norm" if whole else "none"
    reading.put("pre_fc_norm", kind, f"{normed} tensors fc_norm.*, {'one' if whole else 'no'} input_norm.weight")
    if normed and whole:
        reading.ask(
            "pre_fc_norm",
            "the file has fc_norm.* and input_norm.weight, and engines disagree: TensorRT-LLM applies fc_norm only, "
            "SGLang and vLLM apply both",
            "pre_fc_norm=fc_norm or pre_fc_norm=input_norm, as it was trained",
        )
    flags = (("fc_norm", bool(normed)), ("use_aux_norm", bool(normed)), ("norm_before_fc", whole))
    for name, present in flags:
        flag = keys.flag(name, "", *((EAGLE,) if name == "norm_before_fc" else ()))
        if flag is not None and flag.value != present:
            tensors = "input_norm.weight" if name == "norm_before_fc" else "fc_norm.*"
            has = "has" if present else "has no"
            reading.refusals.append(
                f"config.json says {flag.where}={str(flag.value).lower()}, but the file {has} {tensors}; "
                "fix: correct the key, or export the head again"
            )


def _bias_flags(reading: Reading, keys: Keys, rules: Rules) -> None:
    flags: list[tuple[str, tuple[str, ...]]] = [("bias", ("fc_bias",))]
    if rules.bias_flags:
        flags += [("attention_bias", ("qkv_bias", "o_bias")), ("mlp_bias", ("mlp_bias",))]
    for name, switches in flags:
        flag = keys.flag(name)
        says = bool(flag.value) if flag else False  # as its config class has it where it is not written
        wrong = [switch for switch in switches if reading.values[switch] != says]
        if wrong and (flag is not None or name != "bias"):
            has = f"{'lacks' if says else 'has'} the tensors of {', '.join(wrong)}"
            reading.refusals.append(
                f"config.json has {flag.where if flag else name}={str(says).lower()}, but the file {has}; "
                "fix: correct the key, or export the head again"
            )


def _activation(reading: Reading, keys: Keys, rules: Rules) -> None:
    act, other = keys.text("hidden_act"), keys.text("hidden_activation") if rules.gemma_keys else None
    if act and other and act.value != other.value:
        has = f"config.json has {act.where}={act.value!r} and {other.where}={other.value!r}"
        reading.refusals.append(f"{has}; fix: keep the one it was trained with")
    act = act or other
    reading.put("hidden_act", act.value if act else "silu", act.source if act else f"default of {keys.class_name}")
    if act and act.value not in ("silu", "gelu_pytorch_tanh"):
        reading.refusals.append(
            f"config.json has {act.where}={act.value!r}; this package runs silu and gelu_pytorch_tanh; "
            "fix: use another head"
        )


def _presence(tensor: str, present: bool) -> str:
    return f"tensor {tensor} {'present' if present else 'absent'}"


def norm_output_is_feedback(reading: Reading, keys: Keys, *places: str) -> Found | None:
    """Where ``norm_output`` says whether the post-norm state is fed back: put the feedback.

    A norm for each captured state came with that flag, so a head that has the norms and no flag leaves a question.
    """
    flag = keys.flag("norm_output", *(places or ("",)))
    if flag is not None:
        reading.put("feedback", "post" if flag.value else "pre", f"{flag.source}={str(flag.value).lower()}")
    elif reading.values["pre_fc_norm"] == "fc_norm":
        reading.ask(
            "feedback",
            "the head has fc_norm.*, a norm for each captured state, but config.json has no norm_output",
            "feedback=post (EAGLE 3.1) or feedback=pre, as it was trained",
        )
    return flag
