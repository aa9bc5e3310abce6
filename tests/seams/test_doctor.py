"""What `doctor` learns from a fresh process that loads SGLang with its plugins."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from sglang_eagle31.tools.doctor import probe
from sglang_eagle31.tools.doctor.checks import plugins
from sglang_eagle31.tools.doctor.facts import Started


@pytest.fixture(scope="module")
def started() -> Started:
    return probe.start(timeout=170)


def test_sglang_loads_the_plugin_of_this_environment(started: Started) -> None:
    assert started.error is None
    assert started.registered and started.lost == ()
    assert plugins.loaded(started).status == "ok"


def test_kernels_and_gpus_are_as_they_are(started: Started) -> None:
    assert (len(started.gpus) > 0) == torch.cuda.is_available()
    assert started.kernel in ("real", "stand-in") and started.kernel_error is None
    assert started.kernel == "stand-in" or importlib.util.find_spec("sgl_kernel") is not None
    assert plugins.kernel(started).status == "ok"
