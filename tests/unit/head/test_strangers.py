"""Draft heads of other kinds: refused by name, saying what serves them."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import heads
import pytest
from truth import producers
from truth.producers import STRANGERS, VARIANTS

from sglang_eagle31.head.check import resolve
from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.dialects import strangers

SERVES = {
    "p_eagle_speculators": "vLLM",
    "p_eagle_specforge": "vLLM",
    "p_eagle_aws": "vLLM",
    "p_eagle_nemo": "vLLM",
    "medusa": "vLLM or TensorRT-LLM",
    "eagle1": "--speculative-algorithm EAGLE",
    "eagle2": "--speculative-algorithm EAGLE",
    "baldeagle": "--speculative-algorithm EAGLE",
    "mtp": "--speculative-algorithm NEXTN",
}
NARROW = "modelopt_no_aux_narrow"
"""A layout that is known, in a shape that is not: refused by its tensors."""


@functools.cache
def stranger(name: str) -> Checkpoint:
    return Checkpoint.read(producers.write(Path(heads._FOLDER.name) / name, name))


def only(head: Checkpoint, overrides: dict[str, str] | None = None) -> str:
    reading, reasons = resolve(head, heads.target_of(), overrides or {})
    assert len(reasons) == 1 and reading.values == {}, reasons
    assert reading.producer in reasons[0] and reading.evidence in reasons[0]
    return reasons[0]


@pytest.mark.parametrize("name", SERVES)
@pytest.mark.parametrize("overrides", [{}, {"producer": "specforge"}, {"ignore": "mask_token_id,parallel_drafting"}])
def test_it_is_refused_by_name_with_what_serves_it(name: str, overrides: dict[str, str]) -> None:
    reason = only(stranger(name), overrides)
    assert STRANGERS[name].kind in reason and SERVES[name] in reason and "fix: " in reason
    assert "which EAGLE31 does not run" in reason


def test_every_stranger_is_served_by_something() -> None:
    assert set(SERVES) | {NARROW} == set(STRANGERS)


def test_baldeagle_is_told_from_eagle_1() -> None:
    assert "BaldEagle" in only(stranger("baldeagle"))
    assert "BaldEagle" not in only(stranger("eagle1"))


def test_a_head_that_never_sees_the_embedding_is_refused_by_its_tensors() -> None:
    _, reasons = resolve(stranger(NARROW), heads.target_of(), {})
    assert len(reasons) == 3
    for part, reason in zip(
        ("q", "k", "v"), sorted(reasons, key=lambda text: "qkv".index(text.split("_proj")[0][-1])), strict=True
    ):
        assert f"{part}_proj.weight" in reason and "expected" in reason and "fix: " in reason


@pytest.mark.parametrize(
    ("bent", "kind", "evidence"),
    [
        ({"config": {"mask_token_id": 0}}, "P-EAGLE", "mask_token_id=0"),
        ({"config": {"ptd_token_id": 5}}, "P-EAGLE", "ptd_token_id=5"),
        ({"config": {"pard_token": 5}}, "P-EAGLE", "pard_token=5"),
        ({"config": {"parallel_drafting": True}}, "P-EAGLE", "parallel_drafting=True"),
        ({"config": {"architectures": ["PEagleDraftModel"]}}, "P-EAGLE", "architectures PEagleDraftModel"),
        ({"config": {"speculators_model_type": "peagle"}}, "P-EAGLE", "speculators_model_type=peagle"),
        ({"tensors": {"mask_hidden": (1, 1, 192)}}, "P-EAGLE", "tensor mask_hidden"),
        ({"config": {"medusa_num_heads": 3}}, "Medusa", "config key medusa_num_heads"),
        ({"tensors": {"parallel_draft_heads.lm_head.weight": (384, 64)}}, "ModelOpt", "tensor parallel_draft_heads"),
        (
            {"tensors": {"parallel_draft_heads.0.medusa_layers.0.linear.weight": (64, 64)}},
            "ModelOpt",
            "tensor parallel_draft_heads.0",
        ),
        (
            {"tensors": {"eh_proj.weight": (64, 128), "enorm.weight": (64,), "hnorm.weight": (64,)}},
            "MTP",
            "eh_proj, enorm, hnorm",
        ),
        (
            {"tensors": {"base_model.model.midlayer.self_attn.q_proj.lora_A.weight": (8, 128)}},
            "LoRA",
            "tensor base_model.model.midlayer.self_attn.q_proj.lora_A.weight",
        ),
    ],
)
def test_one_trait_is_enough(bent: dict[str, Any], kind: str, evidence: str) -> None:
    for variant in ("specforge", "modelopt_megatron_full_vocab"):
        reason = only(heads.bend(heads.kept(variant), **bent))
        assert kind in reason and evidence in reason and "fix: " in reason


@pytest.mark.parametrize("name", VARIANTS)
def test_no_eagle_3_head_is_a_stranger(name: str) -> None:
    assert strangers.name(heads.kept(name)) is None


def test_a_head_of_two_captured_states_is_no_eagle_1() -> None:
    shape = dataclasses.replace(heads.SHAPE, boundaries=(2, 5))
    head = heads.kept("specforge", shape)
    assert head.tensors["fc.weight"].shape == (64, 128)
    reading, reasons = resolve(head, heads.target_of(shape), {})
    assert reasons == [] and reading.spec().boundaries == (2, 5)


def test_without_architectures_the_tensors_tell() -> None:
    for architectures in (None, []):
        assert "EAGLE-1" in only(heads.bend(stranger("baldeagle"), config={"architectures": architectures}))


def test_a_head_that_nobody_knows_is_refused_with_what_it_is() -> None:
    head = heads.bend(heads.kept("specforge"), config={"architectures": ["MyDraft"]})
    _, reasons = resolve(head, heads.target_of(), {})
    assert len(reasons) == 1
    for part in ("MyDraft", "fc", "midlayer", "known: native", "--eagle31-override producer=NAME"):
        assert part in reasons[0]


@pytest.mark.parametrize("architectures", [3, "LlamaForCausalLMEagle3", [None, 7], {"a": 1}, True])
def test_architectures_of_another_type_are_refused(architectures: Any) -> None:
    for variant in heads.EXAMPLES.values():
        head = heads.bend(heads.kept(variant), config={"architectures": architectures})
        _, reasons = resolve(head, heads.target_of(), {})
        assert len(reasons) == 1 and "fix: " in reasons[0]
        assert f"architectures={architectures!r}, expected a list of class names" in reasons[0]


def test_marks_of_two_producers_are_asked_about() -> None:
    head = heads.bend(heads.kept("modelopt_megatron_full_vocab"), config={"_torchspec_version": "0.2"})
    reading, reasons = resolve(head, heads.target_of(), {})
    assert len(reasons) == 1 and set(reasons) == set(reading.questions.values())
    assert "producer=torchspec or producer=modelopt" in reasons[0] and "_torchspec_version" in reasons[0]
    reading, reasons = resolve(head, heads.target_of(), {"producer": "modelopt"})
    assert reasons == [] and reading.producer == "ModelOpt"
