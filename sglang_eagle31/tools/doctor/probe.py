"""Run in a fresh process: SGLang loads its plugins as a server does, and what became of it is printed as JSON."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from sglang_eagle31.tools.doctor.facts import Started

TIMEOUT = 300.0
"""Seconds; SGLang's import takes ten on a machine that is idle, and minutes on one that is not."""
COMMAND = (sys.executable, "-m", "sglang_eagle31.tools.doctor.probe")


def start(command: Sequence[str] = COMMAND, timeout: float = TIMEOUT) -> Started:
    """What the fresh process says; an error for one that ends badly, says nothing, or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return Started(error=f"no answer in {timeout:g} seconds")
    lines = done.stdout.splitlines()
    try:
        found = json.loads(lines[-1]) if done.returncode == 0 and lines else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        return Started(error=f"ended with {done.returncode}: {last}")
    gpus = tuple((str(name), int(size)) for name, size in found.pop("gpus"))
    return Started(gpus=gpus, lost=tuple(found.pop("lost")), dtype=tuple(found.pop("dtype", ())), **found)


def look() -> dict[str, Any]:
    """The fields of `Started`, from this process. Raises what SGLang's import raises."""
    import torch
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.utils import cpu_has_amx_support

    from sglang_eagle31 import patches
    from sglang_eagle31.server.cpu import fast_paths

    try:
        registered = SpeculativeAlgorithm.from_string("EAGLE31") is not None
    except ValueError:
        registered = False
    hooks = [seam for seam in patches.group("server") if seam.handler is not None and not seam.reasons()]
    kernel, kernel_error = _kernel()
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    properties = [torch.cuda.get_device_properties(index) for index in cuda]
    return {
        "registered": registered,
        "lost": [seam.target for seam in hooks if not seam.in_place()],
        "kernel": kernel,
        "kernel_error": kernel_error,
        "gpus": [(one.name, one.total_memory) for one in properties],
        "amx": bool(cpu_has_amx_support()),
        "unpacked": {fast_paths.name(dtype): fast_paths.why_not_packed(dtype) for dtype in fast_paths.DTYPES},
        "dtype": fast_paths.dtype_here(),
    }


def _kernel() -> tuple[str, str | None]:
    from sglang_eagle31.server.cpu import standin

    try:
        import sgl_kernel  # noqa: F401
    except (ImportError, OSError) as error:
        return "none", (str(error).strip() or type(error).__name__).splitlines()[0]
    return ("stand-in" if standin.installed() else "real"), None


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        answer = look()
    print(json.dumps(answer))
