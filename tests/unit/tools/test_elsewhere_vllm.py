"""What vLLM would do with a head."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from elsewhere_heads import (
    CONFIG,
    DIM,
    DRAFT,
    IDS,
    KIMI,
    MLA_SPEC,
    SPEC,
    TARGET,
    TWO_LAYERS,
    VOCAB,
    H,
    head,
    layer,
    mla_head,
    spec,
    vllm,
)

from sglang_eagle31.head.checkpoint import Checkpoint, Tensor
from sglang_eagle31.tools.audit.engines import Runs, effective_vllm

NESTED = {
    key: value for key, value in CONFIG.items() if key not in ("architectures", "draft_vocab_size", "eagle_config")
}


def speculators(top: dict[str, Any] | None = None, inner: dict[str, Any] | None = None, **changes: Any) -> Checkpoint:
    checkpoint = head(without=("midlayer",), add=layer("layers.0"), **changes)
    raw = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {"algorithm": "eagle3"},
        "transformer_layer_config": NESTED | (inner or {}),
        "draft_vocab_size": DRAFT,
        "norm_before_residual": False,
        IDS: [2, 6, 9],
    }
    return dataclasses.replace(checkpoint, config=raw | (top or {}))


VLLM = {
    "native": (speculators(), SPEC, "exact", ""),
    "residual": (speculators({"norm_before_residual": True}), spec(residual="post"), "exact", ""),
    "window": (
        speculators(inner={"layer_types": ["sliding_attention"], "sliding_window": 32}),
        spec(sliding_window=32),
        "exact",
        "",
    ),
    "output ids copied": (speculators({IDS: [1, 5, 8]}), SPEC, "wrong", "boundaries"),
    "four ids": (speculators({IDS: [2, 4, 6, 9]}), None, "stops", "delivers 4 states"),
    "q_norm in a llama head": (
        dataclasses.replace(
            speculators(),
            tensors={**speculators().tensors, "layers.0.self_attn.q_norm.weight": Tensor((DIM,), "BF16", Path("x"))},
        ),
        None,
        "stops",
        "q_norm",
    ),
    "SpecForge": (head(), SPEC, "exact", "VLLM_USE_V2_MODEL_RUNNER"),
    "SpecForge on other layers": (
        head({"eagle_config": {IDS: [2, 5, 8]}}),
        spec(boundaries=(3, 6, 9)),
        "wrong",
        "bound",
    ),
    "default layers": (head(drop_keys=("eagle_config",)), SPEC, "exact", ""),
    "SafeAILab": (head({"architectures": ["LlamaForCausalLM"]}, drop_keys=("eagle_config",)), SPEC, "exact", ""),
    "NeMo": (head({"architectures": ["LlamaEagle3DraftModel"]}), SPEC, "stops", "registry"),
    "a bias of fc": (head(drop_keys=("eagle_config",), add={"fc.bias": (H,)}), spec(fc_bias=True), "wrong", "fc_bias"),
    "an unknown tensor": (head(add={"enorm.weight": (H,)}), None, "stops", "enorm.weight"),
    "a map over the whole vocabulary": (
        head({"draft_vocab_size": VOCAB}, add={"lm_head.weight": (VOCAB, H), "d2t": (VOCAB,)}),
        None,
        "stops",
        "no map may be there",
    ),
    "no map": (head(without=("d2t", "t2d")), None, "wrong", "map of zeros"),
    "hidden_norm in layer 1": (
        head({"num_hidden_layers": 2}, add=TWO_LAYERS),
        spec(num_layers=2, later_norm="hidden_norm"),
        "wrong",
        "later_norm",
    ),
    "MLA": (mla_head(drop_keys=("eagle_config",)), MLA_SPEC, "exact", ""),
    "MLA as deepseek_v3": (mla_head({"model_type": "deepseek_v3"}), MLA_SPEC, "stops", "MTP"),
    "no lm_head": (head(without=("lm_head",)), None, "wrong", "no lm_head.weight"),
}


@pytest.mark.parametrize("row", VLLM)
def test_vllm(row: str) -> None:
    checkpoint, wanted, kind, reason = VLLM[row]
    outcome = vllm(checkpoint, wanted, KIMI if row == "MLA" else TARGET)
    assert outcome.kind == kind, outcome.reasons
    assert reason in "\n".join(outcome.reasons)


def test_vllm_takes_an_absent_norm_before_residual_for_true() -> None:
    raw = {key: value for key, value in speculators().config.items() if key != "norm_before_residual"}
    effect = effective_vllm(dataclasses.replace(speculators(), config=raw), TARGET)
    assert isinstance(effect, Runs)
    assert effect.fields["residual"] == "post"


def test_qwen3_heads_of_speculators_keep_their_norms_in_vllm() -> None:
    checkpoint = speculators(inner={"model_type": "qwen3", "head_dim": DIM})
    norms = {f"layers.0.self_attn.{name}_norm.weight": Tensor((DIM,), "BF16", Path("x")) for name in ("q", "k")}
    checkpoint = dataclasses.replace(checkpoint, tensors={**checkpoint.tensors, **norms})
    assert vllm(checkpoint, spec(qk_norm=True)).kind == "exact"
