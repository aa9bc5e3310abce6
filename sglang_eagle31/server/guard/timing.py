"""What rounds of each shape take, by batch size: medians of the last ones."""

from __future__ import annotations

from collections import deque
from statistics import median

from sglang_eagle31.maths.shape import Shape

KEPT = 31
"""Rounds of one batch size and shape that are remembered; half of them may be outliers."""
ENOUGH = 3
"""Rounds from which a median is taken rather than one of a neighbouring batch size."""

FRESH = 1024
"""Rounds after which a time counts only where there are too few younger ones."""


class Times:
    """Seconds of rounds."""

    def __init__(self) -> None:
        """Nothing is known."""
        self.cells: dict[Shape, dict[int, _Cell]] = {}
        self.rounds = 0

    def add(self, batch: int, shape: Shape, seconds: float) -> None:
        """One round."""
        self.rounds += 1
        self.cells.setdefault(shape, {}).setdefault(batch, _Cell()).add(self.rounds, seconds)

    def count(self, batch: int, shape: Shape) -> int:
        """Rounds remembered of exactly this batch size."""
        cell = self.cells.get(shape, {}).get(batch)
        return len(cell.kept) if cell else 0

    def sizes(self, shape: Shape) -> list[int]:
        """Batch sizes that were run."""
        return list(self.cells.get(shape, {}))

    def forget(self, batch: int, shape: Shape) -> None:
        """Drop what is known of exactly this batch size."""
        self.cells.get(shape, {}).pop(batch, None)

    def seconds(self, batch: int, shape: Shape) -> float | None:
        """Typical seconds of a round; None while the shape was never run.

        A batch size that was not run often enough lies on the line between the two that were on either side, or is
        taken for the nearest one.
        """
        cells = self.cells.get(shape, {})
        exact = cells.get(batch)
        if exact and len(exact.kept) >= ENOUGH:
            return exact.typical
        known = [size for size, cell in cells.items() if len(cell.kept) >= ENOUGH] or list(cells)
        if not known:
            return None
        low, high = min(known), max(known)
        below = max((size for size in known if size <= batch), default=low)
        above = min((size for size in known if size >= batch), default=high)
        left, right = cells[below].typical, cells[above].typical
        return left if below == above else left + (right - left) * (batch - below) / (above - below)

    def to_json(self) -> dict[str, dict[str, float]]:
        """Seconds by shape and batch size, of those run often enough."""
        return {
            str(shape): {str(size): cell.typical for size, cell in sorted(cells.items()) if len(cell.kept) >= ENOUGH}
            for shape, cells in self.cells.items()
        }


class _Cell:
    def __init__(self) -> None:
        self.kept: deque[tuple[int, float]] = deque(maxlen=KEPT)
        self.typical = 0.0

    def add(self, now: int, seconds: float) -> None:
        self.kept.append((now, seconds))
        fresh = [time for when, time in self.kept if when > now - FRESH]
        self.typical = median(fresh if len(fresh) >= ENOUGH else [time for _, time in self.kept])
