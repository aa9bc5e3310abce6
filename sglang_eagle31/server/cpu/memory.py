"""Main memory that this process may still take: of the machine, and of its control group where that has a limit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

GIB = 1 << 30
ROOT = Path("/sys/fs/cgroup")
GROUPS = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)
"""Limit and use of a control group in bytes, and the part of the use that the kernel gives back: versions 2 and 1."""


def total() -> int:
    """Bytes."""
    return min([psutil.virtual_memory().total, *(limit for limit, _ in _limits())])


def available() -> int:
    """Bytes."""
    return min([psutil.virtual_memory().available, *(max(0, limit - used) for limit, used in _limits())])


def _limits() -> Iterator[tuple[int, int]]:
    """Limit and use of each control group that has a limit; pages of files that can be dropped are not in use."""
    for limit, used, stat, droppable in GROUPS:
        most, taken = _text(limit).strip(), _text(used).strip()
        if most.isdigit() and taken.isdigit():  # "max" is no limit
            facts = dict(line.split(maxsplit=1) for line in _text(stat).splitlines() if " " in line)
            yield int(most), max(0, int(taken) - int(facts.get(droppable, 0)))


def _text(name: str) -> str:
    try:
        return (ROOT / name).read_text()
    except OSError:
        return ""
