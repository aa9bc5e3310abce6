"""The staged config of an MLA head: the latent cache's sizes, and the softmax scale as SGLang derives it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sglang_eagle31.head.spec import DrafterSpec
from sglang_eagle31.head.stage import canonical_config

SIZES = {"q_lora_rank": 32, "kv_lora_rank": 20, "qk_nope_head_dim": 16, "qk_rope_head_dim": 9, "v_head_dim": 12}


def staged(**changes: Any) -> dict[str, Any]:
    spec = DrafterSpec(
        **{
            "producer": "test",
            "hidden_size": 48,
            "target_hidden_size": 48,
            "intermediate_size": 64,
            "num_layers": 1,
            "num_heads": 4,
            "num_kv_heads": 4,
            "head_dim": 25,
            "vocab_size": 100,
            "draft_vocab_size": 100,
            "boundaries": (1, 3, 5),
            "attention": "mla",
            "softmax_scale": 0.2,
            "max_position_embeddings": 512,
            **SIZES,
            **changes,
        }
    )
    return canonical_config(spec, {}, "bfloat16")


def derived_scale(config: dict[str, Any]) -> float:
    """The scale that SGLang's model config arrives at: ``mscale ** 2 / sqrt(nope + rope)``, mscale 1 without yarn."""
    rope, mscale = config["rope_parameters"], 1.0
    if rope["rope_type"] != "default":
        mscale = 0.1 * rope["mscale_all_dim"] * math.log(rope["factor"]) + 1.0
    return float(mscale**2 / math.sqrt(config["qk_nope_head_dim"] + config["qk_rope_head_dim"]))


def test_sglang_is_told_that_the_cache_is_latent() -> None:
    config = staged()
    assert config["architectures"] == ["Eagle31LlamaForCausalLM", "Eagle3DeepseekV2ForCausalLM"]
    assert {name: config[name] for name in SIZES} == SIZES


@pytest.mark.parametrize("scale", [0.2, 0.2 * (0.1 * math.log(64) + 1) ** 2, 0.19])
def test_the_scale_is_the_specs_whatever_the_scaling_of_positions(scale: float) -> None:
    yarn = {"rope_type": "yarn", "factor": 64.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}
    for scaling in (None, yarn):
        config = staged(softmax_scale=scale, rope_scaling=scaling)
        assert derived_scale(config) == pytest.approx(scale, rel=1e-9)
        assert config["max_position_embeddings"] == 512


def test_without_mscale_no_scaling_is_stated() -> None:
    assert staged()["rope_parameters"] == {"rope_type": "default", "rope_theta": 10000.0}


def test_other_heads_have_one_architecture_and_no_latent_sizes() -> None:
    config = staged(attention="gqa", softmax_scale=None, head_dim=16)
    assert config["architectures"] == ["Eagle31LlamaForCausalLM"]
    assert not set(SIZES) & set(config)
