"""DrafterSpec: the tensors it expects, its JSON form, its name for a variant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import heads
import pytest

from sglang_eagle31.head.check import placement, resolve
from sglang_eagle31.head.spec import DrafterSpec

KNOBS: dict[str, dict[str, Any]] = {
    "plain": {},
    "full vocabulary": {"reduced": False},
    "three layers": {"layers": 3},
    "three layers with hidden_norm": {"layers": 3, "later_norm": "hidden_norm"},
    "qk norm": {"qk_norm": True, "layers": 2},
    "attention biases": {"biases": ["qkv", "o"], "layers": 2},
    "qkv bias": {"biases": ["qkv"]},
    "o bias": {"biases": ["o"]},
    "mlp bias": {"biases": ["mlp"]},
    "fc bias": {"biases": ["fc"]},
    "own embedding": {"embedding": True},
    "wider target": {"embedding": True, "target_hidden": 24, "fc_norm": True},
    "target's head": {"reduced": False, "head": False},
    "fc_norm": {"fc_norm": True},
    "everything": {
        "layers": 2,
        "fc_norm": True,
        "qk_norm": True,
        "biases": ["fc", "qkv", "o", "mlp"],
        "embedding": True,
    },
}


def spec(**changes: Any) -> DrafterSpec:
    facts = {
        "producer": "SpecForge",
        "hidden_size": heads.HIDDEN,
        "target_hidden_size": 24,
        "intermediate_size": heads.INNER,
        "num_layers": 1,
        "num_heads": heads.HEADS,
        "num_kv_heads": heads.KV_HEADS,
        "head_dim": heads.HEAD_DIM,
        "vocab_size": heads.VOCAB,
        "draft_vocab_size": heads.DRAFT_VOCAB,
        "boundaries": (2, 6, 9),
    }
    return DrafterSpec(**{**facts, **changes})


@pytest.mark.parametrize("knobs", KNOBS.values(), ids=KNOBS.keys())
def test_the_expected_tensors_are_those_that_a_producer_writes(tmp_path: Path, knobs: dict[str, Any]) -> None:
    forked = knobs.get("later_norm") == "hidden_norm"
    layout, overrides = ("specforge", {"producer": "specdrift"}) if forked else ("vllm", {})
    biases = knobs.get("biases", ())
    config: dict[str, Any] = {"bias": "fc" in biases, "mlp_bias": "mlp" in biases, "norm_output": forked}
    config |= {"attention_bias": True} if {"qkv", "o"} <= set(biases) else {}
    config |= {} if knobs.get("head", True) else {"draft_vocab_size": None}
    layout = "torchspec" if set(biases) in ({"qkv"}, {"o"}) else layout  # where no flag speaks of them
    config |= {"fc_norm": False} if layout == "torchspec" else {}
    head = heads.read(tmp_path / "head", layout, config=config, **{"fc_norm": False, **knobs})
    reading, reasons = resolve(head, heads.target(hidden_size=knobs.get("target_hidden", heads.HIDDEN)), overrides)
    assert reasons == []
    have = {new: head.tensors[old].shape for old, new in reading.names.items()}
    assert reading.spec().expected_tensors() == have
    assert set(head.tensors) - set(reading.names) <= {"t2d", "d2t"}


def test_input_norm_spans_the_concatenated_states() -> None:
    shapes = spec(pre_fc_norm="input_norm", boundaries=(1, 3, 5, 7)).expected_tensors()
    assert shapes["input_norm.weight"] == (4 * 24,)
    assert shapes["fc.weight"] == (heads.HIDDEN, 4 * 24)
    assert not any(name.startswith("fc_norm") for name in shapes)


@pytest.mark.parametrize("switch", ["fc_bias", "o_bias", "qkv_bias", "mlp_bias", "qk_norm", "own_embedding"])
def test_a_switch_only_adds_tensors(switch: str) -> None:
    off, on = spec().expected_tensors(), spec(**{switch: True}).expected_tensors()
    assert off.items() < on.items()


def test_json_round_trip() -> None:
    before = spec(
        rope_scaling={"rope_type": "llama3", "factor": 8.0},
        feedback="post",
        pre_fc_norm="fc_norm",
        sliding_window=64,
        sources={"feedback": "config norm_output=True"},
    )
    after = DrafterSpec.from_json(json.loads(json.dumps(before.to_json())))
    assert after == before
    assert after.sources == before.sources and isinstance(after.boundaries, tuple)


def test_unknown_and_missing_fields_are_named() -> None:
    raw = spec().to_json()
    del raw["head_dim"], raw["boundaries"]
    with pytest.raises(ValueError) as error:
        DrafterSpec.from_json({**raw, "norm_output": True})
    message = str(error.value)
    assert "unknown fields ['norm_output']" in message and "missing fields ['boundaries', 'head_dim']" in message


def test_sources_do_not_make_specs_different() -> None:
    assert spec(sources={"feedback": "a"}) == spec(sources={"feedback": "b"})
    assert spec(feedback="post") != spec(feedback="pre")


@pytest.mark.parametrize(
    ("changes", "variant"),
    [
        ({}, "EAGLE-3"),
        ({"pre_fc_norm": "fc_norm", "feedback": "post"}, "EAGLE 3.1"),
        ({"residual": "post"}, "EAGLE-3 with pre-fc norm none, feedback pre, residual post"),
        ({"pre_fc_norm": "fc_norm"}, "EAGLE-3 with pre-fc norm fc_norm, feedback pre, residual pre"),
    ],
)
def test_variants_have_names(changes: dict[str, Any], variant: str) -> None:
    assert spec(**changes).variant == variant


def test_every_tensor_has_one_place_in_the_modules() -> None:
    shapes = spec(num_layers=2, qkv_bias=True, mlp_bias=True, qk_norm=True).expected_tensors()
    places = [placement(name) for name in shapes]
    assert len(set(places)) == len(places)
    assert placement("layers.1.self_attn.k_proj.bias") == ("layers.1.self_attn.qkv_proj.bias", "k")
    assert placement("layers.0.mlp.up_proj.weight") == ("layers.0.mlp.gate_up_proj.weight", 1)
    assert placement("layers.0.self_attn.q_norm.weight") == ("layers.0.self_attn.q_norm.weight", None)
    assert placement("norm.weight") == ("norm.weight", None)
