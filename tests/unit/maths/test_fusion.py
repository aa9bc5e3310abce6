"""The grouped norm against one RMSNorm a state."""

from __future__ import annotations

import pytest
import torch
from truth.rounding import EXACT, assert_within, gamma, in_float64

from sglang_eagle31.maths import fusion
from sglang_eagle31.maths.fusion import grouped_rms_norm

SHAPES = [(1, 3, 64), (7, 3, 576), (33, 1, 16), (5, 4, 24), (0, 3, 8)]


EPS = 1e-6


def case(tokens: int, k: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens * 100 + k)
    # Later states of a real target are larger by orders of magnitude.
    sizes = torch.logspace(0, 3, k).repeat_interleave(width)
    states = (torch.randn(tokens, k * width, generator=generator) * sizes).to(dtype)
    return states, (1 + 0.2 * torch.randn(k, width, generator=generator)).to(dtype)


def separate(states: torch.Tensor, gamma: torch.Tensor, eps: float) -> torch.Tensor:
    """float32 -> x * rsqrt -> * gamma -> cast, one state after the other."""
    out = []
    for state, gain in zip(states.chunk(len(gamma), dim=-1), gamma, strict=True):
        x = state.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + eps)
        out.append((x * gain.to(torch.float32)).to(states.dtype))
    return torch.cat(out, dim=-1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_separate_norms_bit_for_bit(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    states, gamma = case(*shape, dtype)
    out = grouped_rms_norm(states, gamma, 1e-5)
    assert out.dtype == dtype and out.shape == states.shape
    assert torch.equal(out, separate(states, gamma, 1e-5))


def formula(states: torch.Tensor, gains: torch.Tensor, eps: float) -> torch.Tensor:
    """In float64."""
    wide = states.double().view(len(states), *gains.shape)
    return (wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * gains.double()).view_as(states)


def bound_of(width: int) -> float:
    """Of each element: a sum of positive squares, whose error the root halves, and five roundings of what follows."""
    return gamma(width / 2 + 5, torch.float32)


@pytest.mark.parametrize("shape", SHAPES)
def test_float32_against_float64(shape: tuple[int, int, int]) -> None:
    states, gains = case(*shape, torch.float32)
    expected = formula(states, gains, EPS)
    assert_within(grouped_rms_norm(states, gains, EPS), expected, bound_of(shape[2]) * expected.abs())


@pytest.mark.parametrize("shape", SHAPES)
def test_the_formula_in_float64(shape: tuple[int, int, int]) -> None:
    states, gains = case(*shape, torch.float64)
    expected, other = formula(states, gains, EPS), formula(states, gains, 1.01 * EPS)
    with in_float64():
        out = grouped_rms_norm(states, gains, EPS)
    assert_within(out, expected, EXACT * expected.abs())
    assert not len(out) or float(((other - expected) / expected).abs().max()) > EXACT


def test_states_of_any_magnitude_leave_with_the_same() -> None:
    states, _ = case(64, 3, 128, torch.float32)
    out = grouped_rms_norm(states, torch.ones(3, 128), EPS).double().view(64, 3, 128)
    taken = 2 * EPS  # eps over the smallest mean square, which is more than a half
    assert_within(out.square().mean(-1), torch.ones(64, 3), 2 * bound_of(128) + taken)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_large_states_are_normed_one_by_one_to_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    states, gamma = case(6, 3, 8, dtype)
    at_once = grouped_rms_norm(states, gamma, 1e-6)
    monkeypatch.setattr(fusion, "AT_ONCE", 0)
    assert torch.equal(grouped_rms_norm(states, gamma, 1e-6), at_once)


def test_eps_keeps_zero_finite() -> None:
    assert torch.equal(grouped_rms_norm(torch.zeros(2, 8), torch.ones(2, 4), 1e-6), torch.zeros(2, 8))


def test_a_view_of_a_wider_tensor() -> None:
    states, gamma = case(6, 3, 8, torch.float32)
    wide = torch.cat([states, states], dim=-1)[:, :24]
    assert not wide.is_contiguous()
    assert torch.equal(grouped_rms_norm(wide, gamma, 1e-6), grouped_rms_norm(states, gamma, 1e-6))
