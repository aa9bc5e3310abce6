"""Attention over gathered keys against a slow float64 reference, one query and one head at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from truth.rounding import assert_within, gamma, unit

from sglang_eagle31.server.cpu import attend, masks

HEADS = [(4, 4), (9, 3), (8, 1)]


@dataclass(frozen=True)
class Truth:
    """Attention in float64, and what its rounding depends on, each ``[n, heads * Dv]``."""

    out: torch.Tensor
    sizes: torch.Tensor
    """The same of the values' absolute values."""
    reach: torch.Tensor
    """Largest size of a score, the sum of its products' absolute values."""
    width: int
    length: int

    def bound(self, dtype: torch.dtype) -> torch.Tensor:
        """Weights are exponentials of scores, so that errors of scores are shares of weights.

        A score is a sum of ``width`` products, with scale, cap and the largest score in six more roundings; it counts
        twice, in the weight and in their sum. Weights are summed, and sum up values. All of this is in float32, and
        weights and results are kept in ``dtype``.
        """
        scores = 2 * self.reach * gamma(self.width + 6, torch.float32)
        return self.sizes * (scores + gamma(2 * self.length + 6, torch.float32) + 2 * unit(dtype))


def softmax_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    cap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> Truth:
    """Of ``[n, heads, D]``, ``[L, kv_heads, D or Dv]`` and ``[n, L]``."""
    count, heads, width = query.shape
    groups = heads // key.shape[1]
    out, sizes, reach = torch.zeros(3, count, heads, value.shape[-1], dtype=torch.float64)
    for row in range(count):
        for head in range(heads):
            logits, values = [], []
            for column in range(key.shape[0]):
                if visible[row, column]:
                    products = query[row, head].double() * key[column, head // groups].double() * scale
                    score = float(products.sum())
                    reach[row, head] = reach[row, head].clamp_min(float(products.abs().sum()))
                    logits.append(cap * math.tanh(score / cap) if cap else score)
                    values.append(value[column, head // groups].double())
            sink = [] if sinks is None else [float(sinks[head])]
            weights = torch.tensor(logits + sink, dtype=torch.float64).softmax(0)[: len(logits)].unsqueeze(1)
            out[row, head] = (weights * torch.stack(values)).sum(0)
            sizes[row, head] = (weights * torch.stack(values).abs()).sum(0)
    return Truth(out.flatten(1), sizes.flatten(1), reach.flatten(1), width, key.shape[0])


def make(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(found: torch.Tensor, expected: Truth) -> None:
    assert_within(found, expected.out, expected.bound(found.dtype))


def tree_case(batch: int, count: int, length: int, seed: int) -> torch.Tensor:
    """``[B, n, L]``: every row sees a random set of columns that has its request's first one in it."""
    visible = torch.rand(batch, count, length, generator=torch.Generator().manual_seed(seed)) < 0.6
    lengths = torch.arange(batch).remainder(5).mul(2)
    visible &= torch.arange(length) < (length - lengths).view(-1, 1, 1)
    visible[..., 0] = True
    return visible


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("value_width", [8, 12])
@pytest.mark.parametrize("cap", [0.0, 5.0])
@pytest.mark.parametrize("sinked", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_rows(heads: int, kv_heads: int, sinked: bool, cap: float, value_width: int, dtype: torch.dtype) -> None:
    batch, count, length, width = 3, 4, 17, 8
    query = make(batch, count, heads, width, seed=1, dtype=dtype)
    key = make(batch, length, kv_heads, width, seed=2, dtype=dtype)
    value = make(batch, length, kv_heads, value_width, seed=3, dtype=dtype)
    sinks = make(heads, seed=4) if sinked else None
    visible = tree_case(batch, count, length, seed=5)
    bias = masks.bias(visible, heads // kv_heads, dtype)
    found = attend.rows(query, key, value, bias, width**-0.5, cap, sinks)
    assert found.shape == (batch, count, heads * value_width) and found.dtype == dtype
    for b in range(batch):
        close(found[b], softmax_attention(query[b], key[b], value[b], visible[b], width**-0.5, cap, sinks))


@pytest.mark.parametrize("batch", [1, 2, 16])
def test_rows_of_a_ragged_batch_do_not_see_each_other(batch: int) -> None:
    base = torch.arange(1, batch + 1)
    count, length = 3, int(base.max()) + 3
    query, key, value = (make(batch, n, h, 8, seed=n) for n, h in ((count, 4), (length, 2), (length, 2)))
    visible = masks.chain(base, count, length)
    found = attend.rows(query, key, value, masks.bias(visible, 2, query.dtype), 0.3)
    for b in range(batch):
        own = int(base[b]) + count
        close(found[b], softmax_attention(query[b], key[b, :own], value[b, :own], visible[b, :, :own], 0.3))
    key[:, length - 1], value[:, length - 1] = 1e4, 1e4
    again = attend.rows(query, key, value, masks.bias(visible, 2, query.dtype), 0.3)
    assert torch.equal(again[:-1], found[:-1])  # the last column belongs to the longest request alone


def test_rows_without_a_mask_see_everything() -> None:
    query, key, value = make(2, 1, 6, 8, seed=1), make(2, 9, 2, 8, seed=2), make(2, 9, 2, 8, seed=3)
    found = attend.rows(query, key, value, None, 0.2)
    for b in range(2):
        close(found[b], softmax_attention(query[b], key[b], value[b], torch.ones(1, 9, dtype=torch.bool), 0.2))


@pytest.mark.parametrize("cap", [0.0, 5.0])
def test_rows_of_strided_inputs(cap: float) -> None:
    """Queries as a slice of a fused projection, keys and values as views of a cache, whose dtype is another."""
    fused = make(2, 3, 4 + 2 + 2, 8, seed=1)
    pool = make(40, 2, 2, 8, seed=2, dtype=torch.bfloat16)
    query, key, value = fused[:, :, :4], pool[:22, 0].view(2, 11, 2, 8), pool[:22, 1].view(2, 11, 2, 8)
    assert not query.is_contiguous() and not key.is_contiguous()
    visible = tree_case(2, 3, 11, seed=3)
    found = attend.rows(query, key, value, masks.bias(visible, 2, query.dtype), 0.3, cap)
    for b in range(2):
        close(found[b], softmax_attention(query[b], key[b], value[b], visible[b], 0.3, cap))


def causal(count: int, length: int, window: int) -> torch.Tensor:
    visible = torch.zeros(count, length, dtype=torch.bool)
    for row in range(count):
        at = length - count + row
        for column in range(length):
            visible[row, column] = column <= at and (window < 0 or column >= at - window)
    return visible


@pytest.mark.parametrize("count", [1, 5, 12])
@pytest.mark.parametrize("window", [-1, 0, 4])
@pytest.mark.parametrize(("cap", "sinked"), [(0.0, False), (5.0, False), (0.0, True), (5.0, True)])
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_prefill(heads: int, kv_heads: int, cap: float, sinked: bool, window: int, count: int) -> None:
    length, width, value_width = 12, 8, 6
    query, sinks = make(count, heads, width, seed=1), make(heads, seed=4) if sinked else None
    key, value = make(length, kv_heads, width, seed=2), make(length, kv_heads, value_width, seed=3)
    found = attend.prefill(query, key, value, 0.3, window, cap, sinks)
    close(found, softmax_attention(query, key, value, causal(count, length, window), 0.3, cap, sinks))


@pytest.mark.parametrize("window", [-1, 4])
def test_prefill_of_strided_inputs(window: int) -> None:
    fused, pool = make(5, 4 + 2 + 2, 8, seed=1), make(12, 2, 2, 8, seed=2, dtype=torch.bfloat16)
    query, key, value = fused[:, :4], pool[:, 0], pool[:, 1]
    found = attend.prefill(query, key, value, 0.3, window)
    close(found, softmax_attention(query, key, value, causal(5, 12, window), 0.3))


def test_prefill_in_chunks_is_prefill_at_once() -> None:
    query, key, value = make(12, 4, 8, seed=1), make(12, 2, 8, seed=2), make(12, 2, 8, seed=3)
    expected = softmax_attention(query, key, value, causal(12, 12, -1), 0.3)
    close(attend.prefill(query, key, value, 0.3), expected)
    parts = [attend.prefill(query[at : at + 4], key[: at + 4], value[: at + 4], 0.3) for at in (0, 4, 8)]
    close(torch.cat(parts), expected)


def over(found: torch.Tensor, expected: Truth) -> float:
    """Largest difference in multiples of its bound."""
    return float(((found.double() - expected.out).abs() / expected.bound(found.dtype)).max())


@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, 1000), (torch.bfloat16, 10)])
def test_the_bound_is_far_below_a_mistake(dtype: torch.dtype, least: float) -> None:
    query, key, value = (make(12, heads, 8, seed=seed, dtype=dtype) for seed, heads in ((1, 4), (2, 2), (3, 2)))
    expected = softmax_attention(query, key, value, causal(12, 12, 4), 0.3)
    assert over(attend.prefill(query, key, value, 0.3, 4), expected) <= 1
    assert over(attend.prefill(query, key, value, 0.33, 4), expected) > least  # another scale
    assert over(attend.prefill(query, key, value, 0.3, 5), expected) > least  # a window of one key more
    assert over(attend.prefill(query, key, value, 0.3, 4, cap=5.0), expected) > least
