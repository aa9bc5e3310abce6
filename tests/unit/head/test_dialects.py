"""Each producer's layout: recognised, translated, and refused where its files are open or wrong."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import heads
import pytest

from sglang_eagle31.head.check import resolve
from sglang_eagle31.head.dialects import read
from sglang_eagle31.head.spec import DrafterSpec


def reasons_of(head: Any, overrides: dict[str, str] | None = None, **target: Any) -> list[str]:
    return resolve(head, heads.target(**target), overrides or {})[1]


@pytest.mark.parametrize("layout", heads.LAYOUTS)
def test_each_layout_is_recognised_and_read(tmp_path: Path, layout: str) -> None:
    overrides = {"feedback": "post"} if layout == "specforge31" else {}
    reading, reasons = resolve(heads.read(tmp_path, layout), heads.target(), overrides)
    assert reasons == []
    spec = reading.spec()
    assert spec.producer == heads.PRODUCERS[layout]
    assert spec.variant == ("EAGLE 3.1" if heads.LAYOUTS[layout].get("fc_norm") else "EAGLE-3")
    assert spec == DrafterSpec(
        producer=spec.producer,
        hidden_size=heads.HIDDEN,
        target_hidden_size=heads.HIDDEN,
        intermediate_size=heads.INNER,
        num_layers=1,
        num_heads=heads.HEADS,
        num_kv_heads=heads.KV_HEADS,
        head_dim=heads.HEAD_DIM,
        vocab_size=heads.VOCAB,
        draft_vocab_size=heads.DRAFT_VOCAB,
        boundaries=(2, 6, 9),
        rms_norm_eps=1e-5,
        pre_fc_norm=spec.pre_fc_norm,
        feedback=spec.feedback,
        later_norm=spec.later_norm,
        vocab_map=True,
        rope_theta=heads.LAYOUTS[layout].get("rope_theta", 500000.0),
        max_position_embeddings=512,
    )


@pytest.mark.parametrize("layout", heads.LAYOUTS)
def test_every_field_says_where_it_came_from(tmp_path: Path, layout: str) -> None:
    reading = read(heads.read(tmp_path, layout), heads.target())
    fields = {field.name for field in dataclasses.fields(DrafterSpec)} - {"producer", "sources"}
    assert fields == set(reading.sources)
    assert all(reading.sources.values())


def test_torchspec_is_recognised_by_its_metadata(tmp_path: Path) -> None:
    head = heads.read(tmp_path, "specforge31", metadata={"torchspec_version": "0.2"})
    reading, reasons = resolve(head, heads.target(), {})
    assert reasons == [] and reading.producer == "TorchSpec"


@pytest.mark.parametrize("layout", ["native", "torchspec"])
@pytest.mark.parametrize(("flag", "feedback"), [(True, "post"), (False, "pre")])
def test_norm_output_decides_the_feedback(tmp_path: Path, layout: str, flag: Any, feedback: str) -> None:
    reading = read(heads.read(tmp_path, layout, config={"norm_output": flag}), heads.target())
    assert reading.reasons() == [] and reading.spec().feedback == feedback


@pytest.mark.parametrize("layout", ["native", "torchspec"])
def test_a_norm_for_each_state_without_norm_output_is_a_question(tmp_path: Path, layout: str) -> None:
    (reason,) = reasons_of(heads.read(tmp_path / "lost", layout, config={"norm_output": ...}))
    assert "fc_norm.*" in reason and "--eagle31-override feedback=post (EAGLE 3.1) or feedback=pre" in reason
    plain = heads.read(tmp_path / "plain", layout, config={"norm_output": ..., "fc_norm": False}, fc_norm=False)
    reading = read(plain, heads.target())
    assert reading.reasons() == [] and reading.spec().feedback == "pre"


@pytest.mark.parametrize("flag", [True, False])
def test_specforge_norm_output_is_ambiguous(tmp_path: Path, flag: bool) -> None:
    (reason,) = reasons_of(heads.read(tmp_path, "specforge31", config={"norm_output": flag}))
    assert f"norm_output={str(flag).lower()}" in reason
    assert "--eagle31-override feedback=post" in reason and "feedback=pre" in reason


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("answer", ["pre", "post"])
def test_the_override_answers_it_either_way(tmp_path: Path, flag: bool, answer: str) -> None:
    head = heads.read(tmp_path, "specforge31", config={"norm_output": flag})
    reading, reasons = resolve(head, heads.target(), {"feedback": answer})
    assert reasons == []
    assert reading.spec().feedback == answer
    assert reading.spec().sources["feedback"] == f"--eagle31-override feedback={answer}"


def test_specforge_before_its_fix_with_raw_logits(tmp_path: Path) -> None:
    head = heads.read(tmp_path, "specforge31", config={"norm_output": False})
    reading, reasons = resolve(head, heads.target(), {"feedback": "pre", "logits_norm": "false"})
    assert reasons == [] and (reading.spec().feedback, reading.spec().logits) == ("pre", "raw")


@pytest.mark.parametrize("how", [{"config": {"norm_output": True}}, {"fc_norm": True}], ids=["norm_output", "fc_norm"])
def test_safeailab_does_not_know_eagle_31(tmp_path: Path, how: dict[str, Any]) -> None:
    (reason,) = reasons_of(heads.read(tmp_path, "safeailab", **how))
    assert "norm_output or fc_norm.*" in reason and "SafeAILab" in reason and "fix: " in reason


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"norm_before_residual": True}, "norm_before_residual=True"),
        ({"norm_before_fc": True}, "norm_before_fc=true, but the file has no input_norm.weight"),
        ({"parallel_drafting": True}, "parallel_drafting=True"),
        ({"mask_token_id": 3}, "mask_token_id=3"),
        ({"ptd_token_id": 3}, "ptd_token_id=3"),
        ({"pard_token": 3}, "pard_token=3"),
        ({"sliding_window": 2048}, "sliding_window=2048"),
        ({"layer_types": ["sliding_attention"]}, "layer_types=['sliding_attention']"),
        ({"logit_scale": 0.25}, "logit_scale=0.25"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config="),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        *(
            ({"eagle_config": {heads.IDS: [1, 5, 8], key: value}}, f"eagle_config.{key}={value!r}")
            for key, value in {
                "use_mtp_layernorm": True,
                "parallel_draft_step": 4,
                "logit_scale": 0.5,
                "mask_token_id": 3,
            }.items()
        ),
        *(
            ({"eagle_config": {heads.IDS: [1, 5, 8], key: value}}, f"eagle_config.{key}={named}")
            for key, value, named in (
                ("eh_proj_before_attn", True, "true: embedding and state are projected"),
                ("norm_before_fc", True, "true, but the file has no input_norm.weight"),
            )
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_keys_that_change_the_computation_are_refused_by_name(
    tmp_path: Path, config: dict[str, Any], named: str
) -> None:
    (reason,) = reasons_of(heads.read(tmp_path, "specforge", config=config))
    assert named in reason and "fix: " in reason


def test_a_stated_window_is_answered_by_an_override(tmp_path: Path) -> None:
    head = heads.read(tmp_path, "specforge", config={"sliding_window": 2048})
    reading, reasons = resolve(head, heads.target(), {"sliding_window": "2048"})
    assert reasons == [] and reading.spec().sliding_window == 2048


def test_ids_at_the_top_level_are_a_question(tmp_path: Path) -> None:
    head = heads.read(tmp_path, "specforge", config={heads.IDS: [2, 6, 9]})
    (reason,) = reasons_of(head)
    assert heads.IDS in reason and "--eagle31-override aux_layers=" in reason
    reading, reasons = resolve(head, heads.target(), {"aux_layers": "2,5,9"})
    assert reasons == [] and reading.spec().boundaries == (2, 5, 9)


def test_ids_in_eagle_config_are_layer_outputs(tmp_path: Path) -> None:
    head = heads.read(tmp_path, "specforge", config={"eagle_config": {heads.IDS: [0, 3, 10]}})
    reading, reasons = resolve(head, heads.target(), {})
    assert reasons == [] and reading.spec().boundaries == (1, 4, 11)


@pytest.mark.parametrize(
    ("config", "change", "named"),
    [
        ({"fc_norm": True}, {}, "fc_norm=true, but the file has no fc_norm.*"),
        (
            {"fc_norm": False},
            {f"fc_norm.{k}.weight": heads.torch.ones(heads.HIDDEN) for k in range(3)},
            "fc_norm=false, but the file has fc_norm.*",
        ),
        ({"use_aux_norm": True}, {}, "use_aux_norm=true, but the file has no fc_norm.*"),
    ],
)
def test_the_fc_norm_flag_and_its_tensors_must_agree(
    tmp_path: Path, config: dict[str, Any], change: dict[str, Any], named: str
) -> None:
    head = heads.read(tmp_path, "specforge", config={"norm_output": True, **config}, change=change)
    reasons = reasons_of(head, {"feedback": "post"})
    assert len(reasons) == 1 and named in reasons[0]


def test_fc_norm_without_norm_output_leaves_specforge_s_feedback_open(tmp_path: Path) -> None:
    head = heads.read(tmp_path, "specforge31", config={"norm_output": ...})
    (reason,) = reasons_of(head)
    assert "no norm_output" in reason and "--eagle31-override feedback=post or feedback=pre" in reason
    assert resolve(head, heads.target(), {"feedback": "pre"})[0].spec().feedback == "pre"


def test_some_fc_norms_are_not_enough(tmp_path: Path) -> None:
    head = heads.read(tmp_path, "native", change={"fc_norm.1.weight": None})
    assert reasons_of(head) == [f"tensor fc_norm.1.weight [{heads.HIDDEN}] is missing; fix: export the head again"]


def test_a_head_of_another_target_is_refused(tmp_path: Path) -> None:
    (reason,) = reasons_of(heads.read(tmp_path, config={"target_hidden_size": 4096}))
    assert "target_hidden_size=4096" in reason and str(heads.HIDDEN) in reason and "fix: " in reason


def test_without_a_head_count_nothing_is_guessed(tmp_path: Path) -> None:
    (reason,) = reasons_of(heads.read(tmp_path, config={"num_attention_heads": ...}))
    assert "num_attention_heads" in reason and "fix: " in reason


@pytest.mark.parametrize(
    ("config", "theta", "scaling"),
    [
        ({}, 500000.0, None),
        ({"rope_theta": ...}, 10000.0, None),
        ({"rope_theta": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 7e4}}, 7e4, None),
        (
            {"rope_scaling": {"type": "linear", "factor": 4.0}},
            500000.0,
            {"rope_type": "linear", "factor": 4.0},
        ),
    ],
)
def test_rope(tmp_path: Path, config: dict[str, Any], theta: float, scaling: dict[str, Any] | None) -> None:
    reading, reasons = resolve(heads.read(tmp_path, config=config), heads.target(), {})
    assert reasons == []
    assert (reading.spec().rope_theta, reading.spec().rope_scaling) == (theta, scaling)


def test_an_unknown_head_is_refused_with_what_it_is(tmp_path: Path) -> None:
    head = heads.read(tmp_path, config={"architectures": ["MambaForCausalLM"]})
    (reason,) = reasons_of(head)
    assert "MambaForCausalLM" in reason and "midlayer" in reason and "safeailab" in reason and "fix: " in reason


def test_a_head_without_fc_is_no_eagle3_head(tmp_path: Path) -> None:
    (reason,) = reasons_of(heads.read(tmp_path, change={"fc.weight": None}))
    assert "fc.weight is missing" in reason
