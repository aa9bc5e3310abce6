"""Draws of draft tokens on a CPU.

Target: sglang.kernels.ops.speculative.row_argmax.row_argmax
Why: with `--speculative-use-rejection-sampling` drafts are drawn, and the last step of a draw is a Triton kernel.
How: around the kernel: CPU tensors go to `torch.argmax`.
Upstream: SGLang's kernel is for GPUs (0.5.23).
Remove when: it takes CPU tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_eagle31.patches._seam import Seam


def argmax(kernel: Callable[[Any], Any], x: Any) -> Any:
    """AROUND hook: the largest of each row."""
    return x.argmax(dim=-1) if x.device.type == "cpu" else kernel(x)


SEAM = Seam("sglang.kernels.ops.speculative.row_argmax.row_argmax", ("x",), "AROUND", "eagle31", argmax)
