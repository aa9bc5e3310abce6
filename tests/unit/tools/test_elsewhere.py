"""What stock SGLang would run: healthy heads, each silent fault, and the ids of each target family."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from elsewhere_heads import (
    DIM,
    DRAFT,
    FC_NORM,
    IDS,
    INNER,
    KIMI,
    MLA_SPEC,
    OUT,
    SHAPES,
    SPEC,
    TARGET,
    TWO_LAYERS,
    VOCAB,
    H,
    head,
    layer,
    mla_head,
    sglang,
    spec,
    vllm,
)

from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.sglang_targets import CAPTURES_LAST_BOUNDARY, SGLANG_TARGETS
from sglang_eagle31.head.spec import DrafterSpec
from sglang_eagle31.tools.audit.engines import (
    Outcome,
    Stops,
    compare,
    effective_sglang,
    sglang_capture,
)

HEALTHY = {
    "EAGLE-3 with stated output ids": (head(), SPEC, TARGET),
    "EAGLE-3 with the default layers": (head(drop_keys=("eagle_config",)), SPEC, TARGET),
    "EAGLE 3.1": (
        head({"fc_norm": True, "norm_output": True}, add=FC_NORM),
        spec(pre_fc_norm="fc_norm", feedback="post"),
        TARGET,
    ),
    "one norm before fc": (
        head({"norm_before_fc": True}, add={"input_norm.weight": (3 * H,)}),
        spec(pre_fc_norm="input_norm"),
        TARGET,
    ),
    "two layers with hidden_norm": (
        head({"num_hidden_layers": 2}, add=TWO_LAYERS),
        spec(num_layers=2, later_norm="hidden_norm"),
        TARGET,
    ),
    "the target's lm_head": (
        head({"draft_vocab_size": None}, without=("lm_head", "d2t", "t2d")),
        spec(own_head=False, draft_vocab_size=VOCAB, vocab_map=False),
        TARGET,
    ),
    "four nested ids": (
        head({"eagle_config": {IDS: [1, 4, 6, 8]}}, add={"fc.weight": (H, 4 * H)}),
        spec(boundaries=(2, 5, 7, 9)),
        TARGET,
    ),
    "fc with a bias": (head({"bias": True}, add={"fc.bias": (H,)}), spec(fc_bias=True), TARGET),
    "MLA on a DeepSeek target": (mla_head(), MLA_SPEC, KIMI),
    "MLA 3.1": (
        mla_head({"fc_norm": True, "norm_output": True}, add=FC_NORM),
        dataclasses.replace(MLA_SPEC, pre_fc_norm="fc_norm", feedback="post"),
        KIMI,
    ),
    "final state only": (
        head({"eagle_config": {"use_aux_hidden_state": False}}, without=("fc",)),
        spec(use_aux_hidden_state=False, boundaries=()),
        TARGET,
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_heads_are_exact_in_sglang(name: str) -> None:
    checkpoint, wanted, target = HEALTHY[name]
    assert sglang(checkpoint, wanted, target) == Outcome("exact", (), "0.5.23")


SILENT: dict[str, tuple[Checkpoint, DrafterSpec | None, str]] = {
    "S1": (head({"norm_before_residual": True}), spec(residual="post"), "no norm_before_residual"),
    "S2": (
        head(add={"midlayer.self_attn.q_norm.weight": (DIM,), "midlayer.self_attn.k_norm.weight": (DIM,)}),
        spec(qk_norm=True),
        "qk_norm",
    ),
    "S3 qkv": (head(add={"midlayer.self_attn.q_proj.bias": (H,)}), spec(qkv_bias=True), "qkv_bias"),
    "S3 o": (head(add={"midlayer.self_attn.o_proj.bias": (H,)}), spec(o_bias=True), "bias of o_proj dropped"),
    "S3 mlp": (head(add={"midlayer.mlp.up_proj.bias": (INNER,)}), spec(mlp_bias=True), "mlp_bias"),
    "S3 fc": (head(add={"fc.bias": (H,)}), spec(fc_bias=True), "fc_bias"),
    "S4": (
        head({"num_hidden_layers": 2}, add=layer("layers.1", H, ("input_layernorm",))),
        spec(num_layers=2, later_norm="input_layernorm"),
        "ignores input_layernorm after the first",
    ),
    "S5": (
        head(without=("midlayer",), add=layer("midlayer.0")),
        SPEC,
        "uninitialised memory: model.layers.0.self_attn",
    ),
    "S6": (head({"num_hidden_layers": 12}), SPEC, "num_layers"),
    "S7": (head({IDS: [3, 6, 9]}, drop_keys=("eagle_config",)), spec(boundaries=(3, 6, 9)), "boundaries"),
    "S8 convention": (head({"eagle_config": {IDS: [2, 6, 9]}}), SPEC, "every id plus one"),
    "S9": (head(drop_keys=("eagle_config",)), spec(boundaries=(3, 5, 8)), "default triple"),
    "S10 feedback": (head({"norm_output": True}), SPEC, "feedback"),
    "S10 logits": (head({"norm_output": False}), spec(logits="raw"), "logits"),
    "S11": (head({"eagle_config": {**OUT, "return_hidden_post_norm": True}}), spec(feedback="post"), "feedback"),
    "S12 no flag": (head(add=FC_NORM), spec(pre_fc_norm="fc_norm"), "pre_fc_norm"),
    "S12 nested": (
        head({"eagle_config": {**OUT, "fc_norm": True}}, add=FC_NORM),
        spec(pre_fc_norm="fc_norm"),
        "at the top level only",
    ),
    "S12 no tensor": (head({"fc_norm": True}), None, "gain of one"),
    "S13 first": (
        head({"use_input_layernorm_in_first_layer": False}, without=("midlayer.hidden_norm",)),
        spec(first_norms=("input_layernorm",)),
        "first_norms",
    ),
    "S13 final": (head({"use_last_layernorm": False}, without=("norm.",)), spec(final_norm=False), "final_norm"),
    "S13 mtp": (head({"use_mtp_layernorm": True}, add={"enorm.weight": (H,)}), None, "enorm.weight"),
    "S14": (head(without=("d2t",)), None, "draft ids are used as target ids"),
    "S16": (head({"tie_word_embeddings": True}), SPEC, "own_head"),
    "S17": (head(without=("lm_head",)), None, "lm_head.weight is not in the file"),
    "S17b": (
        head({"draft_vocab_size": None}, without=("d2t", "t2d"), add={"lm_head.weight": (VOCAB, H)}),
        spec(draft_vocab_size=VOCAB, vocab_map=False),
        "own_head",
    ),
    "S18 missing": (
        head({"target_hidden_size": 2 * H}, add={"fc.weight": (H, 6 * H)}),
        spec(target_hidden_size=2 * H),
        "neither shared nor in the file",
    ),
    "S19 tensor": (head(add={"mask_hidden": (1, 1, 3 * H)}), None, "parallel-drafting part dropped"),
    "S19 key": (head({"parallel_drafting": True}), None, "parallel_drafting=true is not read"),
    "S20": (
        head({"layer_types": ["sliding_attention"], "sliding_window": 32}),
        spec(sliding_window=32),
        "speculative-draft-window-size",
    ),
    "S21": (
        head({"num_aux_hidden_states": 1, "eagle_config": {IDS: [5]}}, add={"fc.weight": (H, H)}),
        spec(boundaries=(6,)),
        "fc and the norms before it are skipped",
    ),
    "S22": (
        head({"quantization_config": {"quant_method": "fp8"}}, add={"fc.weight_scale": ()}),
        None,
        "quantisation scales dropped: fc.weight_scale",
    ),
    "S23": (
        head({"fc_norm": True, "norm_before_fc": True}, add={**FC_NORM, "input_norm.weight": (3 * H,)}),
        spec(pre_fc_norm="fc_norm"),
        "input_norm then fc_norm",
    ),
    "S24": (
        head(shapes={f"draft_model.{name}": shape for name, shape in SHAPES.items()}),
        None,
        "unknown tensors dropped",
    ),
    "S26": (head(), spec(rope_theta=10000.0), "rope_theta"),
    "S26 double norm": (head(), spec(double_norm=True), "norms the state once"),
    "cut": (head({"intermediate_size": 80}), SPEC, "cut to the size"),
    "partial RoPE": (
        head({"rope_parameters": {"rope_theta": 5e5, "partial_rotary_factor": 0.5}}),
        spec(partial_rotary_factor=0.5),
        "partial_rotary_factor",
    ),
}


@pytest.mark.parametrize("row", SILENT)
def test_what_sglang_gets_wrong_without_a_word(row: str) -> None:
    checkpoint, wanted, reason = SILENT[row]
    target = dataclasses.replace(TARGET, hidden_size=2 * H) if row == "S18 missing" else TARGET
    outcome = sglang(checkpoint, wanted, target)
    assert outcome.kind == "wrong"
    assert reason in "\n".join(outcome.reasons)


@pytest.mark.parametrize("row", ["S1", "S4", "S7", "S11", "S12 no flag", "S13 final", "S16", "S20"])
def test_faults_that_a_key_or_tensor_shows_need_no_spec(row: str) -> None:
    assert sglang(SILENT[row][0], None).kind == "wrong"


def test_s8_the_rule_of_each_target_family() -> None:
    def capture(architecture: str, ids: list[int] | None, depth: int = 36) -> Any:
        return sglang_capture(architecture, ids, depth)

    assert capture("Qwen3ForCausalLM", [1, 17, 32]) == (2, 18, 33)
    assert capture("Qwen3ForCausalLM", None) == (2, 18, 33)
    assert capture("DeepseekV3ForCausalLM", [1, 17, 32]) == (2, 18, 33)
    assert capture("KimiK25ForConditionalGeneration", [3, 17, 32]) == (3, 17, 32)
    assert capture("Glm4MoeLiteForCausalLM", [2, 18, 33]) == (2, 18, 33)
    assert capture("GptOssForCausalLM", [24, 30, 36]) == (24, 30, 36)
    assert capture("GptOssForCausalLM", [2, 18, 33]) == (3, 19, 34)
    assert capture("MiniMaxM3SparseForConditionalGeneration", None) == (3, 19, 34)
    assert capture("MiniMaxM3SparseForCausalLM", None) == (2, 18, 33)
    assert capture("LlamaForCausalLM", [35, 1, 1]) == (2,)
    assert capture("LlamaForCausalLM", [-1, 3]) == (0, 4)
    assert isinstance(capture("Qwen3MoeForCausalLM", [1, 17, 35]), Stops)
    assert isinstance(capture("MixtralForCausalLM", None), Stops)


def test_targets_that_can_capture_the_last_boundary() -> None:
    for architecture in SGLANG_TARGETS:
        last = sglang_capture(architecture, [2, 35], 36)
        captured = isinstance(last, tuple) and 36 in last
        assert captured is (architecture in CAPTURES_LAST_BOUNDARY)
    assert "GptOssForCausalLM" in CAPTURES_LAST_BOUNDARY
    assert "LlamaForCausalLM" not in CAPTURES_LAST_BOUNDARY


def test_gemma3_captures_no_residual_stream() -> None:
    target = dataclasses.replace(TARGET, architecture="Gemma3ForCausalLM")
    assert "without the residual" in sglang(head(), SPEC, target).reasons[0]


@pytest.mark.parametrize(
    ("values", "kind", "reason"),
    [
        ([0] * DRAFT, "wrong", "all zero"),
        ([3 * i for i in range(DRAFT)], "exact", ""),
        ([5, 0, *[9] * (DRAFT - 2)], "wrong", "unchecked"),
        (list(range(300, 300 + DRAFT)), "stops", "ids that the target does not have"),
    ],
)
def test_s14_s15_values_of_the_map(values: list[int], kind: str, reason: str) -> None:
    outcome = sglang(head(), SPEC, d2t=values)
    assert outcome.kind == kind
    assert reason in "".join(outcome.reasons)


def test_s18_an_embedding_of_its_own() -> None:
    checkpoint = head(add={"embed_tokens.weight": (VOCAB, H)})
    wanted = spec(own_embedding=True)
    assert sglang(checkpoint, wanted).kind == "unknown"
    assert sglang(checkpoint, wanted, embedding_is_copy=True).kind == "exact"
    assert "replaced by the target's" in sglang(checkpoint, wanted, embedding_is_copy=False).reasons[0]
    assert not any("embed" in reason for reason in vllm(checkpoint, wanted, embedding_is_copy=False).reasons)


def test_s25_the_wrong_algorithm() -> None:
    outcome = compare(effective_sglang(head(), TARGET, algorithm="EAGLE"), SPEC, "0.5.23")
    assert outcome.kind == "wrong"
    assert any("fc is skipped" in reason for reason in outcome.reasons)
    assert any(reason.startswith("boundaries: runs ()") for reason in outcome.reasons)


def test_s28_another_vocabulary_is_reported() -> None:
    checkpoint = head({"vocab_size": 400})
    outcome = sglang(checkpoint, SPEC)
    assert outcome.kind == "unknown"
    assert "without a shape check" in outcome.reasons[0]
