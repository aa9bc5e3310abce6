"""``docs/seams.md`` is what the files of ``patches/`` say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sglang_eagle31.patches import MODULES, SEAMS
from sglang_eagle31.patches.__main__ import render

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "seams.md"
HEADINGS = ("Target", "Why", "How", "Upstream", "Remove when")


def check(file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sglang_eagle31.patches", "--check", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_the_document_is_current() -> None:
    assert check(DOCUMENT).returncode == 0


def test_a_stale_document_fails_with_the_command_that_renews_it(tmp_path: Path) -> None:
    stale = tmp_path / "seams.md"
    assert check(stale).returncode == 1
    stale.write_text(DOCUMENT.read_text() + "\n")
    done = check(stale)
    assert done.returncode == 1 and f"python -m sglang_eagle31.patches > {stale}" in done.stderr


def test_every_file_has_every_heading_and_its_own_target() -> None:
    for module in MODULES:
        lines = str(module.__doc__).splitlines()
        assert [line.partition(":")[0] for line in lines if line.partition(":")[0] in HEADINGS] == list(HEADINGS)
        assert f"Target: {module.SEAM.target}" in lines


def test_every_file_of_the_folder_is_listed() -> None:
    files = {path.stem for path in (ROOT / "patches").glob("*.py") if not path.stem.startswith("_")}
    assert files == {module.__name__.rpartition(".")[2] for module in MODULES}


def test_the_document_names_every_target() -> None:
    text = render()
    assert all(f"- **Target**: {seam.target}\n" in text for seam in SEAMS)
    assert all(text.count(f"- **{heading}**: ") == len(SEAMS) for heading in HEADINGS)
