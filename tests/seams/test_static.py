"""Every seam against SGLang's source, without importing SGLang or torch.

``SGLANG_WHEELS`` may name more folders (separated as in ``PATH``) that each hold an unpacked SGLang wheel.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

from sglang_eagle31.patches import SEAMS, Seam, _static, fit, group

INSTALLED = Path(str(importlib.util.find_spec("sglang").origin)).parents[1]
ROOTS = [INSTALLED, *(Path(folder) for folder in os.environ.get("SGLANG_WHEELS", "").split(os.pathsep) if folder)]
VERSIONS = Path(__file__).with_name("versions.txt")
SEAM = pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.target.removeprefix("sglang.srt."))


@SEAM
@pytest.mark.parametrize("root", ROOTS, ids=str)
def test_a_seam_is_found_in_the_source(root: Path, seam: Seam) -> None:
    have = _static.parameters(seam.target, root)
    assert have is not None, f"{root} has no {seam.target}"
    assert set(seam.params) <= set(have)


def test_the_check_imports_neither_sglang_nor_torch() -> None:
    code = (
        "import json, sys\n"
        "from sglang_eagle31 import patches\n"
        "reasons = patches.fit(patches.SEAMS)\n"
        "print(json.dumps([reasons, sorted({'torch', 'sglang', 'numpy'} & set(sys.modules))]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert json.loads(done.stdout) == [[], []]


def copy_module(seam: Seam, root: Path) -> tuple[Path, str]:
    """Copy the module of a seam under ``root``; its new file, and the seam's name in it."""
    parts = seam.target.split(".")
    cut = next(cut for cut in range(len(parts), 0, -1) if INSTALLED.joinpath(*parts[:cut]).with_suffix(".py").is_file())
    file = root.joinpath(*parts[:cut]).with_suffix(".py")
    file.parent.mkdir(parents=True)
    file.write_text(INSTALLED.joinpath(*parts[:cut]).with_suffix(".py").read_text())
    (root / "sglang" / "__init__.py").touch()
    return file, ".".join(parts[cut:])


def edit(file: Path, name: str, change: str) -> None:
    """Rename the function (``moved``), its class (``class moved``) or its parameters (``lost``)."""
    tree = ast.parse(file.read_text())
    body: list[ast.stmt] = tree.body
    owner = None
    for part in name.split("."):
        found = next(node for node in body if getattr(node, "name", None) == part)
        owner, body = (found, found.body) if isinstance(found, ast.ClassDef) else (owner, [])
    assert isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef))
    if change == "class moved":
        assert owner is not None
        owner.name += "Moved"
    elif change == "moved":
        found.name += "_moved"
    else:
        for arg in (*found.args.posonlyargs, *found.args.args, *found.args.kwonlyargs):
            arg.arg += "_renamed"
    file.write_text(ast.unparse(tree))


@pytest.fixture
def look_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the seams take for site-packages."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
        monkeypatch.delitem(sys.modules, name)
    origin = SimpleNamespace(origin=str(tmp_path / "sglang" / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: origin)
    return tmp_path


@SEAM
def test_a_copy_fits(look_in: Path, seam: Seam) -> None:
    copy_module(seam, look_in)
    assert fit([seam]) == []


@SEAM
@pytest.mark.parametrize("change", ["moved", "class moved"])
def test_a_moved_target_is_reported(look_in: Path, seam: Seam, change: str) -> None:
    file, name = copy_module(seam, look_in)
    if change == "class moved" and "." not in name:
        file.unlink()  # a function of a module: the module moves
    else:
        edit(file, name, change)
    assert fit([seam]) == [f"SGLang has no {seam.target} any more"]


@SEAM
def test_a_lost_parameter_is_reported(look_in: Path, seam: Seam) -> None:
    file, name = copy_module(seam, look_in)
    edit(file, name, "lost")
    (reason,) = fit([seam])
    assert reason.startswith(f"{seam.target} lost the parameters {', '.join(seam.params)}; it takes ")


@pytest.mark.parametrize(
    "target", ["sglang.srt.nowhere.f", "sglang.srt.server_args.Nothing.f", "elsewhere.f", "sglang"]
)
def test_what_never_was_there(target: str) -> None:
    assert _static.parameters(target, INSTALLED) is None


def test_every_seam_is_in_one_group_and_wrapped_ones_have_a_handler() -> None:
    assert sorted(SEAMS, key=id) == sorted((*group("server"), *group("eagle31"), *group("cpu")), key=id)
    assert len({seam.target for seam in SEAMS}) == len(SEAMS)
    assert all((seam.kind == "USE") == (seam.handler is None) for seam in SEAMS)


def untested(installed: str) -> str | None:
    """What to say about a version that is not listed; None when it is."""
    listed = [line for line in VERSIONS.read_text().split("\n") if line and not line.startswith("#")]
    if installed in listed:
        return None
    return (
        f"SGLang {installed} is not in {VERSIONS.name} (tested: {', '.join(listed)}); its seams decide whether it fits"
    )


def test_the_installed_version_is_a_tested_one() -> None:
    message = untested(version("sglang"))
    if message is not None:
        warnings.warn(message, stacklevel=1)
        pytest.skip(message)


def test_another_version_is_said_to_be_untested() -> None:
    assert "SGLang 0.0.1 is not in versions.txt (tested: 0.5.23" in str(untested("0.0.1"))
