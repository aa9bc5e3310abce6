"""Packed weights give torch's product, follow a weight that is written to, and are left out where they cannot be."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from sglang_eagle31.server.cpu import fast_paths, memory, standin

ROWS = [1, 2, 4, 6, 8, 16, 33, 300]
DTYPES = [torch.bfloat16, torch.float32]
IN, OUT = 576, 960


@pytest.fixture(scope="module")
def packed() -> Any:
    """The module, which imports SGLang."""
    standin.prepare()
    from sglang_eagle31.server.cpu import packed

    return packed


@pytest.fixture(params=DTYPES, ids=["bfloat16", "float32"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """Those that this CPU packs; the others are tested by `test_what_cannot_be_packed_serves_as_before`."""
    if why := fast_paths.why_not_packed(request.param):
        pytest.skip(why)
    return request.param


@pytest.fixture
def cannot(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A CPU whose oneDNN has the operators, and raises."""

    def raises(*_: object) -> None:
        raise RuntimeError("could not create a primitive descriptor")

    monkeypatch.setattr(fast_paths, "pack", raises)
    fast_paths.why_not_packed.cache_clear()
    yield
    fast_paths.why_not_packed.cache_clear()


def model(dtype: torch.dtype) -> nn.Module:
    """A model of one linear layer and a head, as SGLang's loader leaves them."""
    from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod, UnquantizedLinearMethod

    root = nn.Module()
    root.layer, root.lm_head = nn.Linear(IN, OUT, bias=True, dtype=dtype), nn.Linear(IN, 4096, False, dtype=dtype)
    root.layer.quant_method, root.lm_head.quant_method = UnquantizedLinearMethod(), UnquantizedEmbeddingMethod()
    return root.requires_grad_(False)


def products(root: nn.Module, rows: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Of each layer: ours, torch's, and the largest difference that rounding explains, element by element.

    Both sum in float32, each in its own order: off by at most ``n u`` of the sum of magnitudes (Higham, 3.1), and then
    rounded to the dtype.
    """
    dtype = root.layer.weight.dtype
    x = torch.randn(rows, IN, generator=torch.Generator().manual_seed(rows)).to(dtype)
    for module in (root.layer, root.lm_head):
        plain = linear(x, module.weight, module.bias)
        bias = None if module.bias is None else module.bias.double().abs()
        magnitude = linear(x.double().abs(), module.weight.double().abs(), bias)
        sums = 2 * (IN + 1) * torch.finfo(torch.float32).eps / 2 * magnitude
        yield module.quant_method.apply(module, x, module.bias), plain, sums + plain.abs() * torch.finfo(dtype).eps


@pytest.mark.parametrize("rows", ROWS)
def test_the_product_is_torch_s(packed: Any, dtype: torch.dtype, rows: int) -> None:
    root = model(dtype)
    assert packed.pack(root) == 2
    for ours, plain, bound in products(root, rows):
        assert ours.dtype == dtype and bool(((ours.double() - plain.double()).abs() <= bound).all())


def test_a_written_weight_is_packed_again(packed: Any, dtype: torch.dtype) -> None:
    root = model(dtype)
    packed.pack(root)
    x = torch.randn(4, IN, dtype=dtype)
    before = root.layer.quant_method.apply(root.layer, x)
    root.layer.weight.mul_(2)
    assert torch.equal(root.layer.quant_method.apply(root.layer, x), 2 * before)


def test_an_update_of_sglang_is_followed(packed: Any, dtype: torch.dtype) -> None:
    """It copies into ``weight.data``, which the weight itself does not count as a write."""
    root, rest = model(dtype), model(dtype)

    def update(weight: torch.Tensor) -> str:
        root.layer.weight.data.copy_(weight)
        return "done"

    runner = SimpleNamespace(model=root, weight_updater=SimpleNamespace(update_weights_from_disk=update, rank=3))
    packed.pack_runner(runner)
    shared = model(dtype)
    shared.layer.weight = root.layer.weight  # as a draft has the target's
    packed.pack(shared)
    x = torch.randn(4, IN, dtype=dtype)
    assert runner.weight_updater.update_weights_from_disk(rest.layer.weight) == "done"
    assert runner.weight_updater.rank == 3
    packed.pack(rest)
    expected = rest.layer.quant_method.apply(rest.layer, x)
    for layer in (root.layer, shared.layer):
        assert torch.equal(layer.quant_method.apply(layer, x), expected)


def test_weights_are_packed_once_and_in_our_dtypes_only(packed: Any, dtype: torch.dtype) -> None:
    assert packed.pack(model(torch.float16)) == 0
    root = model(dtype)
    assert (packed.pack(root), packed.pack(root)) == (2, 0)


@pytest.mark.parametrize("dtype_", DTYPES)
def test_what_cannot_be_packed_serves_as_before(
    packed: Any, cannot: None, dtype_: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    root = model(dtype_)
    with caplog.at_level(logging.INFO, logger="sglang_eagle31"):
        assert packed.pack(root) == 0
    assert "could not create a primitive descriptor" in caplog.text
    for ours, plain, _ in products(root, 4):
        assert torch.equal(ours, plain)


def test_the_copy_leaves_memory_for_the_cache(
    packed: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    size = sum(module.weight.nbytes for module in (model(dtype).layer, model(dtype).lm_head))
    monkeypatch.setattr(memory, "available", lambda: 2 * size - 1)
    assert packed.pack(model(dtype)) == 0
    assert "weights are not packed" in caplog.text
    monkeypatch.setattr(memory, "available", lambda: 2 * size)
    assert packed.pack(model(dtype)) == 2
