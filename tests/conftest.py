"""What every ring shares: GPUs are hidden."""

from __future__ import annotations

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs from tests and servers, except with ``-m gpu``: beside one, SGLang has no engine for a CPU."""
    if config.option.markexpr != "gpu":
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
            os.environ[name] = ""
