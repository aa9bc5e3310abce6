"""Packed weights give the same bits as torch's linear, and follow a weight that is written to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from sglang_eagle31.cpu import standin


@pytest.fixture(scope="module")
def packed() -> Any:
    """The module, which imports SGLang."""
    standin.prepare()
    from sglang_eagle31.cpu import packed

    if not packed.available():
        pytest.skip("this torch has no packed linear; SGLang's own is used then")
    return packed


def model(dtype: torch.dtype) -> nn.Module:
    """A model of one linear layer and a head, as SGLang's loader leaves them."""
    from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod, UnquantizedLinearMethod

    root = nn.Module()
    root.layer, root.lm_head = nn.Linear(576, 960, bias=True, dtype=dtype), nn.Linear(576, 4096, False, dtype=dtype)
    root.layer.quant_method, root.lm_head.quant_method = UnquantizedLinearMethod(), UnquantizedEmbeddingMethod()
    return root.requires_grad_(False)


@pytest.mark.parametrize("rows", [1, 2, 4, 6, 8, 16, 33, 300])
def test_same_bits(packed: Any, rows: int) -> None:
    torch.manual_seed(rows)
    root = model(torch.bfloat16)
    assert packed.pack(root) == 2
    x = torch.randn(rows, 576, dtype=torch.bfloat16)
    for module in (root.layer, root.lm_head):
        assert torch.equal(module.quant_method.apply(module, x, module.bias), linear(x, module.weight, module.bias))


def test_a_written_weight_is_packed_again(packed: Any) -> None:
    root = model(torch.bfloat16)
    packed.pack(root)
    x = torch.randn(4, 576, dtype=torch.bfloat16)
    before = root.layer.quant_method.apply(root.layer, x)
    root.layer.weight.mul_(2)
    assert torch.equal(root.layer.quant_method.apply(root.layer, x), 2 * before)


def test_only_bf16_is_packed_and_only_once(packed: Any) -> None:
    assert packed.pack(model(torch.float32)) == 0
    root = model(torch.bfloat16)
    assert (packed.pack(root), packed.pack(root)) == (2, 0)
