"""Questions that a head's files cannot answer: asked with the override that settles them, and settled by it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import heads
import pytest
from heads import Case

from sglang_eagle31.head.check import resolve
from sglang_eagle31.head.overrides import FREE, OVERRIDES
from sglang_eagle31.head.spec import DrafterSpec

IDS = heads.IDS
FULL, WIDE = "modelopt_megatron_full_vocab", {"input_norm.weight": (192,)}


@dataclass(frozen=True)
class Question:
    """An open fact: the only reason to refuse, and what each answer makes of the field."""

    key: str
    case: Case
    answers: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.key} of {self.case}"


TRIPLE = {"2,4,5": (2, 4, 5), "1,3,6": (1, 3, 6)}
BOTH_SIDES = {"post": "post", "pre": "pre"}
WINDOW = {"none": None, "100": 100}

QUESTIONS = [
    Question(
        "feedback", Case("specforge31", ("norm_output=true", "PR 879", "feedback=post", "feedback=pre")), BOTH_SIDES
    ),
    Question("feedback", Case("specforge31_raw", ("norm_output=false", "logits_norm=false")), BOTH_SIDES),
    Question("feedback", Case("specforge31", ("no norm_output",), {"config": {"norm_output": ...}}), BOTH_SIDES),
    Question("feedback", Case("specdrift_legacy", ("no norm_output",), {"config": {"norm_output": ...}}), BOTH_SIDES),
    Question("residual", Case("speculators_unstated", ("no norm_before_residual", "vLLM")), BOTH_SIDES),
    Question("double_norm", Case("modelopt_hf", ("twice", "bdd10c2db")), {"true": True, "false": False}),
    Question("double_norm", Case("modelopt_mla", ("twice",)), {"true": True, "false": False}),
    Question("aux_layers", Case(FULL, ("no eagle_aux", "vLLM PR 50170"), {"eagle": {IDS: ...}}), TRIPLE),
    Question("aux_layers", Case("nvidia_post_norm", ("no eagle_aux", "NVIDIA"), {"eagle": {IDS: ...}}), TRIPLE),
    Question(
        "aux_layers",
        Case(
            "nvidia_v3", ("[2, 4, 5]", "aux_layers=2,4,5 if they are layer inputs", "3,5,6 if they are layer outputs")
        ),
        TRIPLE,
    ),
    Question("aux_layers", Case("nvidia_v3", ("norm_before_fc",), {"eagle": {IDS: [1, 3, 4]}}), TRIPLE),
    Question("aux_layers", Case("speculators_converted", ("[1, 3, 4]", "aux_layers=1,3,4", "=2,4,5")), TRIPLE),
    Question(
        "aux_layers",
        Case("speculators_two_layers", ("[1, 4, 6]", "converted"), {"config": {IDS: [1, 4, 6]}}),
        TRIPLE,
    ),
    Question("aux_layers", Case("speculators", ("[1, 3, 4]",), {"config": {IDS: [1, 3, 4]}}), TRIPLE),
    Question("aux_layers", Case("vllm", ("[1, 3, 4]", "default layer outputs"), {"config": {IDS: [1, 3, 4]}}), TRIPLE),
    Question(
        "aux_layers",
        Case(
            "vllm", ("eagle_config.eagle_aux", "inputs or outputs"), {"config": {IDS: ...}, "eagle": {IDS: [2, 4, 5]}}
        ),
        TRIPLE,
    ),
    Question(
        "aux_layers",
        Case("specforge", (f"eagle_config.{IDS}=[1, 3, 4] and {IDS}=[2, 4, 5]",), {"config": {IDS: [2, 4, 5]}}),
        TRIPLE,
    ),
    Question(
        "aux_layers",
        Case("safeailab", ("does not write it",), {"config": {IDS: [2, 4, 5]}}),
        TRIPLE,
    ),
    Question(
        "pre_fc_norm",
        Case("eagle31_native", ("TensorRT-LLM applies fc_norm only", "pre_fc_norm=fc_norm"), {"tensors": WIDE}),
        {"fc_norm": "fc_norm", "input_norm": "input_norm"},
    ),
    Question(
        "rope_theta",
        Case(
            "specforge",
            ("rope_theta=50000.0 and rope_scaling.rope_theta=10000.0", "rope_theta=10000.0"),
            {"config": {"rope_scaling": {"rope_type": "default", "rope_theta": 10000.0}}},
        ),
        {"50000": 50000.0, "1e4": 10000.0},
    ),
    *(
        Question(
            "sliding_window",
            Case(name, ("sliding_window=2048", "itself included"), {where: {"sliding_window": 2048}}),
            WINDOW,
        )
        for name, where in (
            ("specforge", "config"),
            ("safeailab", "config"),
            ("torchspec", "config"),
            ("angelslim", "config"),
            ("specdrift_legacy", "config"),
            ("eagle31_native", "config"),
            ("nemo", "config"),
            (FULL, "config"),
            ("nvidia_post_norm", "config"),
        )
    ),
    Question(
        "sliding_window",
        Case("specforge", ("layer_types=['sliding_attention']",), {"config": {"layer_types": ["sliding_attention"]}}),
        WINDOW,
    ),
    Question(
        "sliding_window", Case("speculators", ("no sliding_window",), {"nested": {"sliding_window": ...}}), {"100": 100}
    ),
]


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_an_open_fact_is_asked_with_the_override_that_settles_it(question: Question) -> None:
    reason = question.case.reason()
    assert f"fix: --eagle31-override {question.key}=" in reason
    reading, _ = question.case.resolve()
    assert set(reading.questions) == {question.key} and reading.refusals == []


@pytest.mark.parametrize(
    ("question", "answer"),
    [(question, answer) for question in QUESTIONS for answer in question.answers],
    ids=str,
)
def test_the_override_settles_it_either_way(question: Question, answer: str) -> None:
    reading, reasons = question.case.resolve(**{question.key: answer})
    assert reasons == []
    name, spec = OVERRIDES[question.key][0], reading.spec()
    assert getattr(spec, name) == question.answers[answer]
    assert spec.sources[name] == f"--eagle31-override {question.key}={answer}"
    assert spec.expected_tensors().keys() == set(reading.names.values())


def test_every_question_has_a_case() -> None:
    asked = {question.key for question in QUESTIONS}
    assert asked == set(OVERRIDES) - {"logits_norm", "own_embedding", "max_position_embeddings"}


def test_every_override_is_a_field() -> None:
    fields = {item.name for item in dataclasses.fields(DrafterSpec)}
    assert {name for name, _ in OVERRIDES.values()} <= fields


REFUSED = [
    Case("specforge", ("contradicts the file: it has no fc_norm.0.weight",), overrides={"pre_fc_norm": "fc_norm"}),
    Case("specforge", ("contradicts the file: it has no input_norm.weight",), overrides={"pre_fc_norm": "input_norm"}),
    Case("eagle31_native", ("contradicts the file: it has fc_norm.0.weight",), overrides={"pre_fc_norm": "none"}),
    Case("eagle31_native", ("it has no input_norm.weight",), overrides={"pre_fc_norm": "input_norm"}),
    Case("nvidia_v3", ("it has input_norm.weight",), overrides={"pre_fc_norm": "none", "aux_layers": "2,4,5"}),
    Case("specforge", ("it has no embed_tokens.weight",), overrides={"own_embedding": "true"}),
    Case("specforge", ("made for 3 captured states, not 2",), overrides={"aux_layers": "2,4"}),
    Case("specforge", ("made for 3 captured states, not 4",), overrides={"aux_layers": "1,2,4,5"}),
    Case("specforge", ("[5, 4, 2] are not ascending", "aux_layers=5,4,2"), overrides={"aux_layers": "5,4,2"}),
    Case("specforge", ("[2, 4, 9] are outside 0..8",), overrides={"aux_layers": "2,4,9"}),
    Case("specforge", ("[2, 4, 8] end with the last block's output",), overrides={"aux_layers": "2,4,8"}),
    Case(
        "torchspec_mla",
        ("a window of 64 keys", "SGLang's MLA attends to every key"),
        overrides={"sliding_window": "64"},
    ),
    *(
        Case("specforge", (f"--eagle31-override {key}={value}: ", expected), overrides={key: value})
        for key, value, expected in (
            ("window", "4", "unknown key; known: aux_layers"),
            ("logits", "raw", "unknown key"),
            ("logits_norm", "raw", "expected true or false"),
            ("sliding_window", "0", "expected a positive integer"),
            ("sliding_window", "None", "expected a positive integer"),
            ("rope_theta", "0", "expected a positive number"),
            ("producer", "SpecForge", "unknown producer"),
        )
    ),
]


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_an_override_that_contradicts_or_means_nothing_is_refused(case: Case) -> None:
    case.reason()


def test_an_unknown_key_names_all_known_ones() -> None:
    reason = Case("specforge", ("unknown key",), overrides={"window": "4"}).reason()
    assert all(key in reason for key in (*OVERRIDES, *FREE))


def test_an_answer_outside_the_question_does_not_drop_tensors() -> None:
    """With both norms in the file, neither may be left out by calling the head normless."""
    _, reasons = Case("eagle31_native", (), {"tensors": WIDE}).resolve(pre_fc_norm="none")
    assert reasons and all("fix: " in reason for reason in reasons)


def test_a_shipped_embedding_is_left_aside_when_told() -> None:
    reading, reasons = resolve(heads.kept("nemo"), heads.target_of(), {"own_embedding": "false"})
    assert reasons == [] and not reading.spec().own_embedding
    assert "embed_tokens.weight" not in reading.names.values()
    assert reading.spec().sources["own_embedding"] == "--eagle31-override own_embedding=false"


def test_a_producer_that_is_named_wins_over_what_is_recognised() -> None:
    head = heads.kept("specforge31")
    reading, reasons = resolve(head, heads.target_of(), {"producer": "torchspec"})
    assert reasons == [] and reading.spec().feedback == "post"
    assert (reading.producer, reading.evidence) == ("TorchSpec", "--eagle31-override producer=torchspec")


@pytest.mark.parametrize(
    ("where", "key", "ignore"),
    [
        ("config", "norm_of_mine", "norm_of_mine"),
        ("eagle", "state_feedback", "state_feedback"),
        ("eagle", "state_feedback", "eagle_config.state_feedback"),
        ("config", "use_alibi", " use_alibi , other"),
        ("config", "residual_multiplier", "residual_multiplier"),
        ("config", "final_logit_softcapping", "final_logit_softcapping"),
    ],
)
def test_a_key_that_nobody_knows_is_refused_until_it_is_said_to_mean_nothing(where: str, key: str, ignore: str) -> None:
    place = "eagle_config." if where == "eagle" else ""
    case = Case("specforge", (f"{place}{key}=True", f"ignore={key}"), {where: {key: True}})
    case.reason()
    reading, reasons = case.resolve(ignore=ignore)
    assert reasons == [] and reading.spec() == resolve(heads.kept("specforge"), heads.target_of(), {})[0].spec()


@pytest.mark.parametrize("where", ["config", "eagle"])
@pytest.mark.parametrize("side", ["pre", "post"])
def test_a_stray_norm_before_residual_is_a_question(where: str, side: str) -> None:
    case = Case("specforge", ("norm_before_residual=True", "residual=post if"), {where: {"norm_before_residual": True}})
    case.reason()
    reading, reasons = case.resolve(residual=side)
    assert reasons == [] and reading.spec().residual == side


def test_an_ignored_key_that_is_read_is_still_a_question() -> None:
    _, reasons = Case("specforge31", ()).resolve(ignore="norm_output,fc_norm")
    assert len(reasons) == 1 and "norm_output=true" in reasons[0]


@pytest.mark.parametrize("key", ["hidden_size", "speculators_note", "transformers_version", "attention_dropout", "bos"])
def test_a_key_that_says_nothing_of_the_computation_is_not_in_the_way(key: str) -> None:
    assert resolve(heads.bend(heads.kept("specforge"), config={key: 64}), heads.target_of(), {})[1] == []
