"""What stops stock SGLang, what stays open, and how an outcome is said."""

from __future__ import annotations

import dataclasses

import pytest
from elsewhere_heads import IDS, SPEC, TARGET, H, head, layer, mla_head, sglang, spec

from sglang_eagle31.head.checkpoint import Checkpoint

LOUD: dict[str, tuple[Checkpoint, str, str]] = {
    "speculators": (
        head({"transformer_layer_config": {"model_type": "llama"}}, drop_keys=("model_type",)),
        "start",
        "no model_type",
    ),
    "unknown model_type": (head({"model_type": "speculator_model"}), "start", "not known to transformers"),
    "unknown class": (head({"architectures": ["LlamaEagle3DraftModel"]}), "start", "not a class of SGLang's"),
    "deep class": (head({"architectures": ["LlamaForCausalLMEagle3Deep"]}), "start", "not a class of SGLang's"),
    "plain class": (head({"architectures": ["LlamaForCausalLM"]}), "start", "hot_token_id"),
    "no draft_vocab_size": (head(drop_keys=("draft_vocab_size",)), "start", "draft_vocab_size"),
    "activation": (head({"hidden_act": "gelu_pytorch_tanh"}), "start", "silu"),
    "fc width": (head(add={"fc.weight": (H, 2 * H)}), "start", "fc.weight"),
    "2H later layers": (
        head({"num_hidden_layers": 2}, add=layer("layers.1", 2 * H, ("hidden_norm",))),
        "start",
        "layers.1.self_attn",
    ),
    "four top-level ids": (
        head({IDS: [2, 4, 6, 9]}, add={"fc.weight": (H, 4 * H)}, drop_keys=("eagle_config",)),
        "start",
        "fc.weight",
    ),
    "four states, three captured": (
        head(
            {"num_aux_hidden_states": 4, IDS: [2, 4, 6, 9]},
            add={"fc.weight": (H, 4 * H)},
            drop_keys=("eagle_config",),
        ),
        "first request",
        "delivers 3 states",
    ),
    "null target_hidden_size": (head({"target_hidden_size": None}), "start", "target_hidden_size is null"),
    "context": (head({"max_position_embeddings": 256}), "start", "256 positions"),
    "empty ids": (head({"eagle_config": {IDS: []}}), "first request", "no layer is captured"),
    "last block": (head({"eagle_config": {IDS: [1, 5, 11]}}), "first request", "delivers 2 states"),
    "duplicate ids": (head({"eagle_config": {IDS: [1, 5, 5]}}), "first request", "delivers 2 states"),
    "MLA layers": (mla_head({"num_hidden_layers": 2}), "start", "one layer"),
    "MLA q_lora_rank": (mla_head({"q_lora_rank": None}), "start", "q_lora_rank is null"),
    "MLA dimensions": (mla_head({"v_head_dim": None}), "start", "lacks v_head_dim"),
    "no rope base": (head({"rope_theta": None}), "start", "rope_theta is null"),
    "not a number": (head({"hidden_size": "64"}), "start", "not a count"),
    "ids of text": (head({"eagle_config": {IDS: ["1"]}}), "start", "not a list of layers"),
}


@pytest.mark.parametrize("row", LOUD)
def test_what_stops_sglang(row: str) -> None:
    checkpoint, when, reason = LOUD[row]
    outcome = sglang(checkpoint, SPEC)
    assert outcome.kind == "stops"
    assert outcome.reasons[0].startswith(f"at {when}: ")
    assert reason in outcome.reasons[0]


def test_a_target_without_capture_or_with_few_layers_stops() -> None:
    assert sglang(head(), SPEC, dataclasses.replace(TARGET, architecture="MixtralForCausalLM")).kind == "stops"
    small = dataclasses.replace(TARGET, num_layers=6)
    assert "delivers 2 states [2, 3]" in sglang(head(drop_keys=("eagle_config",)), SPEC, small).reasons[0]


def test_without_a_target_the_captured_layers_are_open() -> None:
    outcome = sglang(head(), SPEC, dataclasses.replace(TARGET, architecture="", num_layers=None))
    assert outcome.kind == "unknown"
    assert "not determined" in outcome.reasons[0]


def test_without_a_spec_a_head_without_losses_is_unknown() -> None:
    assert sglang(head(), None).kind == "unknown"


def test_json() -> None:
    raw = sglang(head({"norm_before_residual": True}), spec(residual="post"), evidence="run").to_json()
    assert (raw["outcome"], raw["versions"], raw["evidence"]) == ("wrong", "0.5.23", "run")
    assert raw["reasons"] == [
        "residual: runs 'pre', trained with 'post' (llama_eagle3.py reads no norm_before_residual)"
    ]
