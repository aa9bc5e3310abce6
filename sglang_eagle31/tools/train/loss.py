"""Soft cross-entropy of a linear head: logits, loss and gradient a block of rows at a time.

The logits of all steps would be the largest tensors of the training by far. A block of them stays in the cache between
its products, and no second copy is kept for the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = 128
"""Rows a block."""


class _SoftCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, soft: Tensor, wanted: Tensor, rows: Tensor) -> Any:
        device = states.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
        with torch.autocast(device, enabled=False):
            need_states, need_weight = ctx.needs_input_grad[:2]
            x, w = states.to(dtype), weight.to(dtype)
            d_states = torch.empty_like(x) if need_states else None
            d_weight = torch.zeros_like(weight) if need_weight else None
            total = torch.zeros((), dtype=torch.float32, device=states.device)
            hits = []
            for start in range(0, len(x), BLOCK):
                block = slice(start, start + BLOCK)
                here = rows[block]
                target = soft[here]
                logits = (x[block] @ w.T).float()
                total -= torch.dot(logits.flatten(), target.flatten())
                top, best = logits.max(dim=-1, keepdim=True)
                hits.append(best[:, 0] == wanted[here])
                exponent = logits.sub_(top).exp_()
                norm = exponent.sum(dim=-1, keepdim=True)
                total += (top + norm.log()).sum()
                if need_states or need_weight:
                    gradient = exponent.div_(norm).sub_(target).to(dtype)
                    if d_states is not None:
                        torch.mm(gradient, w, out=d_states[block])
                    if d_weight is not None:
                        d_weight += gradient.T @ x[block]
        ctx.save_for_backward(d_states, d_weight)
        ctx.dtype = states.dtype
        right = torch.cat(hits) if hits else torch.zeros(0, dtype=torch.bool, device=states.device)
        ctx.mark_non_differentiable(right)
        return total, right

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor, _: Any) -> Any:
        d_states, d_weight = ctx.saved_tensors
        states = None if d_states is None else (d_states * scale).to(ctx.dtype)
        return states, None if d_weight is None else d_weight * scale, None, None, None


def soft_cross_entropy(
    states: Tensor, weight: Tensor, soft: Tensor, wanted: Tensor, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """``(sum over rows of -soft . log_softmax(states weight^T), right [R] bool)``, differentiable in states and weight.

    states ``[R, H]``, weight ``[V_d, H]``; row ``r`` is compared with the distribution ``soft[rows[r]]`` of ``soft
    [P, V_d]`` (rows that sum to 1), and is right if its largest logit is at ``wanted[rows[r]]``.
    """
    total, right = _SoftCrossEntropy.apply(states, weight, soft, wanted, rows)
    return total, right
