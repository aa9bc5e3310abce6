"""What the probe has seen, by draft depth: sums that add up over rounds, requests, processes and servers.

Depth 0 is the last row that reads the target's states, from which drafting starts; depth d is the row of the d-th
drafted token. A row counts once for each attention layer in the attention quantities.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1
KINDS = ("sink", "prompt", "answer", "drafted")
"""Groups that share all keys out: the located sink, the prompt without it, the committed answer, drafted tokens."""


@dataclass
class Moments:
    """Count, sum and sum of squares of one quantity."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, values: Iterable[float]) -> None:
        """Values that are not finite are left out: a group without keys has no mass per key."""
        for value in values:
            if math.isfinite(value):
                self.count += 1
                self.total += value
                self.squares += value * value

    def merge(self, other: Moments) -> None:
        self.count += other.count
        self.total += other.total
        self.squares += other.squares

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    @property
    def error(self) -> float | None:
        """Standard error of the mean, rows taken as independent; None for fewer than two."""
        if self.count < 2:
            return None
        spread = max(0.0, self.squares - self.total**2 / self.count) / (self.count - 1)
        return math.sqrt(spread / self.count)


@dataclass
class Record:
    """Quantities by depth, and how often each column was located as the sink.

    Quantities: those of `attention.measure`, and at depth 0 of `attention.near`; ``rms_fed`` and ``rms_handed`` of the
    state that a row reads (at depth 0 the fused ``g``) and hands on; ``cosine`` of the two; at depth 0
    ``rms_captured_B`` of the target's state at boundary B.
    """

    depths: dict[int, dict[str, Moments]] = field(default_factory=dict)
    sinks: dict[int, int] = field(default_factory=dict)

    def add(self, depth: int, values: Mapping[str, Iterable[float]]) -> None:
        """Add rows of one depth."""
        cells = self.depths.setdefault(depth, {})
        for name, numbers in values.items():
            cells.setdefault(name, Moments()).add(numbers)

    def located(self, column: int) -> None:
        """Count a located sink."""
        self.sinks[column] = self.sinks.get(column, 0) + 1

    def merge(self, other: Record) -> None:
        """Add another record's sums."""
        for depth, cells in other.depths.items():
            mine = self.depths.setdefault(depth, {})
            for name, moments in cells.items():
                mine.setdefault(name, Moments()).merge(moments)
        for column, count in other.sinks.items():
            self.sinks[column] = self.sinks.get(column, 0) + count

    def mean(self, depth: int, name: str) -> float | None:
        """Mean of one quantity at one depth, None where it was not seen."""
        moments = self.depths.get(depth, {}).get(name)
        return moments.mean if moments else None

    def error(self, depth: int, name: str) -> float | None:
        """Standard error of that mean."""
        moments = self.depths.get(depth, {}).get(name)
        return moments.error if moments else None

    def rows(self, depth: int) -> int:
        """How many rows were seen at a depth."""
        return max((moments.count for moments in self.depths.get(depth, {}).values()), default=0)

    def names(self) -> list[str]:
        """Every quantity that was seen."""
        return sorted({name for cells in self.depths.values() for name in cells})

    @property
    def steps(self) -> list[int]:
        """Depths from 1 on that were seen."""
        return sorted(depth for depth in self.depths if depth > 0)

    def to_json(self) -> dict[str, Any]:
        """An object that `from_json` reads back; means are for the reader, sums are what counts."""
        depths = {
            str(depth): {
                name: {"count": m.count, "sum": m.total, "squares": m.squares, "mean": m.mean}
                for name, m in sorted(self.depths[depth].items())
            }
            for depth in sorted(self.depths)
        }
        sinks = {str(column): count for column, count in sorted(self.sinks.items())}
        return {"schema": SCHEMA, "depths": depths, "sinks": sinks}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Record:
        """Raises ValueError for another schema."""
        if raw.get("schema") != SCHEMA:
            found = f"drift record: schema {raw.get('schema')!r}, expected {SCHEMA}"
            raise ValueError(f"{found}; fix: use the package version that wrote it")
        depths = {
            int(depth): {name: Moments(int(m["count"]), m["sum"], m["squares"]) for name, m in cells.items()}
            for depth, cells in raw["depths"].items()
        }
        return cls(depths, {int(column): int(count) for column, count in raw["sinks"].items()})
