"""The strict loader: everything that makes a head's files other than what its spec says is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import heads
import pytest
import test_layer_ids
import test_modelopt
import test_overrides
import test_rope
import test_sizes
import test_speculators
import test_vocabulary
import torch
from heads import Case

from sglang_eagle31.head.check import resolve
from sglang_eagle31.head.checkpoint import Checkpoint

USED = torch.tensor(heads.USED)


def reasons_of(head: Checkpoint, overrides: dict[str, str] | None = None, **target: Any) -> list[str]:
    return resolve(head, heads.target(**target), overrides or {})[1]


def only(reasons: list[str]) -> str:
    assert len(reasons) == 1, reasons
    return reasons[0]


@pytest.mark.parametrize("name", [name for name in heads.tensors() if name not in ("t2d", "d2t", "lm_head.weight")])
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    reason = " ".join(reasons_of(heads.read(tmp_path, change={name: None})))
    canonical = name.replace("midlayer.", "layers.0.")
    assert f"tensor {canonical}" in reason and "is missing" in reason and "fix: " in reason


@pytest.mark.parametrize(
    "name",
    [
        "midlayer.self_attn.rotary.scale",
        "enorm.weight",
        "mask",
        "draft_model.norm.weight",
        "midlayer.0.mlp.up_proj",
    ],
)
def test_an_unknown_tensor_is_named(tmp_path: Path, name: str) -> None:
    reasons = reasons_of(heads.read(tmp_path, change={name: torch.ones(3)}))
    assert any(f"tensor {name} [3] in model.safetensors is not part of EAGLE-3" in reason for reason in reasons)
    assert all("fix: " in reason for reason in reasons)


def test_tensors_that_carry_no_weight_are_ignored(tmp_path: Path) -> None:
    head = heads.read(tmp_path, change={"midlayer.self_attn.rotary_emb.inv_freq": torch.ones(2)})
    assert reasons_of(head) == []


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("norm.weight", (heads.HIDDEN + 1,), [heads.HIDDEN]),
        ("midlayer.self_attn.q_proj.weight", (16, heads.HIDDEN), [16, 2 * heads.HIDDEN]),
        ("fc.weight", (heads.HIDDEN, 2 * heads.HIDDEN), [heads.HIDDEN, 3 * heads.HIDDEN]),
        ("fc.weight", (heads.HIDDEN, 4 * heads.HIDDEN), [heads.HIDDEN, 3 * heads.HIDDEN]),
        ("d2t", (heads.DRAFT_VOCAB - 1,), [heads.DRAFT_VOCAB]),
    ],
)
def test_a_misshapen_tensor_is_named(tmp_path: Path, name: str, shape: tuple[int, ...], expected: list[int]) -> None:
    tensor = torch.zeros(shape, dtype=torch.int64 if name == "d2t" else torch.bfloat16)
    reason = only(reasons_of(heads.read(tmp_path, change={name: tensor})))
    where = f"tensor {name} in model.safetensors has shape {list(shape)}, expected {expected}"
    assert reason == f"{where}; fix: use the head of this target, or export it again"


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.uint8])
def test_a_quantised_tensor_is_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    weight = torch.zeros(heads.HIDDEN, 3 * heads.HIDDEN).to(dtype)
    reason = only(reasons_of(heads.read(tmp_path, change={"fc.weight": weight})))
    assert "tensor fc.weight" in reason and "quantised" in reason and "fix: export in bf16" in reason


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.bfloat16])
def test_every_float_dtype_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    weight = torch.zeros(heads.HIDDEN, 3 * heads.HIDDEN, dtype=dtype)
    assert reasons_of(heads.read(tmp_path, change={"fc.weight": weight})) == []


def test_a_head_of_another_width_needs_its_own_embedding(tmp_path: Path) -> None:
    reason = only(reasons_of(heads.read(tmp_path, target_hidden=24), hidden_size=24))
    assert "hidden size 16" in reason and "embed_tokens.weight" in reason and "24" in reason and "fix: " in reason


def test_one_tensor_under_two_names_is_refused(tmp_path: Path) -> None:
    again = {"layers.0.hidden_norm.weight": torch.ones(heads.HIDDEN)}
    assert "twice" in only(reasons_of(heads.read(tmp_path, change=again)))


@pytest.mark.parametrize(
    ("depth", "found"), [(4, [2, 2, 1]), (5, [2, 2, 2]), (6, [2, 3, 3])], ids=lambda value: str(value)
)
def test_default_layers_of_a_shallow_target_repeat(tmp_path: Path, depth: int, found: list[int]) -> None:
    reason = only(reasons_of(heads.read(tmp_path, "safeailab"), num_layers=depth))
    assert f"{found} repeat themselves on a target of {depth} layers" in reason
    assert "no ids stated" in reason and "--eagle31-override aux_layers=" in reason


def test_default_layers_of_seven_are_distinct(tmp_path: Path) -> None:
    reading, reasons = resolve(heads.read(tmp_path, "safeailab"), heads.target(num_layers=7), {})
    assert reasons == [] and reading.spec().boundaries == (2, 3, 4)


def test_a_shallow_target_can_be_told_its_layers(tmp_path: Path) -> None:
    head = heads.read(tmp_path, "safeailab")
    reading, reasons = resolve(head, heads.target(num_layers=4), {"aux_layers": "1,2,3"})
    assert reasons == [] and reading.spec().boundaries == (1, 2, 3)


@pytest.mark.parametrize(
    ("ids", "named"),
    [
        ([1, 5, 5], "[2, 6, 6] repeat themselves"),
        ([8, 5, 1], "[9, 6, 2] are not ascending"),
        ([-2, 5, 8], "[-1, 6, 9] are outside 0..12"),
        ([1, 5, 11], "[2, 6, 12] end with the last block's output, which SGLang's LlamaForCausalLM cannot hand out"),
        ([1, 5, 12], "[2, 6, 13] are outside 0..12"),
        ([], "expected a list of integers"),
    ],
)
def test_bad_layers_are_refused(tmp_path: Path, ids: list[int], named: str) -> None:
    reasons = reasons_of(heads.read(tmp_path, config={"eagle_config": {heads.IDS: ids}}))
    assert named in reasons[0] and f"{heads.IDS}={ids}" in reasons[0] and "fix: " in reasons[0]


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("layers", "2,6,9", "unknown key; known: aux_layers, feedback"),
        ("feedback", "both", "expected pre or post"),
        ("residual", "none", "expected pre or post"),
        ("logits", "raw", "unknown key"),
        ("logits_norm", "raw", "expected true or false"),
        ("double_norm", "1", "expected true or false"),
        ("own_embedding", "", "expected true or false"),
        ("pre_fc_norm", "both", "expected none or fc_norm or input_norm"),
        ("producer", "me", "unknown producer; known: native, "),
        ("aux_layers", "two", "expected block numbers, e.g. 2,15,27"),
        ("aux_layers", "", "expected block numbers"),
        ("rope_theta", "base", "expected a positive number"),
        ("rope_theta", "nan", "expected a positive number"),
        ("rope_theta", "inf", "expected a positive number"),
        ("rope_theta", "-1", "expected a positive number"),
        ("max_position_embeddings", "2k", "expected a positive integer"),
        ("sliding_window", "0", "expected a positive integer"),
    ],
)
def test_a_bad_override_is_named(tmp_path: Path, key: str, value: str, named: str) -> None:
    reason = only(reasons_of(heads.read(tmp_path), {key: value}))
    assert reason.startswith(f"--eagle31-override {key}={value}: ") and named in reason


def test_every_good_override_reaches_the_spec(tmp_path: Path) -> None:
    overrides = {
        "aux_layers": "3,5,7",
        "feedback": "post",
        "residual": "post",
        "logits_norm": "false",
        "double_norm": "true",
        "own_embedding": "false",
        "pre_fc_norm": "none",
        "rope_theta": "1e6",
        "max_position_embeddings": "4096",
        "sliding_window": "128",
    }
    reading, reasons = resolve(heads.read(tmp_path), heads.target(), overrides)
    assert reasons == []
    spec = reading.spec()
    assert (spec.boundaries, spec.feedback, spec.residual, spec.logits) == ((3, 5, 7), "post", "post", "raw")
    assert (spec.double_norm, spec.own_embedding, spec.pre_fc_norm) == (True, False, "none")
    assert (spec.rope_theta, spec.max_position_embeddings, spec.sliding_window) == (1e6, 4096, 128)
    assert sum(source.startswith("--eagle31-override ") for source in spec.sources.values()) == len(overrides)


def test_several_reasons_come_together(tmp_path: Path) -> None:
    head = heads.read(tmp_path, config={"norm_before_residual": True, "hidden_act": "gelu", "target_hidden_size": 1})
    assert len(reasons_of(head, {"feedback": "both"})) == 4


@pytest.mark.parametrize(
    ("d2t", "t2d", "named"),
    [
        (USED, ..., "not in offset form over 40 target tokens (it looks like absolute ids)"),
        (torch.arange(12) * 2, None, "no t2d tells which"),
        (USED - torch.arange(12) + 10, ..., "not in offset form"),
        (USED - torch.arange(12) - 5, ..., "not in offset form"),
        ((USED - torch.arange(12)).flip(0), ..., "not in offset form"),
        (torch.arange(12), ..., "d2t and t2d name different tokens"),
        (USED - torch.arange(12), torch.ones(heads.VOCAB, dtype=torch.bool), "name different tokens"),
        (USED - torch.arange(12), torch.isin(torch.arange(heads.VOCAB), USED + 0).roll(1), "name different tokens"),
        (
            USED - torch.arange(12),
            torch.ones(heads.VOCAB - 5, dtype=torch.bool),
            "t2d has shape [35], the target 40 tokens",
        ),
    ],
)
def test_a_wrong_vocabulary_map_is_refused(tmp_path: Path, d2t: Any, t2d: Any, named: str) -> None:
    change = {"d2t": d2t} if t2d is ... else {"d2t": d2t, "t2d": t2d}
    reason = only(reasons_of(heads.read(tmp_path, "vllm", change=change)))
    assert named in reason and "fix: " in reason


def test_an_offset_map_without_t2d_is_read(tmp_path: Path) -> None:
    assert reasons_of(heads.read(tmp_path, "vllm", t2d=False)) == []


def test_a_head_that_may_have_lost_its_layer_ids_is_asked_for_them(tmp_path: Path) -> None:
    """SafeAILab's files have t2d, and what else has midlayer.* under such a config had an eagle_config."""
    head = heads.read(tmp_path, "safeailab", t2d=False)
    reason = only(reasons_of(head))
    assert "no eagle_config" in reason and "no t2d" in reason and "fix: --eagle31-override aux_layers=" in reason
    assert resolve(head, heads.target(), {"aux_layers": "1,2,3"})[0].spec().boundaries == (1, 2, 3)


def test_a_reduced_vocabulary_needs_its_map_and_its_head(tmp_path: Path) -> None:
    reason = only(reasons_of(heads.read(tmp_path / "a", change={"d2t": None})))
    assert "12 of the target's 40 tokens" in reason and "no d2t" in reason and "fix: " in reason
    reason = only(reasons_of(heads.read(tmp_path / "b", change={"lm_head.weight": None})))
    assert "draft_vocab_size=12" in reason and "lm_head.weight should be there" in reason and "fix: " in reason


def test_a_shared_vocabulary_needs_neither(tmp_path: Path) -> None:
    head = heads.read(tmp_path, reduced=False, head=False, config={"draft_vocab_size": None})
    reading, reasons = resolve(head, heads.target(), {})
    assert reasons == [] and not reading.spec().vocab_map and not reading.spec().own_head


def test_a_full_vocabulary_with_a_map_that_maps_is_refused(tmp_path: Path) -> None:
    d2t = torch.zeros(heads.VOCAB, dtype=torch.int64)
    d2t[3] = 1
    assert "d2t maps to other tokens" in only(reasons_of(heads.read(tmp_path, reduced=False, change={"d2t": d2t})))


def test_a_head_with_more_tokens_than_its_target_is_refused(tmp_path: Path) -> None:
    reasons = reasons_of(heads.read(tmp_path), vocab_size=11)
    assert "the head has 12 tokens, the target only 11" in reasons[0] and all("fix: " in reason for reason in reasons)


def test_a_stated_draft_vocabulary_must_be_that_of_the_head(tmp_path: Path) -> None:
    reason = only(reasons_of(heads.read(tmp_path, config={"draft_vocab_size": 13})))
    assert "draft_vocab_size=13" in reason and "12 rows" in reason


NARROW = {"hidden_size": 96}
TARGETS = [
    Case("specforge", ("target_hidden_size=64, but the target has 96",), target=NARROW),
    Case("vllm", ("target_hidden_size=64, but the target has 96",), target=NARROW),
    Case("nemo", ("target_hidden_size=64, but the target has 96",), target=NARROW),
    Case("specforge", ("t2d has shape [512], the target 1024 tokens",), target={"vocab_size": 1024}),
    Case("modelopt_megatron_full_vocab", ("no d2t",), target={"vocab_size": 1024}),
    Case("nvidia_no_aux", ("final state of width 128",), target={"hidden_size": 128}),
    Case("specforge", ("[2, 4, 5] are outside 0..4",), target={"num_layers": 4}),
]


@pytest.mark.parametrize("case", TARGETS, ids=str)
def test_the_target_of_another_head_is_refused(case: Case) -> None:
    case.reason()


REFUSED = [
    *(question.case for question in test_overrides.QUESTIONS),
    *test_overrides.REFUSED,
    *test_sizes.REFUSED,
    *test_layer_ids.REFUSED,
    *test_modelopt.REFUSED,
    *test_rope.REFUSED,
    *test_speculators.REFUSED,
    *test_vocabulary.REFUSED,
    *TARGETS,
]


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_every_reason_says_what_was_found_and_its_fix(case: Case) -> None:
    """One line each: what is wrong, then what to do; an override that it names is one that there is."""
    reason = case.reason()
    found, _, fix = reason.partition("fix: ")
    assert len(found) > 20 and len(fix) > 5 and "\n" not in reason
    named = [part.partition("=")[0] for part in fix.split("--eagle31-override ")[1:]]
    assert set(named) <= {*test_overrides.OVERRIDES, *test_overrides.FREE}
