"""How far rounding may take two computations of the same thing apart, and how to compute where it is next to nothing.

A sum of n products is off by at most gamma_n = n u / (1 - n u) times the sum of the products' sizes, in any order of
summation, with or without fused multiply-add; u is the unit roundoff of the dtype. So a bound follows from what is
computed, not from the kernels that a processor gets. Source: Higham, Accuracy and Stability of Numerical Algorithms,
2nd edition, sections 2.2, 3.1 and 3.5.

Layers that follow each other also enlarge the errors of those before, and no such bound is small over many of them in
float32. So whole networks are compared in float64 (`in_float64`): their differences are 1e-15 to 1e-14 of the largest
element, and a norm or a residual that is not the same stands out by ten orders of magnitude.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

EXACT = 1e-9
"""Of the largest element, between two networks in float64."""
FAULT = 1e6 * EXACT
"""Of the largest element: by how much a switch has to change what is compared."""


def unit(dtype: torch.dtype) -> float:
    """Unit roundoff: half the distance from 1 to the next number; 2^-24 in float32, 2^-8 in bfloat16."""
    return torch.finfo(dtype).eps / 2


def gamma(terms: float, dtype: torch.dtype) -> float:
    """Error of a sum of ``terms`` products, or of as many roundings one after the other, as a share of their size."""
    share = terms * unit(dtype)
    assert share < 1, f"{terms} roundings to {dtype} leave nothing"
    return share / (1 - share)


def network(layers: int, terms: int, dtype: torch.dtype = torch.float32, sums: int = 8) -> float:
    """Of the largest element, for one pass of a draft head: its sums that follow from each other, of ``terms`` each.

    ``sums`` of a layer are its two norms, qkv, scores, values, o_proj, gate and up, and down_proj; fc, the last norm
    and lm_head are three more. What a layer does to the errors of those before it is left out.
    """
    return (sums * layers + 3) * gamma(terms, dtype)


def apart(found: Tensor, expected: Tensor) -> float:
    """Largest difference as a share of the largest element of ``expected``."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    return float(((found - expected).abs().max() / expected.abs().max()).detach())


def assert_exact(found: Tensor, expected: Tensor) -> None:
    """Both are in float64, and the same."""
    assert found.dtype == expected.dtype == torch.float64, (found.dtype, expected.dtype)
    torch.testing.assert_close(found, expected, rtol=0, atol=EXACT * float(expected.detach().abs().max()))


def assert_within(found: Tensor, expected: Tensor, bound: Tensor | float) -> None:
    """No element of ``found`` is further from its own of ``expected``, in float64, than ``bound``, which broadcasts."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    over = (found.detach().double() - expected).abs() / torch.as_tensor(bound, dtype=torch.float64)
    assert bool((over <= 1).all()), f"{float(over.max()):.3g} times the bound"


@contextmanager
def in_float64() -> Iterator[None]:
    """What asks for float32 inside, here, in the package or in transformers, gets float64.

    It asks by torch's default dtype, by ``torch.float32`` or ``torch.float``, or by ``Tensor.float()``. A dtype that
    was looked up before, as a default argument is, stays what it was.
    """
    before = torch.get_default_dtype()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "float32", torch.float64)
        patch.setattr(torch, "float", torch.float64)
        patch.setattr(Tensor, "float", Tensor.double)
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(before)
