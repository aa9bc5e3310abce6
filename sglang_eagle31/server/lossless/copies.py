"""Small lists from the host to the device of the logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def on(device: torch.device | str, values: Sequence[Any], dtype: torch.dtype | None = None) -> torch.Tensor:
    """``torch.tensor(values)`` on ``device``; to a GPU from pinned memory, so that the host does not wait for it."""
    here = torch.tensor(values, dtype=dtype)
    return here.pin_memory().to(device, non_blocking=True) if torch.device(device).type == "cuda" else here.to(device)
