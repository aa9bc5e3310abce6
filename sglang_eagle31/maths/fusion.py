"""The fusion of the captured target states into the drafter's input.

Canonical form (EAGLE 3.1): ``g = W [n_1; ...; n_k] + b`` with ``n_i = gamma_i * h_i / rms(h_i)`` and
``rms(h) = sqrt(mean(h^2) + eps)``.
All k norms are one norm over a view ``[tokens, k, width]``, so that k states cost as many calls as one, while they are
not too large.
"""

from __future__ import annotations

import torch

AT_ONCE = 1 << 24
"""Numbers that are normed in one call; of more, as in a long prefill, one state after the other, to save memory."""


def grouped_rms_norm(states: torch.Tensor, gamma: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm of each captured state with its own gain, in float32, rounded once.

    Args:
        states: the concatenated states, ``[tokens, k * width]``.
        gamma: the gains, ``[k, width]``.
        eps: added to the mean square.

    Returns:
        the normed states, ``[tokens, k * width]``, in the dtype of ``states``.
    """
    parts = states.view(states.shape[0], *gamma.shape)  # [tokens, k, width]
    if states.numel() <= AT_ONCE:
        return _norm(parts, gamma, eps).view_as(states)
    each = [_norm(part, gain, eps) for part, gain in zip(parts.unbind(1), gamma, strict=True)]
    return torch.stack(each, 1).view_as(states)


def _norm(states: torch.Tensor, gamma: torch.Tensor, eps: float) -> torch.Tensor:
    wide = states.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * scale * gamma).to(states.dtype)
