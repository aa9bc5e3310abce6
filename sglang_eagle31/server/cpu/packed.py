"""Weights of linear layers, laid out once for oneDNN instead of at every call.

A verify step multiplies a few rows by every weight of the target. torch's ``linear`` reads the plain layout each time;
the packed product takes less, at a second copy of the weights. Only speculative servers on our CPU backend use it. It
differs from torch's ``linear`` by rounding at most.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod, UnquantizedLinearMethod
from torch.nn.functional import linear

from sglang_eagle31.server.cpu import fast_paths, memory

logger = logging.getLogger("sglang_eagle31")

MOST_ROWS = 64
"""Above it, in prefill, weights are read as they are: the packed layout was measured for few rows only."""
SPARE = 0.5
"""Share of the free memory that the copy may take. The KV cache is reserved by now, and not yet written to."""


class WeightUpdates:
    """SGLang's updater of a runner's weights, after whose calls every weight is packed anew when it is used.

    It writes through ``Parameter.data``, which leaves no mark on the parameter; and a draft may use the target's rows.
    """

    calls = 0
    """Of all runners of this process."""

    def __init__(self, updater: Any) -> None:
        self._updater = updater

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._updater, name)
        if not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return value(*args, **kwargs)
            finally:
                WeightUpdates.calls += 1

        return call


class _Packed:
    """``apply`` with the packed form of a layer's weight, made again when the weight was written to at run time."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        self._pack()

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """``[tokens, in]`` to ``[tokens, out]``."""
        if x.shape[0] > MOST_ROWS:
            return linear(x, layer.weight, bias)
        if self.source != _state(layer.weight):
            self._pack()
        return fast_paths.packed_linear(x, self.form, bias)

    def _pack(self) -> None:
        self.form = fast_paths.pack(self.layer.weight.data)
        self.source = _state(self.layer.weight)


class PackedLinearMethod(_Packed, UnquantizedLinearMethod):
    """SGLang's unquantised linear with a packed weight."""


class PackedHeadMethod(_Packed, UnquantizedEmbeddingMethod):
    """SGLang's unquantised ``lm_head`` with a packed weight; as a tied embedding it still looks rows up."""


METHODS = {UnquantizedLinearMethod: PackedLinearMethod, UnquantizedEmbeddingMethod: PackedHeadMethod}


def pack_runner(runner: Any) -> None:
    """Pack the weights of SGLang's ``ModelRunner``, and follow what updates them."""
    if pack(runner.model):
        runner.weight_updater = WeightUpdates(runner.weight_updater)


def pack(model: Any) -> int:
    """Pack the weights of a loaded model's linear layers and ``lm_head``, where this CPU and its memory allow.

    Returns:
        how many layers were changed; a second call changes none.
    """
    layers = _layers(model)
    usable = [layer for layer in layers if not fast_paths.why_not_packed(layer.weight.dtype)]
    for dtype in {layer.weight.dtype for layer in layers} - {layer.weight.dtype for layer in usable}:
        logger.info("weights in %s are not packed: %s", dtype, fast_paths.why_not_packed(dtype))
    need, free = sum(layer.weight.nbytes for layer in usable), memory.available()
    if need > SPARE * free:
        logger.warning(
            "weights are not packed: the copy takes %.1f GiB of %.1f GiB free, and the KV cache needs the rest",
            need / memory.GIB,
            free / memory.GIB,
        )
        return 0
    for layer in usable:
        layer.quant_method = METHODS[type(layer.quant_method)](layer)
    return len(usable)


def _layers(model: Any) -> list[Any]:
    """What can be packed and is not: linear layers, and the ``lm_head``; an embedding only looks rows up."""
    head: Any = getattr(model, "lm_head", None)
    found = []
    for module in model.modules():
        method, weight = type(getattr(module, "quant_method", None)), getattr(module, "weight", None)
        kind = method is UnquantizedLinearMethod or (module is head and method is UnquantizedEmbeddingMethod)
        if kind and isinstance(weight, torch.Tensor) and weight.device.type == "cpu":
            found.append(module)
    return found


def _state(weight: torch.Tensor) -> tuple[int, int, int]:
    """Changes when the weight is written to, becomes another tensor, or may have been updated."""
    return weight.data_ptr(), weight._version, WeightUpdates.calls
