"""Servers as other CPUs would run them: older instruction sets, and each fast path switched off by what tries it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from conftest import Models, Plain, ask_everything, speculate
from selection import core

OLDER = {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}
"""Read by oneDNN, torch and MKL when they load."""
FAILS = """
import sglang_eagle31.cpu.fast_paths as fast_paths

def raises(*_):
    raise RuntimeError("could not create a primitive descriptor")

fast_paths.pack = raises
"""
"""Python runs a sitecustomize module at the start of every process."""


@pytest.mark.parametrize("cpu", core(["older", "no fast path"], ["no fast path"]))
def test_the_tokens_are_the_same(cpu: str, start: Any, tiny: Models, plain: Plain, tmp_path: Path) -> None:
    env = OLDER
    if cpu == "no fast path":
        (tmp_path / "sitecustomize.py").write_text(FAILS)
        env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])}
    with start(f"cpu-{cpu.replace(' ', '-')}", *speculate("EAGLE31", tiny.eagle31, 4, 2, 8), **env) as server:
        answers = ask_everything(server)
        assert ("could not create a primitive descriptor" in server.log_path.read_text()) == (cpu == "no fast path")
    assert answers.ids == plain.answers.ids
    assert answers.accept_length() > 1.5
