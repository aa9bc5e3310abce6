"""Positions: the base, its scaling, the rotated part; and latent attention, whose scale depends on them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import heads
import pytest
from heads import SHAPE, Case
from truth.producers_layout import yarn

from sglang_eagle31.head.check import resolve
from sglang_eagle31.head.spec import DrafterSpec

YARN = {"rope_type" if key == "type" else key: value for key, value in yarn(SHAPE).items()}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 2048,
}


def spec_of(variant: str, overrides: dict[str, str] | None = None, **bent: Any) -> DrafterSpec:
    reading, reasons = resolve(heads.bend(heads.kept(variant), **bent), heads.target_of(), overrides or {})
    assert reasons == []
    return reading.spec()


@pytest.mark.parametrize("kind", ["linear", "dynamic"])
@pytest.mark.parametrize("name", ["rope_type", "type"])
def test_a_kind_has_two_spellings(kind: str, name: str) -> None:
    spec = spec_of("specforge", config={"rope_scaling": {name: kind, "factor": 2.0}})
    assert spec.rope_scaling == {"rope_type": kind, "factor": 2.0}
    assert spec.sources["rope_scaling"] == "config rope_scaling" and spec.rope_theta == 50000.0


@pytest.mark.parametrize("scaling", [LLAMA3, YARN], ids=lambda value: value["rope_type"])
def test_parameters_hold_base_and_scaling(scaling: dict[str, Any]) -> None:
    parameters = {**scaling, "rope_theta": 7e5}
    spec = spec_of("specforge", config={"rope_theta": ..., "rope_scaling": ..., "rope_parameters": parameters})
    assert spec.rope_scaling == scaling and spec.rope_theta == 7e5
    assert spec.sources["rope_theta"] == "config rope_parameters.rope_theta"


@pytest.mark.parametrize("value", [{}, {"rope_type": "default"}, {"type": "default"}, {"factor": None}])
def test_no_scaling_is_none(value: dict[str, Any]) -> None:
    assert spec_of("specforge", config={"rope_scaling": value}).rope_scaling is None


@pytest.mark.parametrize("variant", ["specforge", "safeailab", "torchspec", "angelslim", "nemo", "vllm"])
def test_without_a_base_it_is_the_config_class_s(variant: str) -> None:
    spec = spec_of(variant, config={"rope_theta": ..., "rope_parameters": ...})
    assert spec.rope_theta == 10000.0 and spec.sources["rope_theta"] == "default of the Llama config"


@pytest.mark.parametrize(
    "config", [{"partial_rotary_factor": 0.5}, {"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}}]
)
def test_a_part_of_a_head_may_be_rotated(config: dict[str, Any]) -> None:
    assert spec_of("specforge", config=config).partial_rotary_factor == 0.5


@pytest.mark.parametrize("variant", ["safeailab", "angelslim"])
@pytest.mark.parametrize(("theta", "noted"), [(50000.0, True), (10000.0, False), (..., False)])
def test_a_base_that_training_ignored_is_a_question(variant: str, theta: Any, noted: bool) -> None:
    head = heads.bend(heads.kept(variant), config={"rope_theta": theta})
    _, reasons = resolve(head, heads.target_of(), {})
    assert [("rope_theta=10000 if" in reason and "rope_theta=50000 if" in reason) for reason in reasons] == [
        True
    ] * noted
    for answer in ("10000", "50000"):
        reading, reasons = resolve(head, heads.target_of(), {"rope_theta": answer})
        assert reasons == [] and reading.spec().rope_theta == float(answer)


BASES = {"rope_parameters": {"rope_type": "linear", "factor": 2.0}, "rope_scaling": {"type": "linear", "factor": 4.0}}
REFUSED = [
    Case("specforge", ("rope_parameters and another rope_scaling",), {"config": BASES}),
    Case(
        "specforge",
        ("type 'ntk', and this package runs",),
        {"config": {"rope_scaling": {"type": "ntk", "factor": 2.0}}},
    ),
    Case(
        "specforge",
        ("type 'longrope', and this package runs",),
        {"config": {"rope_scaling": {"type": "longrope", "factor": 2.0}}},
    ),
    Case(
        "specforge",
        ("mrope_section", "not run by this package"),
        {"config": {"rope_scaling": {"type": "default", "mrope_section": [2, 3, 3]}}},
    ),
    Case("specforge", ("factor is not a number",), {"config": {"rope_scaling": {"type": "linear"}}}),
    Case("specforge", ("factor is not a number",), {"config": {"rope_scaling": {"type": "linear", "factor": 0}}}),
    Case("specforge", ("beta_fast is not a number",), {"config": {"rope_scaling": {**YARN, "beta_fast": [32]}}}),
    Case(
        "specforge",
        (
            "partial_rotary_factor=1.5",
            "expected 0 to 1",
        ),
        {"config": {"partial_rotary_factor": 1.5}},
    ),
    Case(
        "specforge",
        ("rope_theta='big', expected a positive number",),
        {"config": {"rope_scaling": {"rope_type": "default", "rope_theta": "big"}}},
    ),
    Case("torchspec_mla", ("partial_rotary_factor=0.5", "MLA"), {"config": {"partial_rotary_factor": 0.5}}),
    Case("torchspec_mla", ("truncate=false", "MLA"), {"config": {"rope_scaling": {**YARN, "truncate": False}}}),
    Case("torchspec_mla", ("kv_lora_rank=17", "the tensors say 16"), {"config": {"kv_lora_rank": 17}}),
    Case("torchspec_mla", ("q_lora_rank=16", "the tensors say 32"), {"config": {"q_lora_rank": 16}}),
    Case("torchspec_mla", ("qk_nope_head_dim=8", "the tensors say 16"), {"config": {"qk_nope_head_dim": 8}}),
    Case("torchspec_mla", ("qk_rope_head_dim=16", "the tensors say 8"), {"config": {"qk_rope_head_dim": 16}}),
    Case("torchspec_mla", ("v_head_dim=8", "the tensors say 16"), {"config": {"v_head_dim": 8}}),
    Case(
        "nemo_mla",
        ("type 'mrope', and this package runs",),
        {"config": {"rope_parameters": {"rope_type": "mrope", "factor": 2.0, "rope_theta": 1e4}}},
    ),
]


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_positions_that_this_package_does_not_compute_are_refused(case: Case) -> None:
    case.reason()


def test_two_bases_that_agree_are_no_question() -> None:
    scaling = {"rope_type": "default", "rope_theta": 50000}
    assert spec_of("specforge", config={"rope_scaling": scaling}).rope_theta == 50000.0


def test_the_same_scaling_twice_is_read_once() -> None:
    both = {
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50000.0},
        "rope_scaling": {"type": "linear", "factor": 2.0},
    }
    assert spec_of("specforge", config=both).rope_scaling == {"rope_type": "linear", "factor": 2.0}


MLA = ("torchspec_mla", "torchspec_mla31", "torchspec_mla_vllm_kimi", "modelopt_mla", "nemo_mla")
SIZES = {"q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}


@pytest.mark.parametrize("variant", MLA)
def test_the_sizes_of_latent_attention_are_those_of_the_tensors(variant: str) -> None:
    spec = spec_of(variant, heads.answers(variant))
    assert {name: getattr(spec, name) for name in SIZES} == SIZES
    assert (spec.attention, spec.head_dim, spec.num_heads, spec.num_kv_heads) == ("mla", 24, 8, 8)
    assert spec.sources["kv_lora_rank"] == "tensors of self_attn"


@pytest.mark.parametrize("name", SIZES)
def test_a_size_that_is_not_written_is_that_of_its_config_class(name: str) -> None:
    """Of DeepSeek-V3, which is not this file's; so the head count, which no tensor shows, cannot be trusted either."""
    head = heads.bend(heads.kept("torchspec_mla"), config={name: ...})
    _, reasons = resolve(head, heads.target_of(), {})
    assert len(reasons) == 1 and name in reasons[0] and f"the tensors say {SIZES[name]}" in reasons[0]


def test_a_single_query_projection_has_no_rank() -> None:
    shape = replace(SHAPE, q_lora=None)
    reading, reasons = resolve(heads.kept("torchspec_mla", shape), heads.target_of(shape), {})
    assert reasons == [] and reading.spec().q_lora_rank is None and reading.spec().qk_nope_head_dim == 16
    assert "layers.0.self_attn.q_proj.weight" in reading.spec().expected_tensors()


@pytest.mark.parametrize("all_dim", [1.0, 0.5, 0.0, None])
@pytest.mark.parametrize("factor", [4.0, 64.0, 1.0])
@pytest.mark.parametrize("variant", ["torchspec_mla", "modelopt_mla", "nemo_mla"])
def test_yarn_s_mscale_enters_the_softmax_scale_of_those_who_trained_with_it(
    variant: str, factor: float, all_dim: float | None
) -> None:
    scaling = {**YARN, "factor": factor, "mscale_all_dim": all_dim}
    key = "rope_parameters" if variant == "nemo_mla" else "rope_scaling"
    config = {key: {**scaling, "rope_theta": 50000.0}, "max_position_embeddings": 2048}
    spec = spec_of(variant, heads.answers(variant), config=config)
    mscale = 0.1 * (all_dim or 0.0) * math.log(factor) + 1.0 if variant != "nemo_mla" else 1.0
    assert spec.softmax_scale == pytest.approx(mscale**2 / math.sqrt(24), rel=1e-12)


@pytest.mark.parametrize(("factor", "fits"), [(4.0, True), (2.0, False)])
def test_yarn_must_reach_as_far_as_the_head(factor: float, fits: bool) -> None:
    """SGLang has a table of the stretched positions; a position past it is an error while serving."""
    head = heads.bend(heads.kept("specforge"), config={"rope_scaling": {**YARN, "factor": factor}})
    _, reasons = resolve(head, heads.target_of(), {})
    assert bool(reasons) != fits
    assert fits or "fix: --eagle31-override max_position_embeddings=4096" in reasons[0]
    assert resolve(head, heads.target_of(), {"max_position_embeddings": "4096"})[1] == []


@pytest.mark.parametrize(
    "name", ["factor", "mscale_all_dim", "mscale", "beta_fast", "original_max_position_embeddings"]
)
@pytest.mark.parametrize("value", ["4", [4.0], True, float("nan"), -1.0])
def test_a_part_of_yarn_that_is_no_number_is_refused(name: str, value: Any) -> None:
    head = heads.bend(heads.kept("torchspec_mla"), config={"rope_scaling": {**YARN, name: value}})
    _, reasons = resolve(head, heads.target_of(), {})
    assert len(reasons) == 1 and name in reasons[0] and "fix: " in reasons[0]


def test_plain_latent_attention_has_the_plain_scale() -> None:
    spec = spec_of("torchspec_mla", config={"rope_scaling": None})
    assert spec.softmax_scale == pytest.approx(24**-0.5) and spec.rope_scaling is None


@pytest.mark.parametrize(
    "name", ["kv_a_layernorm", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
)
def test_a_latent_tensor_that_is_missing_is_refused(name: str) -> None:
    head = heads.bend(heads.kept("torchspec_mla"), tensors={f"midlayer.self_attn.{name}.weight": None})
    _, reasons = resolve(head, heads.target_of(), {})
    assert reasons and all("fix: " in reason for reason in reasons)


@pytest.mark.parametrize("heads_stated", [7, 16, 200])
def test_a_head_count_that_the_latent_tensors_contradict_is_refused(heads_stated: int) -> None:
    head = heads.bend(
        heads.kept("torchspec_mla"), config={"num_attention_heads": heads_stated, **dict.fromkeys(SIZES, ...)}
    )
    _, reasons = resolve(head, heads.target_of(), {})
    assert reasons and all("fix: " in reason for reason in reasons)


@pytest.mark.parametrize("variant", ["specforge", "torchspec", "speculators"])
def test_grouped_queries_scale_by_their_head_size(variant: str) -> None:
    spec = spec_of(variant)
    assert spec.softmax_scale is None and spec.sources["softmax_scale"] == "1 / sqrt(head_dim)"
