"""config.json's keys: read with types, and refused by name where they could change the computation unread."""

from __future__ import annotations

from typing import Any

import heads
import pytest
from truth.producers import VARIANTS

from sglang_eagle31.head.check import resolve
from sglang_eagle31.head.dialects import DIALECTS
from sglang_eagle31.head.keys import EAGLE, SEMANTIC, Found, Keys

OTHER: dict[str, Any] = {
    "hidden_act": "gelu",
    "mask_token_id": 3,
    "ptd_token_id": 3,
    "pard_token": 3,
    "num_depths": 8,
    "sliding_window": 64,
    "partial_rotary_factor": 0.5,
    "logit_scale": 0.25,
    "residual_multiplier": 0.5,
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.5,
    "logits_scaling": 4.0,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
    "query_pre_attn_scalar": 256,
    "parallel_draft_step": 4,
    "parallel_draft_heads_num_layers": 2,
    "dflash_config": {"mask_token_id": 3},
    "quantization_config": {"quant_method": "fp8"},
    "compression_config": {"format": "int8"},
}
"""A value of each semantic key that changes the computation; the others are flags."""
MEANS_NOTHING = {
    # Layers of Medusa heads, of which there are none with one draft step; the next layer of a head of one layer; the
    # bias of a projection that is not there.
    ("modelopt", EAGLE + "parallel_draft_heads_num_layers"),
    ("modelopt", EAGLE + "next_layer_regular"),
    ("nvidia", EAGLE + "parallel_draft_heads_num_layers"),
    ("nvidia", EAGLE + "next_layer_regular"),
    ("nvidia", EAGLE + "eh_proj_bias"),
    # vLLM and speculators apply a window to layers of type sliding_attention only.
    ("vllm", "sliding_window"),
    ("vllm", "use_sliding_window"),
    ("speculators", "sliding_window"),
    ("speculators", "use_sliding_window"),
    # Without a window in it, a flag that says to use it says nothing.
    *((key, "use_sliding_window") for key in DIALECTS),
    # NeMo writes the keys of the target, which its draft does not have.
    ("nemo", "attn_logit_softcapping"),
    ("nemo", "final_logit_softcapping"),
    ("nemo", "query_pre_attn_scalar"),
    ("nemo", "quantization_config"),
    ("nemo", "compression_config"),
    ("nemo", EAGLE + "attn_logit_softcapping"),
    ("nemo", EAGLE + "final_logit_softcapping"),
    ("nemo", EAGLE + "query_pre_attn_scalar"),
    ("nemo", EAGLE + "quantization_config"),
    ("nemo", EAGLE + "compression_config"),
}


CONTRADICTS = {
    "use_aux_hidden_state": "fc.weight",
    "use_input_layernorm_in_first_layer": "hidden_norm.weight",
    "use_last_layernorm": "norm.weight",
}
"""The tensor that is too many when the flag is false; the reason names the tensor."""


def other(name: str) -> Any:
    return OTHER.get(name, True not in SEMANTIC[name])


def agrees(variant: str, name: str) -> bool:
    """Whether the value of `other` says what the variant's head does anyway."""
    facts = VARIANTS[variant].facts(heads.SHAPE)
    return {
        "fc_norm": facts["pre_fc_norm"] == "fc_norm",
        "use_aux_norm": facts["pre_fc_norm"] == "fc_norm",
        "norm_before_fc": facts["pre_fc_norm"] == "input_norm",
        "norm_output": facts["feedback"] == "post",
    }.get(name, False)


def bent(variant: str, place: str, name: str, value: Any) -> Any:
    return heads.bend(heads.kept(variant), **{"eagle" if place else "config": {name: value}})


@pytest.mark.parametrize("key", DIALECTS)
@pytest.mark.parametrize("place", ["", EAGLE])
def test_no_semantic_key_passes_without_effect(key: str, place: str) -> None:
    """Each is refused or asked by its name, or changes the spec."""
    variant = heads.EXAMPLES[key]
    plain = resolve(heads.kept(variant), heads.target_of(), {})[0].spec()
    passed, unnamed = [], []
    for name in SEMANTIC:
        head = bent(variant, place, name, other(name))
        if head.config == heads.kept(variant).config or agrees(variant, name):
            continue
        reading, reasons = resolve(head, heads.target_of(), {})
        said = [name, "mask_token_id", *([CONTRADICTS[name]] if name in CONTRADICTS else ())]
        # Their heads have no eagle_config, so it is another producer's head, or nobody's.
        foreign = key in ("safeailab", "speculators") and place
        if reasons and not foreign and not any(part in reason for reason in reasons for part in said):
            unnamed.append((place + name, reasons))
        if not all("fix: " in reason for reason in reasons):
            unnamed.append((place + name, reasons))
        if not reasons and reading.spec() == plain and (key, place + name) not in MEANS_NOTHING:
            passed.append(place + name)
    assert (passed, unnamed) == ([], [])


READ = {"norm_before_fc", "use_aux_hidden_state"}
"""Read in both places by every dialect."""
READ_AT_TOP = {
    "fc_norm",
    "hidden_act",
    "norm_output",
    "partial_rotary_factor",
    "sliding_window",
    "use_aux_norm",
    "use_sliding_window",
}


@pytest.mark.parametrize("name", SEMANTIC)
@pytest.mark.parametrize("place", ["", EAGLE])
def test_a_neutral_value_is_not_in_the_way(place: str, name: str) -> None:
    if place and name in READ_AT_TOP:
        return  # it stands where nobody reads it, which is refused whatever it says
    for value in SEMANTIC[name]:
        if (name, value) == ("norm_output", False):
            continue  # SpecForge read it differently before and after its PR 879
        assert resolve(bent("specforge", place, name, value), heads.target_of(), {})[1] == [], (name, value)


NAMES_A_PRODUCER = {
    "use_input_layernorm_in_first_layer",
    "use_last_layernorm",
    "use_mtp_layernorm",
    "next_layer_regular",
    "parallel_draft_step",
    "parallel_draft_heads_num_layers",
    "return_hidden_post_norm",
    "eh_proj_before_attn",
    "eh_proj_bias",
}
"""Under ``eagle_config``: of ModelOpt's and NVIDIA's heads, which are then read as such."""
UNREAD = [
    (place, name)
    for place in ("", EAGLE)
    for name in SEMANTIC
    if name not in READ | (NAMES_A_PRODUCER if place else READ_AT_TOP) | {"norm_before_residual"}  # that one is asked
]


@pytest.mark.parametrize(("place", "name"), UNREAD)
def test_a_semantic_key_that_nothing_reads_is_refused_by_name(place: str, name: str) -> None:
    value = other(name)
    _, reasons = resolve(bent("specforge", place, name, value), heads.target_of(), {})
    assert reasons and all("fix: " in reason for reason in reasons)
    if not place and name in ("mask_token_id", "ptd_token_id", "pard_token", "parallel_drafting"):
        assert len(reasons) == 1 and f"P-EAGLE (config key {name}={value!r})" in reasons[0]
        return
    stray = place and name in READ_AT_TOP
    why = "where SpecForge does not write that key" if stray else "which SpecForge heads do not have"
    assert any(f"config.json has {place}{name}={value!r}, {why}" in reason for reason in reasons)
    assert all(f"--eagle31-override ignore={name}" in reason for reason in reasons)


@pytest.mark.parametrize("name", ["norm_before_residual", "logit_scale", "hidden_act", "quantization_config"])
def test_a_nested_config_is_looked_through_too(name: str) -> None:
    head = heads.bend(heads.kept("speculators"), nested={name: other(name)})
    _, reasons = resolve(head, heads.target_of(), {})
    assert len(reasons) == 1 and f"transformer_layer_config.{name}=" in reasons[0] and "fix: " in reasons[0]


FLAG, COUNT, NUMBER, TEXT = "true or false", "a positive integer", "a positive number", "text"
LISTS, OBJECT = "a list of integers", "an object"
BAD: dict[str, tuple[Any, ...]] = {
    FLAG: ("true", 1, 0, [], {}),
    COUNT: ("1", 0, -1, 1.5, True, [64], 2**40),
    NUMBER: ("1e-5", 0, -1.0, True, [], float("nan"), float("inf")),
    TEXT: (1, True, ["silu"]),
    OBJECT: ("yarn", 4, True, ["factor"]),
    LISTS: ([], [1.0, 3, 4], [True, 3, 4], ["1", 3, 4], 1, "1,3,4", {}),
}
TYPED = [
    ("specforge31", "config", "norm_output", FLAG),
    ("specforge31", "config", "fc_norm", FLAG),
    ("specforge", "config", "tie_word_embeddings", FLAG),
    ("specforge", "config", "bias", FLAG),
    ("specforge", "config", "use_aux_norm", FLAG),
    ("specforge", "eagle", "use_aux_hidden_state", FLAG),
    ("specforge", "eagle", "norm_before_fc", FLAG),
    ("speculators", "config", "norm_before_residual", FLAG),
    ("speculators", "nested", "attention_bias", FLAG),
    ("modelopt_megatron_full_vocab", "eagle", "use_last_layernorm", FLAG),
    ("modelopt_megatron_full_vocab", "eagle", "use_input_layernorm_in_first_layer", FLAG),
    ("nvidia_post_norm", "eagle", "return_hidden_post_norm", FLAG),
    ("specforge", "config", "hidden_size", COUNT),
    ("specforge", "config", "intermediate_size", COUNT),
    ("specforge", "config", "target_hidden_size", COUNT),
    ("specforge", "config", "num_key_value_heads", COUNT),
    ("specforge", "config", "head_dim", COUNT),
    ("specforge", "config", "draft_vocab_size", COUNT),
    ("specforge", "config", "max_position_embeddings", COUNT),
    ("specforge", "config", "num_aux_hidden_states", COUNT),
    ("specforge", "config", "num_attention_heads", COUNT),
    ("torchspec_mla", "config", "kv_lora_rank", COUNT),
    ("torchspec_mla", "config", "q_lora_rank", COUNT),
    ("speculators", "nested", "sliding_window", COUNT),
    ("specforge", "config", "rms_norm_eps", NUMBER),
    ("specforge", "config", "rope_theta", NUMBER),
    ("specforge", "config", "partial_rotary_factor", NUMBER),
    ("specforge", "config", "hidden_act", TEXT),
    ("specforge", "config", "rope_scaling", OBJECT),
    ("specforge", "config", "rope_parameters", OBJECT),
    ("specforge", "eagle", heads.IDS, LISTS),
    ("vllm", "config", heads.IDS, LISTS),
]


@pytest.mark.parametrize(("variant", "where", "name", "expected"), TYPED)
def test_an_ill_typed_value_is_refused_with_what_was_expected(
    variant: str, where: str, name: str, expected: str
) -> None:
    place = {"config": "", "eagle": EAGLE, "nested": "transformer_layer_config."}[where]
    for value in BAD[expected]:
        _, reasons = resolve(heads.bend(heads.kept(variant), **{where: {name: value}}), heads.target_of(), {})
        assert f"config.json has {place}{name}={value!r}, expected {expected}; fix: correct it" in reasons, value
        assert all("fix: " in reason for reason in reasons)


def test_an_ill_typed_value_is_named_once() -> None:
    head = heads.bend(heads.kept("specforge"), config={"fc_norm": "yes"})
    assert len(resolve(head, heads.target_of(), {})[1]) == 1


def test_the_first_place_wins_and_all_are_read() -> None:
    keys = Keys({"a": 1, "inner": {"a": 1, "b": 3}, "c": None}, places=("inner.", ""))
    assert keys.find("a") == Found(1, "inner.a") and keys.find("a", "") == Found(1, "a")
    assert keys.count("b") == Found(3, "inner.b") and keys.find("b").source == "config inner.b"  # type: ignore[union-attr]
    assert keys.find("c") is None and keys.find("d") is None
    assert {"inner.a", "a", "inner.b", "b", "inner.c", "c"} <= keys.read
    assert keys.refusals == []


def test_two_places_that_disagree_are_refused() -> None:
    keys = Keys({"a": 1, "inner": {"a": 2}}, places=("inner.", ""))
    assert keys.find("a") == Found(2, "inner.a")
    assert keys.refusals == ["config.json has inner.a=2 and a=1; fix: keep the one it was trained with"]


@pytest.mark.parametrize("value", ["eagle", 3, True, ["a"], [[heads.IDS, [1, 3, 4]]]])
@pytest.mark.parametrize("variant", ["specforge", "eagle31_native", "vllm", "torchspec"])
def test_a_place_that_is_no_object_is_refused(variant: str, value: Any) -> None:
    """Its layer ids would be lost, and the default ones taken."""
    _, reasons = resolve(heads.bend(heads.kept(variant), config={"eagle_config": value}), heads.target_of(), {})
    assert any("eagle_config" in reason for reason in reasons) and all("fix: " in reason for reason in reasons)


@pytest.mark.parametrize("value", ["llama", 3, ["a"]])
def test_a_nested_config_that_is_no_object_is_refused(value: Any) -> None:
    head = heads.bend(heads.kept("speculators"), config={"transformer_layer_config": value})
    _, reasons = resolve(head, heads.target_of(), {})
    assert any("transformer_layer_config" in reason for reason in reasons)


def test_what_was_read_or_ignored_is_not_left() -> None:
    keys = Keys({"my_norm": 1, "norm_output": True, "other_norm": 2, "eagle_config": {"my_norm": 3}, "colour": "red"})
    keys.find("my_norm")
    assert [found.where for found in keys.unread()] == ["norm_output", "other_norm", "eagle_config.my_norm"]
    assert [found.where for found in keys.unread(frozenset({"my_norm", "other_norm"}))] == ["norm_output"]
    assert [found.where for found in keys.unread(frozenset({"eagle_config.my_norm"}))] == ["norm_output", "other_norm"]
