"""The probe's numbers in Prometheus: for each quantity a sum and a count by depth, which add up over servers.

A mean over any time and any servers is ``rate(..._sum) / rate(..._count)``. Cosines are exported as 1 - cosine, which
is never negative, so that sums only rise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

PREFIX = "sglang:eagle31_drift_"


class Exporter:
    """Summaries named `PREFIX` and quantity, with the label ``depth``; captured states have a label ``boundary``,
    and the attention to a row's last keys has a label ``keys``."""

    def __init__(self) -> None:
        self.metrics: dict[str, Any] = {}

    def add(self, depth: int, values: Mapping[str, Iterable[float]]) -> None:
        """Add rows of one depth; values that are not finite are left out, as in `record.Record`."""
        for name, numbers in values.items():
            metric, label, part = _split(name)
            child = self._summary(metric, label).labels(str(depth), *([part] if label else []))
            for number in numbers:
                if number == number:  # not NaN
                    child.observe(max(0.0, 1.0 - number) if name == "cosine" else number)

    def _summary(self, name: str, label: str) -> Any:
        if name not in self.metrics:
            # After SGLang has set PROMETHEUS_MULTIPROC_DIR, which the import reads.
            from prometheus_client import Summary

            labels = ("depth", label) if label else ("depth",)
            self.metrics[name] = Summary(PREFIX + name, f"Drift probe: {name} by draft depth", labels)
        return self.metrics[name]


def _split(name: str) -> tuple[str, str, str]:
    """Name of the metric of a quantity, and its further label with the value."""
    for start, label in (("rms_captured", "boundary"), ("near", "keys")):
        if name.startswith(f"{start}_"):
            return start, label, name.removeprefix(f"{start}_")
    return ("cosine_distance" if name == "cosine" else name), "", ""
