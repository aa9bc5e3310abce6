"""When the stand-in for ``sgl_kernel`` is installed: whenever the real one has no CPU ops, whatever it has besides."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_eagle31.server.cpu.ops import OPS

ALL = "\n".join(f"def {name}(*args): ..." for name in OPS)
KERNELS = {
    "cannot be imported": ("raise ImportError('libcuda.so.1')", True),
    "cannot be loaded": ("raise OSError('no such instruction set')", True),
    "has GPU kernels only": ("def rmsnorm(*args): ...", True),
    "has all CPU ops but one": (ALL.replace("def verify_tree_greedy_cpu", "def another_name"), True),
    "has them all": (ALL, False),
}


@pytest.mark.parametrize("what", KERNELS)
def test_a_kernel_that(what: str, tmp_path: Path) -> None:
    text, replaced = KERNELS[what]
    (tmp_path / "sgl_kernel").mkdir()
    (tmp_path / "sgl_kernel" / "__init__.py").write_text(text)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from sglang_eagle31.server.cpu import standin\nstandin.prepare()\n"
        "import sgl_kernel; print(standin.installed(), callable(sgl_kernel.verify_tree_greedy_cpu))"
    )
    env = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1"}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=env, capture_output=True, text=True)
    assert done.stdout.split() == [str(replaced), "True"], done.stderr
