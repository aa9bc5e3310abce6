"""Size and direction of hidden states."""

from __future__ import annotations

import torch
from torch import Tensor


def rms(states: Tensor) -> Tensor:
    """Root mean square of the elements, norm / sqrt(width), in float32: ``[..., H]`` to ``[...]``."""
    return states.float().pow(2).mean(-1).sqrt()


def cosine(one: Tensor, other: Tensor) -> Tensor:
    """Cosine of the angle between states, in float32: ``[..., H]`` to ``[...]``."""
    return torch.nn.functional.cosine_similarity(one.float(), other.float(), dim=-1)
