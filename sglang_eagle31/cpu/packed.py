"""Weights of bf16 linear layers, laid out once for oneDNN instead of at every call.

A verify step multiplies a few rows by every weight of the target. torch's ``linear`` has oneDNN read the plain layout
each time; the packed one gives the same bits (both are oneDNN's matmul, and a test compares them) in less time. It
costs a second copy of the weights. Only speculative servers on our CPU backend use it.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod, UnquantizedLinearMethod
from torch.nn.functional import linear

BATCH_HINT = 4
MOST_ROWS = 64
"""Above it, in prefill, weights are read as they are: the packed layout was measured for few rows only."""


def available() -> bool:
    """Whether this torch has oneDNN's packed linear."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class _Packed:
    """``apply`` with the packed form of a layer's weight, made again when the weight was written to at run time."""

    form: torch.Tensor | None = None
    source: tuple[int, int] | None = None

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """``[tokens, in]`` to ``[tokens, out]``."""
        weight = layer.weight
        if x.shape[0] > MOST_ROWS:
            return linear(x, weight, bias)
        source = (weight.data_ptr(), weight._version)
        if self.form is None or self.source != source:
            self.form = torch.ops.mkldnn._reorder_linear_weight(weight.data, BATCH_HINT)
            self.source = source
        return torch.ops.mkldnn._linear_pointwise(x, self.form, bias, "none", [], "")  # type: ignore[no-any-return]


class PackedLinearMethod(_Packed, UnquantizedLinearMethod):
    """SGLang's unquantised linear with a packed weight."""


class PackedHeadMethod(_Packed, UnquantizedEmbeddingMethod):
    """SGLang's unquantised ``lm_head`` with a packed weight; as a tied embedding it still looks rows up."""


def pack(model: Any) -> int:
    """Use packed weights in a loaded model's bf16 linear layers and ``lm_head``.

    Returns:
        how many layers were changed; a second call changes none.
    """
    if not available():
        return 0
    changed = 0
    head: Any = getattr(model, "lm_head", None)
    module: Any
    for module in model.modules():
        method, weight = getattr(module, "quant_method", None), getattr(module, "weight", None)
        if not isinstance(weight, torch.Tensor) or weight.dtype != torch.bfloat16 or weight.device.type != "cpu":
            continue
        if type(method) is UnquantizedLinearMethod:
            module.quant_method = PackedLinearMethod()
        elif module is head and type(method) is UnquantizedEmbeddingMethod:
            module.quant_method = PackedHeadMethod()
        else:
            continue
        changed += 1
    return changed
