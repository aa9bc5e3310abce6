"""Sizes, biases and activation: what config.json says of them has to be what the tensors say."""

from __future__ import annotations

import pytest
from heads import Case

REFUSED = [
    Case("specforge", ("eagle_config.norm_before_residual=True",), {"eagle": {"norm_before_residual": True}}),
    Case("specforge", ("expected true or false",), {"config": {"fc_norm": "yes"}}),
    Case(
        "specforge",
        ("says norm_before_fc=true, but the file has no input_norm.weight",),
        {"config": {"norm_before_fc": True}},
    ),
    Case("specforge", ("bias=true, but the file lacks the tensors of fc_bias",), {"config": {"bias": True}}),
    Case("vllm", ("attention_bias=true, but the file lacks",), {"config": {"attention_bias": True}}),
    Case(
        "nemo_bias",
        ("attention_bias=false, but the file has the tensors of qkv_bias, o_bias",),
        {"config": {"attention_bias": False}},
    ),
    Case(
        "nemo_mlp_bias", ("mlp_bias=false, but the file has the tensors of mlp_bias",), {"config": {"mlp_bias": False}}
    ),
    Case("specforge", ("hidden_act='relu'",), {"config": {"hidden_act": "relu"}}),
    Case("specforge", ("num_aux_hidden_states=4", "3 states"), {"config": {"num_aux_hidden_states": 4}}),
    Case("specforge", ("hidden_size=128", "the tensors say 64"), {"config": {"hidden_size": 128}}),
    Case("specforge", ("intermediate_size=97", "the tensors say 96"), {"config": {"intermediate_size": 97}}),
    Case(
        "specforge", ("num_key_value_heads=3", "does not divide"), {"config": {"num_key_value_heads": 3}, "tensors": {}}
    ),
]


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_a_key_against_the_tensors_is_refused(case: Case) -> None:
    case.reason()
