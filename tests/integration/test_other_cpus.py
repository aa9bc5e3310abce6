"""Servers as other CPUs would run them: older instruction sets, and each fast path switched off by what tries it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Models, Plain, ask_everything, speculate
from selection import core

ROOT = Path(__file__).parents[2]
QEMU = shutil.which("qemu-x86_64")
OPS = [
    "tests/unit/server/test_fast_paths.py::test_what_this_cpu_runs_is_right",
    "tests/unit/server/test_masks.py",
    "tests/unit/server/test_cpu_filters.py",
    "tests/unit/maths/test_fusion.py",
]
EMULATION = 900
"""Seconds; an emulated CPU is some thirty times slower."""
OLDER = {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}
"""Read by oneDNN, torch and MKL when they load."""
FAILS = """
import sglang_eagle31.server.cpu.fast_paths as fast_paths

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


@pytest.mark.full
@pytest.mark.skipif(not QEMU, reason="needs qemu-x86_64 (Debian: apt-get install qemu-user)")
@pytest.mark.parametrize("cpu", ["Nehalem", "Haswell"])
def test_the_ops_on_an_emulated_cpu(cpu: str) -> None:
    """Instructions that it does not have would end the process; Nehalem has SSE4.2 at most, Haswell AVX2."""
    code = (
        f"import sys; sys.path[:0] = {[str(ROOT), *sys.path]!r}; import pytest; "
        f"sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-p', 'no:xdist', *{OPS!r}]))"
    )
    command = [str(QEMU), "-cpu", cpu, str(Path(sys.executable).resolve()), "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=EMULATION)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) > 50, "the tests ran"
