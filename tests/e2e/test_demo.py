"""The demo itself on the real model, in float32, where not one token may differ; and on a GPU where there is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

GUARD_OFF = {"SGLANG_EAGLE31_OPTIONS": '{"guard": "off"}'}
"""What is left of a draft that does not pay on this machine says nothing of the head."""


def demo(out: Path, *options: str, **env: str) -> dict[str, Any]:
    """Run the demo command with ``env`` added to the environment; its JSON."""
    command = [sys.executable, "-m", "sglang_eagle31", "demo", "--out", str(out), *options]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def test_float32_has_no_difference_at_all(tmp_path: Path) -> None:
    options = ("--dtype", "float32", "--prompts", "4", "--tokens", "64")
    result = demo(tmp_path / "demo.json", *options, **GUARD_OFF)
    assert result["identical"] is True
    assert result["ties"] == 0
    assert 0 < result["tokens_checked"] == result["tokens"] == result["tokens_compared"]
    assert result["tokens_differing"] == 0
    assert result["prompts"] == 4
    assert result["accept_length"] > 1.4, "a dead head has 1.0"
    assert len(result["accept_by_depth"]) == 3
    assert result["accept_by_depth"] == sorted(result["accept_by_depth"], reverse=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu(tmp_path: Path) -> None:
    result = demo(tmp_path / "demo.json", "--device", "cuda", "--prompts", "20")
    assert result["identical"] is True
    assert result["tokens_checked"] == result["tokens"]
    assert result["accept_length"] > 1.4
