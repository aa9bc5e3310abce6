"""speculators: a nested layer config written as differences, windows by layer type, Qwen3 layers, converted heads."""

from __future__ import annotations

from typing import Any

import heads
import pytest
from heads import IDS, Case

from sglang_eagle31.head.check import resolve
from sglang_eagle31.head.spec import DrafterSpec

LAYER = "transformer_layer_config."
SLIDING, FULL = "sliding_attention", "full_attention"


def spec_of(variant: str, **bent: Any) -> DrafterSpec:
    reading, reasons = resolve(heads.bend(heads.kept(variant), **bent), heads.target_of(), heads.answers(variant))
    assert reasons == []
    return reading.spec()


@pytest.mark.parametrize(
    ("variant", "key", "field", "value"),
    [
        ("speculators", "rope_theta", "rope_theta", 10000.0),
        ("speculators", "rms_norm_eps", "rms_norm_eps", 1e-6),
        ("speculators", "max_position_embeddings", "max_position_embeddings", 2048),
        ("speculators", "hidden_act", "hidden_act", "silu"),
        ("speculators_qwen3", "max_position_embeddings", "max_position_embeddings", 32768),
        ("speculators_qwen3", "rms_norm_eps", "rms_norm_eps", 1e-6),
    ],
)
def test_a_key_that_is_not_written_is_the_class_s_default(variant: str, key: str, field: str, value: Any) -> None:
    spec = spec_of(variant, nested={key: ...})
    assert getattr(spec, field) == value
    kind = "Qwen3" if "qwen3" in variant else "Llama"
    assert spec.sources[field] == f"default of the {kind} config"


def test_the_default_widths_are_the_class_s_too() -> None:
    """32 heads of Llama do not fit this file, so it is refused rather than read as something else."""
    head = heads.bend(heads.kept("speculators"), nested={"num_attention_heads": ..., "head_dim": ...})
    _, reasons = resolve(head, heads.target_of(), {})
    assert reasons and all("fix: " in reason for reason in reasons)


@pytest.mark.parametrize("key", ["rope_theta", "rms_norm_eps", "num_attention_heads"])
def test_a_layer_s_key_at_the_top_level_is_refused_if_it_says_otherwise(key: str) -> None:
    """Readers that look there first would take it."""
    inner = heads.kept("speculators").config["transformer_layer_config"][key]
    spec = spec_of("speculators", config={key: inner})
    assert spec == spec_of("speculators")
    _, reasons = resolve(heads.bend(heads.kept("speculators"), config={key: 2 * inner}), heads.target_of(), {})
    assert reasons and all(f"{key}={2 * inner!r}" in reason and "fix: " in reason for reason in reasons)


@pytest.mark.parametrize(
    ("nested", "window"),
    [
        ({}, 8),
        ({"sliding_window": 1}, 1),
        ({"layer_types": [FULL]}, None),
        ({"layer_types": ...}, None),
        ({"layer_types": ..., "sliding_window": ...}, None),
        ({"layer_types": [FULL], "sliding_window": None, "use_sliding_window": False}, None),
    ],
)
def test_a_window_counts_for_layers_of_its_type(nested: dict[str, Any], window: int | None) -> None:
    assert spec_of("speculators", nested=nested).sliding_window == window


@pytest.mark.parametrize("flag", [True, False, ...])
@pytest.mark.parametrize("variant", ["speculators_plain", "speculators31", "speculators_qwen3"])
def test_norm_before_residual_decides_the_residual(variant: str, flag: Any) -> None:
    reading, reasons = resolve(
        heads.bend(heads.kept(variant), config={"norm_before_residual": flag}), heads.target_of(), {}
    )
    if flag is ...:
        assert set(reading.questions) == {"residual"} and len(reasons) == 1
        return
    assert reasons == [] and reading.spec().residual == ("post" if flag else "pre")


@pytest.mark.parametrize(("flag", "feedback"), [(True, "post"), (False, "pre"), (..., "pre")])
def test_norm_output_decides_the_feedback(flag: Any, feedback: str) -> None:
    assert spec_of("speculators", config={"norm_output": flag}).feedback == feedback


@pytest.mark.parametrize("name", ["Eagle3Speculator", "Eagle3DraftModel"])
def test_its_class_names_are_enough(name: str) -> None:
    head = heads.bend(
        heads.kept("speculators"),
        config={"architectures": [name], "speculators_model_type": ..., "speculators_config": ...},
    )
    reading, reasons = resolve(head, heads.target_of(), {})
    assert reasons == [] and reading.evidence == f"architectures {name}"


@pytest.mark.parametrize(
    ("variant", "bent", "asked"),
    [
        ("speculators", {"config": {IDS: [1, 3, 6]}}, False),  # a window
        ("speculators31", {"config": {IDS: [1, 3, 6]}}, False),  # norms before fc
        ("speculators_plain", {"config": {IDS: [1, 3, 6]}}, True),
        ("speculators_plain", {"config": {IDS: [1, 3, 6], "norm_output": True}}, False),
        ("speculators_plain", {"config": {IDS: [2, 4, 5]}}, False),  # the default inputs
        ("speculators_plain", {"config": {IDS: [1, 3, 4]}}, True),  # the default outputs
        ("speculators", {"config": {IDS: [1, 3, 4]}}, True),
        ("speculators31", {"config": {IDS: [1, 3, 4]}}, True),
    ],
)
def test_copied_ids_are_asked_unless_only_the_trainer_writes_such_a_head(
    variant: str, bent: dict[str, Any], asked: bool
) -> None:
    reading, _ = resolve(heads.bend(heads.kept(variant), **bent), heads.target_of(), {})
    assert set(reading.questions) == ({"aux_layers"} if asked else set()) and reading.refusals == []


def test_without_a_target_s_depth_a_default_triple_cannot_be_told() -> None:
    reading, _ = resolve(heads.kept("speculators_two_layers"), heads.target_of(num_layers=None), {})
    assert set(reading.questions) == {"aux_layers"}


QK = {"layers.0.self_attn.q_norm.weight": (16,), "layers.0.self_attn.k_norm.weight": (16,)}
REFUSED = [
    Case("speculators_plain", (f"{LAYER}model_type='llama', but the file has self_attn.q_norm",), {"tensors": QK}),
    Case(
        "speculators_qwen3",
        (f"{LAYER}model_type='qwen3', but the file has no self_attn.q_norm",),
        {"tensors": dict.fromkeys(QK)},
    ),
    Case("speculators_plain", (f"{LAYER}model_type='gemma3'", "llama, qwen3"), {"nested": {"model_type": "gemma3"}}),
    Case(
        "speculators_two_layers",
        ("['sliding_attention', 'full_attention']", "one window for all 2 layers"),
        {"nested": {"layer_types": [SLIDING, FULL], "sliding_window": 8}},
        target={"num_layers": 8},
    ),
    Case(
        "speculators",
        ("['sliding_attention', 'sliding_attention']", "all 1 layers"),
        {"nested": {"layer_types": [SLIDING] * 2}},
    ),
    Case("speculators", ("layer_types=['chunked_attention']",), {"nested": {"layer_types": ["chunked_attention"]}}),
    Case("speculators", ("layer_types='sliding_attention'",), {"nested": {"layer_types": SLIDING}}),
    Case(
        "speculators",
        ("sliding_window=0, expected a positive integer",),
        {"nested": {"sliding_window": 0, "layer_types": [FULL]}},
    ),
    Case("speculators", ("attention_bias=true, but the file lacks",), {"nested": {"attention_bias": True}}),
    Case("speculators", ("mlp_bias=true, but the file lacks",), {"nested": {"mlp_bias": True}}),
    Case(
        "speculators",
        ("norm_before_fc=false, but the file has input_norm.weight",),
        {"config": {"norm_before_fc": False}},
    ),
    Case("speculators31", ("fc_norm=false, but the file has fc_norm.*",), {"config": {"fc_norm": False}}),
    Case("speculators31", ("target_hidden_size=128", "but the target has 64"), {"config": {"target_hidden_size": 128}}),
]


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_a_layer_config_against_the_file_is_refused(case: Case) -> None:
    case.reason()
