"""What this CPU runs is tried: operators that are missing, raise, or give something else are not used."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import linear

from sglang_eagle31.server.cpu import fast_paths

RAISES = "bf16 path needs the cpu support avx_ne_convert or avx512bw"


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """oneDNN's, replaced: the plain product, as a CPU that supports everything would have it."""
    made = SimpleNamespace(
        _reorder_linear_weight=lambda weight, rows: weight.clone(),
        _linear_pointwise=lambda x, weight, bias, *rest: linear(x, weight, bias),
    )
    monkeypatch.setattr(fast_paths.torch.ops, "mkldnn", made, raising=False)
    monkeypatch.setattr(fast_paths.torch.backends.mkldnn, "is_available", lambda: True)
    fast_paths.why_not_packed.cache_clear()
    yield made
    fast_paths.why_not_packed.cache_clear()


def test_a_cpu_with_everything_serves_in_bfloat16(operators: Any) -> None:
    assert [fast_paths.why_not_packed(dtype) for dtype in fast_paths.DTYPES] == ["", ""]
    assert fast_paths.dtype_here()[0] == "bfloat16"


def test_an_operator_that_raises_in_bfloat16_leaves_float32(operators: Any) -> None:
    plain = operators._reorder_linear_weight

    def reorder(weight: torch.Tensor, rows: int) -> torch.Tensor:
        if weight.dtype == torch.bfloat16:
            raise RuntimeError(f"{RAISES}\nException raised from somewhere")
        return plain(weight, rows)

    operators._reorder_linear_weight = reorder
    assert fast_paths.why_not_packed(torch.bfloat16) == RAISES
    assert fast_paths.why_not_packed(torch.float32) == ""
    assert fast_paths.dtype_here()[0] == "float32"


@pytest.mark.parametrize("dtype", fast_paths.DTYPES)
@pytest.mark.parametrize("fault", ["raises when it multiplies", "forgets the bias", "one row", "another dtype"])
def test_a_product_that_is_not_torch_s_is_not_used(operators: Any, fault: str, dtype: torch.dtype) -> None:
    def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *rest: object) -> torch.Tensor:
        if fault == "raises when it multiplies":
            raise RuntimeError("could not create a primitive descriptor")
        if fault == "forgets the bias":
            return linear(x, weight)
        if fault == "another dtype":
            return linear(x, weight, bias).half()
        return torch.cat([linear(x[:1], weight, bias), torch.zeros(len(x) - 1, len(weight), dtype=x.dtype)])

    operators._linear_pointwise = product
    assert fast_paths.why_not_packed(dtype) != ""
    assert fast_paths.dtype_here()[0] == "float32"


def test_a_torch_without_the_operators(operators: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    del operators._reorder_linear_weight
    assert "_reorder_linear_weight" in fast_paths.why_not_packed(torch.float32)
    fast_paths.why_not_packed.cache_clear()
    monkeypatch.setattr(fast_paths.torch.backends.mkldnn, "is_available", lambda: False)
    assert "without oneDNN" in fast_paths.why_not_packed(torch.bfloat16)


@pytest.mark.parametrize("dtype", fast_paths.DTYPES)
def test_what_this_cpu_runs_is_right(dtype: torch.dtype) -> None:
    """On the real operators, whatever they are here: the exact product but for one rounding of each sum."""
    if fast_paths.why_not_packed(dtype):
        assert fast_paths.dtype_here()[0] == "float32"
        return
    random = torch.Generator().manual_seed(1)
    weight, x = (torch.randn(n, 200, generator=random).to(dtype) for n in (130, 7))
    found = fast_paths.packed_linear(x, fast_paths.pack(weight))
    exact, sums = linear(x.double(), weight.double()), linear(x.double().abs(), weight.double().abs())
    bound = 200 * torch.finfo(torch.float32).eps * sums + torch.finfo(dtype).eps * exact.abs()
    assert bool(((found.double() - exact).abs() <= bound).all())


def test_other_dtypes_are_left_alone() -> None:
    assert "float16" in fast_paths.why_not_packed(torch.float16)


@pytest.mark.parametrize("isa", [{}, {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"}])
def test_the_command_prints_the_dtype_alone(isa: dict[str, str]) -> None:
    """On this machine, whatever it is, and as an older one: an answer, and the reason beside it."""
    command = [sys.executable, "-m", "sglang_eagle31.server.cpu.fast_paths"]
    done = subprocess.run(command, env={**os.environ, **isa}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("bfloat16", "float32")
    assert f"--dtype {done.stdout.strip()}: " in done.stderr
