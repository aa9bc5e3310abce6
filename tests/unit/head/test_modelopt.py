"""ModelOpt's and NVIDIA's switches under eagle_config: norms that are left out, drafts in parallel, wide layers."""

from __future__ import annotations

from typing import Any

import heads
import pytest
from heads import IDS, Case

from sglang_eagle31.head.check import resolve
from sglang_eagle31.head.spec import DrafterSpec

FULL, FIRST, LAST = "modelopt_megatron_full_vocab", "use_input_layernorm_in_first_layer", "use_last_layernorm"


def spec_of(variant: str, overrides: dict[str, str] | None = None, **bent: Any) -> DrafterSpec:
    reading, reasons = resolve(heads.bend(heads.kept(variant), **bent), heads.target_of(), overrides or {})
    assert reasons == []
    return reading.spec()


@pytest.mark.parametrize(
    "key",
    [
        FIRST,
        LAST,
        "use_mtp_layernorm",
        "next_layer_regular",
        "parallel_draft_step",
        "parallel_draft_heads_num_layers",
    ],
)
def test_each_of_its_keys_is_enough(key: str) -> None:
    keys = dict.fromkeys(heads.kept(FULL).config["eagle_config"], ...)
    value = 1 if "parallel" in key else key not in ("use_mtp_layernorm",)
    head = heads.bend(heads.kept(FULL), eagle={**keys, IDS: [1, 3, 4], key: value})
    reading, reasons = resolve(head, heads.target_of(), {})
    assert reasons == [] and (reading.producer, reading.evidence) == ("ModelOpt", f"config key eagle_config.{key}")


@pytest.mark.parametrize("key", ["norm_before_fc", "return_hidden_post_norm", "eh_proj_before_attn", "eh_proj_bias"])
def test_tensorrt_s_keys_make_it_nvidia_s(key: str) -> None:
    reading, reasons = resolve(heads.bend(heads.kept(FULL), eagle={key: False}), heads.target_of(), {})
    assert reasons == [] and (reading.producer, reading.evidence) == ("NVIDIA", f"config key eagle_config.{key}")


def test_its_deep_heads_are_known_by_their_class() -> None:
    keys = dict.fromkeys(heads.kept(FULL).config["eagle_config"], ...)
    head = heads.bend(heads.kept("modelopt_megatron_deep"), eagle={**keys, IDS: [1, 3, 4]})
    reading, reasons = resolve(head, heads.target_of(), {})
    assert reasons == [] and reading.evidence == "architectures LlamaForCausalLMEagle3Deep"
    assert reading.spec().num_layers == 2 and reading.spec().later_norm == "hidden_norm"


def test_norms_that_were_left_out_are_the_identity() -> None:
    first = spec_of("modelopt_megatron_no_first_norm")
    assert (
        first.first_norms == ("input_layernorm",)
        and first.sources["first_norms"] == f"config eagle_config.{FIRST}=false"
    )
    last = spec_of("modelopt_megatron_no_last_norm")
    assert not last.final_norm and "norm.weight" not in last.expected_tensors()
    assert last.sources["final_norm"] == f"config eagle_config.{LAST}=false"


@pytest.mark.parametrize(
    ("variant", "wide"), [("nvidia_wide", True), ("nvidia_deep", False), ("modelopt_hf_two_layers", False)]
)
def test_later_layers_are_wide_if_their_tensors_are(variant: str, wide: bool) -> None:
    spec = spec_of(variant, heads.answers(variant))
    assert (spec.later_norm == "both") == wide and len(spec.wide_layers) == (2 if wide else 1)
    assert spec.expected_tensors()["layers.1.self_attn.q_proj.weight"] == (128, 128 if wide else 64)


@pytest.mark.parametrize("answer", ["true", "false"])
def test_the_double_norm_is_what_the_user_says(answer: str) -> None:
    spec = spec_of("modelopt_hf", {"double_norm": answer})
    assert spec.double_norm == (answer == "true")


@pytest.mark.parametrize(
    "variant", ["modelopt_megatron_full_vocab", "modelopt_megatron_no_first_norm", "modelopt_no_aux"]
)
def test_megatron_s_heads_and_heads_without_that_norm_are_not_asked(variant: str) -> None:
    assert spec_of(variant).double_norm is False


@pytest.mark.parametrize(
    ("bent", "feedback"),
    [
        ({"eagle": {"return_hidden_post_norm": False}}, "pre"),
        ({"eagle": {"return_hidden_post_norm": True}}, "post"),
        ({"eagle": {"return_hidden_post_norm": False, "norm_output": True}}, "post"),
        ({"eagle": {"return_hidden_post_norm": False}, "config": {"norm_output": True}}, "post"),
        ({"eagle": {"norm_before_fc": False}, "config": {"norm_output": False}}, "pre"),
    ],
)
def test_post_norm_feedback_has_two_names(bent: dict[str, Any], feedback: str) -> None:
    assert spec_of(FULL, **bent).feedback == feedback


def test_norm_output_without_a_key_of_nvidia_is_asked() -> None:
    reason = Case(FULL, ("norm_output=true", "feedback=post"), {"config": {"norm_output": True}}).reason()
    assert "feedback=pre" in reason


def test_a_null_base_is_taken_from_the_scaling() -> None:
    scaling = {"rope_type": "default", "rope_theta": 5e5}
    spec = spec_of(FULL, config={"rope_theta": None, "rope_scaling": scaling})
    assert spec.rope_theta == 5e5 and spec.rope_scaling is None
    assert spec.sources["rope_theta"] == "config rope_scaling.rope_theta"


def test_a_layer_id_of_the_depth_says_that_all_are_inputs() -> None:
    head = heads.bend(heads.kept("nvidia_v3"), eagle={IDS: [4, 6, 8]})
    reading, reasons = resolve(head, heads.target_of(last_boundary=True), {})
    assert reasons == [] and reading.spec().boundaries == (4, 6, 8)
    assert "8 can only be a layer input" in reading.sources["boundaries"]


REFUSED = [
    Case(
        FULL,
        ("eagle_config.use_mtp_layernorm=True", "enorm, hnorm", "TensorRT-LLM"),
        {"eagle": {"use_mtp_layernorm": True}},
    ),
    Case(FULL, ("eagle_config.parallel_draft_step=4", "TensorRT-LLM"), {"eagle": {"parallel_draft_step": 4}}),
    Case(FULL, ("eagle_config.eh_proj_before_attn=true", "TensorRT-LLM"), {"eagle": {"eh_proj_before_attn": True}}),
    Case("nvidia_wide", ("next_layer_regular=true",), {"eagle": {"next_layer_regular": True}}),
    Case("nvidia_deep", ("next_layer_regular=false", "the state only"), {"eagle": {"next_layer_regular": False}}),
    Case(FULL, ("hidden_norm.weight [64]", "is not part of"), {"eagle": {FIRST: False}}),
    Case(FULL, ("norm.weight [64]", "is not part of"), {"eagle": {LAST: False}}),
    Case("modelopt_megatron_no_last_norm", ("tensor norm.weight [64] is missing",), {"eagle": {LAST: True}}),
    Case("modelopt_megatron_no_first_norm", ("hidden_norm.weight [64] is missing",), {"eagle": {FIRST: True}}),
    Case(FULL, ("fc.weight [64, 192]", "is not part of"), {"eagle": {"use_aux_hidden_state": False}}),
    Case("nvidia_no_aux", ("fc.weight is missing",), {"eagle": {"use_aux_hidden_state": True, IDS: [1, 3, 4]}}),
    Case("nvidia_no_aux", ("final state of width 96", "own width is 64"), target={"hidden_size": 96}),
    Case(
        "nvidia_fc_bias",
        ("bias=false, but the file has the tensors of fc_bias",),
        {"config": {"bias": False}},
        {"double_norm": "false"},
    ),
    Case(
        "nvidia_fc_bias",
        ("bias=true, but the file lacks the tensors of fc_bias",),
        {"tensors": {"fc.bias": None}},
        {"double_norm": "false"},
    ),
    Case(
        FULL,
        ("q_proj.weight_scale", "quantised heads are not supported"),
        {"tensors": {"midlayer.self_attn.q_proj.weight_scale": (1,)}},
    ),
    Case(FULL, ("quantization_config=",), {"config": {"quantization_config": {"quant_algo": "FP8"}}}),
    Case(
        "modelopt_megatron_deep",
        (
            "layers [0, 2]",
            "some are missing",
        ),
        {
            "tensors": {
                name: None for name in heads.kept("modelopt_megatron_deep").tensors if name.startswith("midlayer.1.")
            }
            | {
                name.replace(".1.", ".2."): tensor.shape
                for name, tensor in heads.kept("modelopt_megatron_deep").tensors.items()
                if name.startswith("midlayer.1.")
            }
        },
    ),
]


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_what_this_package_does_not_run_is_refused(case: Case) -> None:
    case.reason()
