"""The bounds that other tests use hold for every order of summation, and can be reached."""

from __future__ import annotations

import math
import random

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from truth.rounding import EXACT, apart, assert_exact, assert_within, gamma, in_float64, unit

UNITS = {torch.float32: 2**-24, torch.float16: 2**-11, torch.bfloat16: 2**-8}


@pytest.mark.parametrize("dtype", UNITS, ids=str)
def test_the_unit_is_the_largest_error_of_one_rounding(dtype: torch.dtype) -> None:
    assert unit(dtype) == UNITS[dtype]
    near = 1 + torch.linspace(0, 4 * UNITS[dtype], 1001, dtype=torch.float64)
    error = (near.to(dtype).double() - near).abs() / near
    assert 0.9 * unit(dtype) < float(error.max()) <= unit(dtype)


def test_gamma_by_hand() -> None:
    assert gamma(0, torch.float32) == 0
    assert gamma(64, torch.bfloat16) == pytest.approx(1 / 3)  # 64 / 256 over 1 - 64 / 256
    with pytest.raises(AssertionError, match="256 roundings"):
        gamma(256, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("terms", [2, 7, 40])
def test_a_dot_product_in_any_order_is_within_gamma(dtype: torch.dtype, terms: int) -> None:
    rng, generator = random.Random(terms), torch.Generator().manual_seed(terms)
    worst = 0.0
    for _ in range(100):
        one, other = (torch.randn(terms, generator=generator).to(dtype) for _ in range(2))
        parts = list(one * other)
        while len(parts) > 1:  # a sum in a random tree, each step rounded
            parts.append(parts.pop(rng.randrange(len(parts))) + parts.pop(rng.randrange(len(parts))))
        products = (one.double() * other.double()).tolist()
        worst = max(worst, abs(float(parts[0]) - math.fsum(products)) / math.fsum(map(abs, products)))
    assert unit(dtype) / 4 < worst <= gamma(terms, dtype)


def test_a_sum_whose_roundings_all_point_one_way_reaches_gamma() -> None:
    """1 + u + u + ... in bfloat16 stays 1, because each half step is rounded to even."""
    total, terms = torch.ones((), dtype=torch.bfloat16), 17
    for _ in range(terms - 1):
        total = total + torch.tensor(2**-8, dtype=torch.bfloat16)
    exact = 1 + (terms - 1) * 2**-8
    assert 0.8 * gamma(terms, torch.bfloat16) < (exact - float(total)) / exact < gamma(terms, torch.bfloat16)


def test_everything_inside_is_float64_and_nothing_after() -> None:
    narrow = torch.full((3, 8), 1 / 3)
    norm = LlamaRMSNorm(8)
    with pytest.raises(ZeroDivisionError), in_float64():
        assert {torch.zeros(1).dtype, torch.arange(3).float().dtype, torch.zeros(1, dtype=torch.float32).dtype} == {
            torch.float64
        }
        x = narrow.double() + 1e-12
        assert_exact(norm.double()(x), x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt())  # a cast of transformers
        1 / 0  # noqa: B018
    assert torch.zeros(1).dtype == torch.arange(3).float().dtype == torch.float32 == narrow.dtype
    assert torch.float32 is torch.float is not torch.float64


def test_comparisons_fail_where_they_should() -> None:
    one = torch.tensor([1.0, -4.0], dtype=torch.float64)
    near, far = one + 0.9 * 4 * EXACT, one + 1.1 * 4 * EXACT
    assert_exact(near, one)
    assert apart(near, one) == pytest.approx(0.9 * EXACT, rel=1e-3)
    assert_within(one.float(), one, 1e-30)
    assert_within(near, one, torch.tensor([4e-9, 5e-9]))
    for wrong in (far, one.float(), one * float("nan"), one[:1]):
        with pytest.raises(AssertionError):
            assert_exact(wrong, one)
    for wrong, bound in ((near, 3e-9), (one * float("nan"), 1.0), (one[:1], 1.0)):
        with pytest.raises(AssertionError):
            assert_within(wrong, one, bound)
