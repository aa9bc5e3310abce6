"""Captured layers: a producer's ids, as boundaries."""

from __future__ import annotations

import dataclasses
from typing import Any

import heads
import pytest
from heads import IDS, SHAPE, Case
from truth.producers import VARIANTS

from sglang_eagle31.head.check import resolve

STATED = [name for name, variant in VARIANTS.items() if variant.ids != "absent" and not variant.refused]
DEFAULT = [name for name, variant in VARIANTS.items() if variant.ids == "absent"]


@pytest.mark.parametrize("name", [name for name in STATED if VARIANTS[name].truth["use_aux_hidden_state"]])
@pytest.mark.parametrize("boundaries", [(1, 2, 3), (2, 3, 7), (3, 6), (1, 2, 5, 7)])
def test_both_conventions_become_boundaries(name: str, boundaries: tuple[int, ...]) -> None:
    shape = dataclasses.replace(SHAPE, boundaries=boundaries)
    head = heads.kept(name, shape)
    answers = heads.answers(name, shape)
    asked = name in ("nvidia_v3", "speculators_converted", "speculators_unstated", "speculators_two_layers")
    if not asked:
        answers.pop("aux_layers", None)
    reading, reasons = resolve(head, heads.target_of(shape), answers)
    assert reasons == [] and reading.spec().boundaries == boundaries
    if not asked:
        convention = "inputs" if VARIANTS[name].ids == "boundary" else "outputs"
        assert reading.sources["boundaries"].endswith(f"layer {convention}")


@pytest.mark.parametrize("name", DEFAULT)
@pytest.mark.parametrize(("depth", "triple"), [(8, (2, 4, 5)), (12, (2, 6, 9)), (61, (2, 30, 58)), (7, (2, 3, 4))])
def test_no_ids_are_the_default_triple_where_that_is_the_rule(name: str, depth: int, triple: tuple[int, ...]) -> None:
    reading, reasons = resolve(heads.kept(name), heads.target_of(num_layers=depth), {})
    assert reasons == [] and reading.spec().boundaries == triple
    assert "no ids stated" in reading.sources["boundaries"]


@pytest.mark.parametrize("name", DEFAULT)
def test_the_default_needs_the_target_s_depth(name: str) -> None:
    """Only an audit has no target, so it is told how to name one."""
    reading, reasons = resolve(heads.kept(name), heads.target_of(num_layers=None), {})
    assert len(reasons) == 1 and "2, N//2, N-3" in reasons[0] and "fix: name the target" in reasons[0]
    assert set(reading.questions) == {"aux_layers"}


def test_stated_ids_need_no_target() -> None:
    reading, reasons = resolve(heads.kept("specforge"), heads.target_of(num_layers=None), {})
    assert reasons == [] and reading.spec().boundaries == (2, 4, 5)


@pytest.mark.parametrize(
    ("variant", "bent"),
    [
        ("specforge", {"eagle": {IDS: [1, 3, 7]}}),
        ("torchspec_mla_vllm_kimi", {"eagle": {IDS: [2, 4, 8]}}),
        ("vllm", {"config": {IDS: [2, 4, 8]}}),
        ("speculators", {"config": {IDS: [2, 4, 8]}}),
        ("modelopt_megatron_full_vocab", {"eagle": {IDS: [1, 3, 7]}}),
        # A block that there is not can only be an input: as for gpt-oss heads.
        ("modelopt_megatron_full_vocab", {"eagle": {IDS: [2, 4, 8]}}),
        ("nvidia_v3", {"eagle": {IDS: [2, 4, 8]}}),
    ],
)
def test_the_last_boundary_is_taken_where_the_target_can_hand_it_out(variant: str, bent: dict[str, Any]) -> None:
    head = heads.bend(heads.kept(variant), **bent)
    reading, reasons = resolve(head, heads.target_of(last_boundary=True), {})
    assert reasons == [] and reading.spec().boundaries == (2, 4, 8)
    _, reasons = resolve(head, heads.target_of(), {})
    assert len(reasons) == 1
    for part in ("[2, 4, 8] end with the last block's output", "LlamaForCausalLM cannot hand out", "fix: "):
        assert part in reasons[0]


@pytest.mark.parametrize("last", [True, False])
def test_nothing_is_beyond_the_last_boundary(last: bool) -> None:
    head = heads.bend(heads.kept("specforge"), eagle={IDS: [1, 3, 8]})
    _, reasons = resolve(head, heads.target_of(last_boundary=last), {})
    assert len(reasons) == 1 and "[2, 4, 9] are outside 0..8" in reasons[0]


def test_the_same_ids_twice_are_no_question() -> None:
    head = heads.bend(heads.kept("specforge"), config={IDS: [1, 3, 4]})
    reading, reasons = resolve(head, heads.target_of(), {})
    assert reasons == [] and reading.spec().boundaries == (2, 4, 5)


def test_a_head_without_captured_states_has_no_layers() -> None:
    for name in ("nvidia_no_aux", "modelopt_no_aux"):
        reading, reasons = resolve(heads.kept(name), heads.target_of(), {})
        assert reasons == [] and reading.spec().boundaries == () and reading.spec().captured == 1
        assert "use_aux_hidden_state=false" in reading.sources["boundaries"]


REFUSED = [
    Case("specforge", ("[2, 4, 4] repeat themselves",), {"eagle": {IDS: [1, 3, 3]}}),
    Case("specforge", ("[5, 4, 2] are not ascending",), {"eagle": {IDS: [4, 3, 1]}}),
    Case("specforge", ("[-1, 4, 5] are outside 0..8",), {"eagle": {IDS: [-2, 3, 4]}}),
    Case("specforge", ("expected a list of integers",), {"eagle": {IDS: []}}),
    Case("vllm", ("[2, 4, 9] are outside 0..8",), {"config": {IDS: [2, 4, 9]}}),
    Case("safeailab", ("[2, 2, 1] repeat themselves on a target of 4 layers",), target={"num_layers": 4}),
    Case("nemo", ("[2, 2, 2] repeat themselves on a target of 5 layers",), target={"num_layers": 5}),
    Case("safeailab", ("no ids stated",), target={"num_layers": 3}),
    Case("specforge", ("has shape [64, 192], expected [64, 128]",), {"eagle": {IDS: [1, 3]}}),
    Case("specforge", ("has shape [64, 192], expected [64, 256]",), {"eagle": {IDS: [1, 3, 4, 5]}}),
]


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_layers_that_cannot_be_captured_are_refused(case: Case) -> None:
    case.reason()


def test_the_embedding_output_is_a_boundary() -> None:
    head = heads.bend(heads.kept("specforge"), eagle={IDS: [-1, 3, 4]})
    reading, reasons = resolve(head, heads.target_of(), {})
    assert reasons == [] and reading.spec().boundaries == (0, 4, 5)
