"""Which device a server that is started here gets, and in which dtype it serves."""

from __future__ import annotations


def here() -> str:
    """``cuda`` where torch sees a GPU, else ``cpu``: beside a GPU SGLang runs no server on the CPU."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def dtype_on(device: str) -> tuple[str, str]:
    """SGLang's ``--dtype`` on ``device``, and the reason in words: on a CPU what it multiplies fastest."""
    if device != "cpu":
        return "bfloat16", "heads are trained against it"
    from sglang_eagle31.server.cpu import fast_paths

    return fast_paths.dtype_here()
