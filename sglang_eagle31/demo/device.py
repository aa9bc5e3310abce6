"""Which device a server that is started here gets."""

from __future__ import annotations


def here() -> str:
    """``cuda`` where torch sees a GPU, else ``cpu``: beside a GPU SGLang runs no server on the CPU."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
