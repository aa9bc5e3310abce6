"""What every ring shares: GPUs are hidden, and which tests may run in another process than their file's."""

from __future__ import annotations

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs from tests and servers, except with ``-m gpu``: beside one, SGLang has no engine for a CPU."""
    if config.option.markexpr != "gpu":
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
            os.environ[name] = ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of a file share its servers, so they run in one process; those marked `spread` share none."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        if item.get_closest_marker("spread") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.name))
