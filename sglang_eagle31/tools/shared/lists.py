"""Options that take several values with commas between them; argparse names the function in its message."""

from __future__ import annotations


def names(text: str) -> list[str]:
    """``a,b``; an empty name is left out."""
    return [part for part in text.split(",") if part]


def integers(text: str) -> list[int]:
    """``1,4``. Raises ValueError."""
    return [int(part) for part in text.split(",")]


def numbers(text: str) -> list[float]:
    """``0,0.8``. Raises ValueError."""
    return [float(part) for part in text.split(",")]
