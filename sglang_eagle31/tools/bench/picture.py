"""One picture: the ratio by concurrency, a panel for each prompt set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 5.2, 4.2
"""Inches a panel."""
COLUMNS = 2


def draw(record: Mapping[str, Any], path: Path) -> bool:
    """Write a PNG; False where there is nothing to draw, for no cell has a concurrency.

    Each round is a faint point beside the median's line. Raises ValueError where matplotlib is not installed.
    """
    entries = [entry for entry in record["sweep"] if entry["concurrency"] and entry["ratio"] is not None]
    names = list(dict.fromkeys(entry["prompts"] for entry in entries))
    if not names:
        return False
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError(f"{path}: no picture without matplotlib ({error}); fix: pip install matplotlib") from error
    columns = min(COLUMNS, len(names))
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(WIDTH * columns, HEIGHT * rows), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, name in zip(grid.flat, names, strict=False):
        _panel(axes, name, [entry for entry in entries if entry["prompts"] == name])
    for axes in list(grid.flat)[len(names) :]:
        axes.set_axis_off()
    conditions = record["conditions"]
    figure.suptitle(f"{conditions['model']}, {conditions['cpu'] or conditions['device']}", fontsize="medium")
    figure.savefig(path, dpi=130)
    return True


def _panel(axes: Any, name: str, entries: list[dict[str, Any]]) -> None:
    arms = list(dict.fromkeys(entry["arm"] for entry in entries))
    base = {
        (entry["concurrency"], raw["round"]): raw["output_tok_s"]
        for entry in entries
        if entry["arm"] == arms[0]
        for raw in entry["rounds"]
    }
    axes.axhline(1.0, color="black", linewidth=1, label=arms[0])
    for index, arm in enumerate(arms[1:]):
        chosen = [entry for entry in entries if entry["arm"] == arm]
        colour = f"C{index}"
        axes.plot([e["concurrency"] for e in chosen], [e["ratio"] for e in chosen], "o-", color=colour, label=arm)
        points = [
            (entry["concurrency"], raw["output_tok_s"] / base[entry["concurrency"], raw["round"]])
            for entry in chosen
            for raw in entry["rounds"]
            if (entry["concurrency"], raw["round"]) in base
        ]
        axes.scatter([x for x, _ in points], [y for _, y in points], s=10, color=colour, alpha=0.35)
    places = sorted({entry["concurrency"] for entry in entries})
    axes.set(title=name, xlabel="concurrency", ylabel=f"output tokens/s by {arms[0]}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(places, [str(place) for place in places])
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
