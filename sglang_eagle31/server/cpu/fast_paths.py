"""Which fast paths this CPU runs: each is tried once in a process, on a small product, and must agree with torch.

An operator that exists may still raise on a CPU without the instructions for one dtype, so its name tells nothing.
``python -m sglang_eagle31.server.cpu.fast_paths`` prints the dtype to serve in, and why.
"""

from __future__ import annotations

import sys
from functools import lru_cache

import torch
from torch.nn.functional import linear

DTYPES = (torch.bfloat16, torch.float32)
"""In which weights are packed."""
BATCH_HINT = 4
"""Rows for which oneDNN chooses the layout: those of a short verification."""
_OUT, _IN = 96, 64


def pack(weight: torch.Tensor) -> torch.Tensor:
    """``[out, in]`` in oneDNN's own layout; raises RuntimeError where this CPU cannot."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, BATCH_HINT)  # type: ignore[no-any-return]


def packed_linear(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``[tokens, in]`` by what `pack` made of ``[out, in]``: ``[tokens, out]``."""
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")  # type: ignore[no-any-return]


@lru_cache
def why_not_packed(dtype: torch.dtype) -> str:
    """Why weights of ``dtype`` are not packed here; empty where the packed product runs and is right."""
    if dtype not in DTYPES:
        return f"weights in {name(dtype)} are never packed"
    if not torch.backends.mkldnn.is_available():
        return "this torch was built without oneDNN"
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(_OUT, _IN, generator=random).to(dtype)
    bias = torch.randn(_OUT, generator=random).to(dtype)
    try:
        packed = pack(weight)
        for rows in (1, BATCH_HINT, 3 * BATCH_HINT):
            x = torch.randn(rows, _IN, generator=random).to(dtype)
            if not _agree(packed_linear(x, packed, bias), x, weight, bias):
                return f"oneDNN's packed product in {name(dtype)} is not torch's on this CPU"
    except (RuntimeError, AttributeError) as error:
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return ""


def dtype_here() -> tuple[str, str]:
    """SGLang's ``--dtype`` for a server on this CPU, and the reason in words."""
    if not why_not_packed(torch.bfloat16):
        return "bfloat16", "this CPU multiplies bfloat16, and half the bytes of float32 are read for a token"
    if not why_not_packed(torch.float32):
        return (
            "float32",
            "this CPU does not multiply bfloat16, and in packed float32 four tokens cost what one does",
        )
    return "float32", "no fast path runs on this CPU, and float32 needs no conversion"


def _agree(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> bool:
    """Whether ``out`` and torch's ``linear`` differ by no more than two roundings of the same sum may.

    Sums are taken in float32, in any order: each is off by at most ``n u`` of the sum of magnitudes (Higham, Accuracy
    and Stability of Numerical Algorithms, 3.1), and is then rounded to the dtype.
    """
    exact = linear(x.double(), weight.double(), bias.double())
    magnitude = linear(x.double().abs(), weight.double().abs(), bias.double().abs())
    terms = weight.shape[1] + 1
    bound = magnitude * terms * torch.finfo(torch.float32).eps + exact.abs() * torch.finfo(x.dtype).eps
    return out.dtype == x.dtype and bool(((out.double() - exact).abs() <= bound).all())


def name(dtype: torch.dtype) -> str:
    """As SGLang's ``--dtype`` has it."""
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    chosen, reason = dtype_here()
    print(f"--dtype {chosen}: {reason}", file=sys.stderr)
    print(chosen)
