"""A stand-in for ``sgl_kernel`` on a CPU where the real one cannot be imported.

SGLang 0.5.23 imports ten CPU ops of ``sgl_kernel`` by name at module level. Its wheel for x86 holds GPU kernels only,
so on a machine without a GPU the import fails and no server starts at all.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import logging
import os
import sys
import types

logger = logging.getLogger("sglang_eagle31")

CPU_ENGINE = "SGLANG_USE_CPU_ENGINE"
_MARK = "__sglang_eagle31__"
_HASH = "murmur_hash32_cpu"


def prepare() -> None:
    """Choose SGLang's CPU engine where there is no accelerator, and install the stand-in if it is needed.

    A value of ``SGLANG_USE_CPU_ENGINE`` that the user set is left alone. Where the real ``sgl_kernel`` has the CPU ops,
    nothing is installed. Beside a GPU that is hidden from torch it loads, and has those of the GPU only.
    """
    if CPU_ENGINE not in os.environ and not _has_accelerator():
        os.environ[CPU_ENGINE] = "1"
    if os.environ.get(CPU_ENGINE) == "1" and not installed() and _lacking():
        _install()


def installed() -> bool:
    """Whether ``sgl_kernel`` is our stand-in in this process."""
    return hasattr(sys.modules.get("sgl_kernel"), _MARK)


def install_backends() -> None:
    """Give SGLang our attention backend for EAGLE on this CPU; what does not fit is logged and left out."""
    from sglang_eagle31 import patches

    reasons = patches.fit(patches.group("cpu")) or patches.install(patches.group("cpu"))
    for reason in reasons:
        logger.warning("EAGLE on this CPU is not available: %s", reason)
    if not reasons:
        from sglang_eagle31.server.cpu.attention import register_backend

        register_backend()


def _has_accelerator() -> bool:
    import torch

    if torch.cuda.is_available() or torch.xpu.is_available() or torch.backends.mps.is_available():
        return True
    return any(getattr(getattr(torch, name, None), "is_available", bool)() for name in ("npu", "musa"))


def _lacking() -> bool:
    """Whether the real ``sgl_kernel`` cannot be imported or lacks a CPU op that SGLang imports."""
    from sglang_eagle31.server.cpu.ops import OPS

    try:
        kernel = importlib.import_module("sgl_kernel")
    except (ImportError, OSError):
        return True
    return not all(hasattr(kernel, name) for name in OPS)


def _install() -> None:
    import torch

    from sglang_eagle31.server.cpu import seeds
    from sglang_eagle31.server.cpu.ops import OPS

    module = types.ModuleType("sgl_kernel", "CPU ops in torch, installed by sglang-eagle31.")
    module.__spec__ = importlib.machinery.ModuleSpec("sgl_kernel", loader=None)
    for name, op in OPS.items():
        setattr(module, name, op)
    library = torch.library.Library("sgl_kernel", "FRAGMENT")  # SGLang calls this one as an op of torch
    if not hasattr(torch.ops.sgl_kernel, _HASH):
        library.define(f"{_HASH}(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor")
    library.impl(_HASH, seeds.murmur_hash32_cpu, "CPU")
    setattr(module, _MARK, library)  # which lives as long as the module
    sys.modules["sgl_kernel"] = module
    logger.info("sgl_kernel has no CPU ops here: EAGLE uses those of sglang-eagle31 in torch")
