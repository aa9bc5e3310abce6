"""Which libraries a file may import, and that SGLang is reached from a few named files only.

The walls between our own folders are in pyproject.toml, for ``lint-imports``; here is that it finds what breaks them.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "sglang_eagle31"
FILES = {
    str(path.relative_to(PACKAGE)): path
    for path in sorted((*PACKAGE.rglob("*.py"), *(PACKAGE / "patches").glob("*.py")))
    if "__pycache__" not in path.parts
}
"""Every file of the package by its path in it; ``patches`` is a link, which a recursive glob may not follow."""

MAY_IMPORT_SGLANG = ("plugin.py", "patches/", "server/")
MAY_IMPORT_SGLANG_TOOLS = ("bench/child.py", "doctor/probe.py", "train/engine.py", "verify/served.py")
FREE_OF_SGLANG_IN_SERVER = ("server/cpu/", "server/lossless/", "server/guard/", "server/metrics/", "server/probe/")
"""Of these folders the files below import SGLang, and no other."""
MEETS_SGLANG = {
    "server/cpu/attention.py",
    "server/cpu/packed.py",
    "server/cpu/standin.py",
    "server/guard/backlog.py",
    "server/guard/install.py",
    "server/guard/switch.py",
    "server/lossless/repair.py",
    "server/metrics/install.py",
    "server/probe/install.py",
    "server/probe/live.py",
}
LIBRARIES = {"huggingface_hub", "numpy", "rich", "safetensors", "torch", "tqdm"}
MORE = {
    "server/cpu/memory.py": {"psutil"},
    "server/guard/": {"prometheus_client"},
    "server/metrics/": {"prometheus_client"},
    "server/probe/": {"prometheus_client"},
    "tools/bench/": {"matplotlib", "requests"},
    "tools/demo/": {"requests"},
    "tools/doctor/": {"packaging"},
    "tools/drift/": {"matplotlib", "transformers"},
    "tools/robust/": {"matplotlib", "requests"},
    "tools/shared/": {"gguf", "jinja2", "psutil", "requests", "transformers", "yaml"},
    "tools/train/": {"gguf", "matplotlib", "transformers", "yaml"},
    "tools/tune/": {"matplotlib", "requests"},
    "tools/verify/": {"requests"},
}


def imports(source: str) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, inside functions too, with the line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            yield str(node.module), node.lineno
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            if node.args and isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value), node.lineno


def is_allowed(file: str, module: str) -> bool:
    top = module.partition(".")[0]
    if top in ("sglang", "sgl_kernel"):
        if file.startswith(FREE_OF_SGLANG_IN_SERVER):
            return file in MEETS_SGLANG
        return file.startswith(MAY_IMPORT_SGLANG) or file.removeprefix("tools/") in MAY_IMPORT_SGLANG_TOOLS
    more = {library for folder, libraries in MORE.items() if file.startswith(folder) for library in libraries}
    return top in sys.stdlib_module_names or top == "sglang_eagle31" or top in LIBRARIES | more


@pytest.mark.parametrize("file", FILES)
def test_a_file_imports_only_what_its_layer_may(file: str) -> None:
    found = imports(FILES[file].read_text())
    assert [f"{file}:{line} imports {module}" for module, line in found if not is_allowed(file, module)] == []


def test_the_core_runs_without_sglang() -> None:
    """Nor does it reach SGLang through another file of ours."""
    core = [
        f"sglang_eagle31.{file.removesuffix('.py').replace('/', '.').removesuffix('.__init__')}"
        for file in FILES
        if file.startswith(("head/", "maths/", "server/cpu/", "tools/audit/", "tools/convert/"))
        and file not in MEETS_SGLANG
    ]
    code = (
        f"import sys, {', '.join(core)}\nprint(sorted({{'sglang', 'sgl_kernel', 'transformers'}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.strip() == "[]"


def test_every_file_is_looked_at() -> None:
    assert {
        "tools/audit/report.py",
        "head/spec.py",
        "server/cpu/tree.py",
        "server/cpu/masks.py",
        "patches/_seam.py",
        "tools/train/ttt.py",
    } <= set(FILES)
    assert MEETS_SGLANG | {f"tools/{name}" for name in MAY_IMPORT_SGLANG_TOOLS} <= set(FILES)


@pytest.mark.parametrize(
    "source",
    [
        "import sglang",
        "def f():\n    from sglang.srt.utils import get_device",
        "import numpy, sglang.srt",
        "importlib.import_module('sglang.srt.models')",
        "import scipy",
        "from transformers import AutoConfig",
    ],
)
@pytest.mark.parametrize("file", ["maths/fusion.py", "tools/audit/report.py", "server/cpu/tree.py"])
def test_a_wrong_import_is_found(file: str, source: str) -> None:
    assert not all(is_allowed(file, module) for module, _ in imports(source))


def test_an_audit_reads_no_model_class() -> None:
    found = {
        module.partition(".")[0]
        for file in FILES
        if file.startswith("tools/audit/")
        for module, _ in imports(FILES[file].read_text())
    }
    assert found and not found & {"sglang", "sgl_kernel", "transformers"}


@pytest.mark.parametrize("file", ["plugin.py", "server/options.py"])
def test_the_entry_point_imports_nothing_heavy_at_the_top(file: str) -> None:
    top = ast.Module(
        [node for node in ast.parse(FILES[file].read_text()).body if isinstance(node, (ast.Import, ast.ImportFrom))], []
    )
    assert all(module.partition(".")[0] in sys.stdlib_module_names for module, _ in imports(ast.unparse(top)))


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("server/options.py", "from sglang_eagle31.tools.shared import client", "tools above patches and server"),
        ("head/spec.py", "import sglang", "free of SGLang"),
        ("head/spec.py", "from sglang_eagle31.server import options", "tools above patches and server"),
        ("tools/robust/run.py", "from sglang_eagle31.tools.bench import plan", "tools do not import each other"),
        ("tools/shared/client.py", "from sglang_eagle31.tools.demo import report", "imports no tool"),
        ("tools/tune/run.py", "from sglang_eagle31.server import worker", "imports the server only where"),
    ],
)
def test_a_broken_wall_is_found(file: str, line: str, contract: str, tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "sglang_eagle31", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    broken = tmp_path / "sglang_eagle31" / file
    broken.write_text(f"{broken.read_text()}\n{line}\n")
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([*command, "--no-cache"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1, done.stdout + done.stderr
    assert [name for name in re.findall(r"^(.*) BROKEN", done.stdout, re.M) if contract in name], done.stdout
