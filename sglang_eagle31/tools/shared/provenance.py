"""What a measured number depends on."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("sglang-eagle31", "sglang", "torch", "transformers")


def provenance(argv: Sequence[str]) -> dict[str, Any]:
    """What a measured number depends on: command, versions, commit and processor."""
    return {
        "argv": list(argv),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "git": _git_commit(Path(__file__).parent),
        "cpu": _cpu_model(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_commit(folder: Path) -> str | None:
    """Commit of the checkout, with ``-dirty`` if files differ from it; None outside a checkout."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() or None
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if sys.platform == "linux" and info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
