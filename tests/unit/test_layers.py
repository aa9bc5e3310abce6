"""The import direction: the core imports torch and numpy, and SGLang is reached from a few named files only."""

from __future__ import annotations

import ast
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

MAY_IMPORT_SGLANG = {
    "plugin.py",
    "acceptance/install.py",
    "bench/child.py",
    "algorithm.py",
    "reasons.py",
    "worker.py",
    "target.py",
    "drafter/gqa.py",
    "drafter/llama.py",
    "drafter/mla.py",
    "cpu/attention.py",
    "cpu/packed.py",
    "cpu/standin.py",
    "doctor/probe.py",
    "drift/install.py",
    "drift/live.py",
    "guard/backlog.py",
    "guard/install.py",
    "guard/switch.py",
    "lossless/repair.py",
    "train/engine.py",
    "verify/served.py",
}
MAY_IMPORT_SGLANG_FOLDERS = ("cli/", "demo/", "patches/")
LIBRARIES = {"huggingface_hub", "numpy", "rich", "safetensors", "torch", "tqdm"}
MORE = {
    "acceptance/": {"prometheus_client"},
    "bench/": {"matplotlib", "requests"},
    "cpu/memory.py": {"psutil"},
    "train/": {"gguf", "matplotlib", "transformers", "yaml"},
    "demo/": {"gguf", "psutil", "requests", "transformers"},
    "doctor/": {"packaging"},
    "drift/": {"matplotlib", "prometheus_client", "transformers"},
    "guard/": {"prometheus_client"},
    "robust/": {"jinja2", "matplotlib", "requests", "transformers"},
    "same_answers/": {"requests", "transformers"},
    "served.py": {"requests"},
    "tune/": {"matplotlib", "requests"},
    "verify/": {"requests"},
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
        return file in MAY_IMPORT_SGLANG or file.startswith(MAY_IMPORT_SGLANG_FOLDERS)
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
        if file.startswith(("audit/", "convert/", "cost/", "cpu/", "drafter/")) and file not in MAY_IMPORT_SGLANG
    ]
    code = (
        f"import sys, {', '.join(core)}\nprint(sorted({{'sglang', 'sgl_kernel', 'transformers'}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.strip() == "[]"


def test_every_file_is_looked_at() -> None:
    assert {
        "audit/report.py",
        "drafter/spec.py",
        "cpu/tree.py",
        "cpu/masks.py",
        "patches/_seam.py",
        "train/ttt.py",
    } <= set(FILES)
    assert MAY_IMPORT_SGLANG <= set(FILES)


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
@pytest.mark.parametrize("file", ["drafter/fusion.py", "audit/report.py"])
def test_a_wrong_import_is_found(file: str, source: str) -> None:
    assert not all(is_allowed(file, module) for module, _ in imports(source))


def test_an_audit_reads_no_model_class() -> None:
    found = {
        module.partition(".")[0]
        for file in FILES
        if file.startswith("audit/")
        for module, _ in imports(FILES[file].read_text())
    }
    assert found and not found & {"sglang", "sgl_kernel", "transformers"}


@pytest.mark.parametrize("file", ["plugin.py", "config.py"])
def test_the_entry_point_imports_nothing_heavy_at_the_top(file: str) -> None:
    top = ast.Module(
        [node for node in ast.parse(FILES[file].read_text()).body if isinstance(node, (ast.Import, ast.ImportFrom))], []
    )
    assert all(module.partition(".")[0] in sys.stdlib_module_names for module, _ in imports(ast.unparse(top)))
