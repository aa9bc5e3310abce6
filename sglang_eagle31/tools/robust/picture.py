"""One picture: acceptance by depth for every condition of each head, and accept length by condition and by context."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang_eagle31.tools.robust.measurement import HeadResult
from sglang_eagle31.tools.robust.report import title
from sglang_eagle31.tools.robust.statistics import Estimate
from sglang_eagle31.tools.shared.conditions import BASE, context_tokens

WIDTH, HEIGHT = 6.4, 4.6
"""Inches a panel."""


def draw(results: Sequence[HeadResult], path: Path) -> None:
    """Write a PNG. Raises ValueError where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError(f"{path}: no picture without matplotlib ({error}); fix: pip install matplotlib") from error
    columns = 2 if any(context_tokens(name) for result in results for name in result.measured) else 1
    figure = Figure(figsize=(WIDTH * columns, HEIGHT * (len(results) + 1)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(len(results) + 1, columns)
    for row, result in enumerate(results):
        for column in range(columns):
            _depths(figure.add_subplot(grid[row, column]), result, contexts=bool(column))
    _lengths(figure.add_subplot(grid[-1, 0]), results)
    if columns == 2:
        _contexts(figure.add_subplot(grid[-1, 1]), results)
    figure.savefig(path, dpi=130)


def _depths(axes: Any, result: HeadResult, contexts: bool) -> None:
    """Share of rounds that accepted at least k drafts, by condition or by context; ``regular`` is in both."""
    chosen = [n for n in result.measured if n == BASE or bool(context_tokens(n)) == contexts]
    for index, name in enumerate(chosen):
        known = [(k, e) for k, e in enumerate(result.measured[name].acceptance.reach, 1) if e.value is not None]
        shift = 0.3 * (index / max(len(chosen) - 1, 1) - 0.5)  # so that intervals do not hide each other
        style = {"color": "black", "linewidth": 2} if name == BASE else {"color": f"C{index - 1}", "linewidth": 1}
        _line(axes, [k + shift for k, _ in known], [e for _, e in known], name, **style)
    axes.set(title=title(result), xlabel="k, drafted tokens", ylabel="rounds that accepted at least k", ylim=(0, 1))
    axes.set_xticks(range(1, max(measured.depth for measured in result.measured.values()) + 1))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _lengths(axes: Any, results: Sequence[HeadResult]) -> None:
    """Accept length by condition, a bar a head; the dotted lines are the heads' ``regular``."""
    names = [n for n in dict.fromkeys(n for result in results for n in result.measured) if context_tokens(n) is None]
    width = 0.8 / len(results)
    for index, result in enumerate(results):
        known = [(x, result.measured[n].acceptance.length) for x, n in enumerate(names) if n in result.measured]
        places = [x + width * (index - (len(results) - 1) / 2) for x, _ in known]
        values = [e.value or 0.0 for _, e in known]
        axes.bar(
            places, values, width, yerr=_errors([e for _, e in known]), capsize=2, label=result.head.name, alpha=0.8
        )
        if BASE in result.measured:
            axes.axhline(result.measured[BASE].acceptance.length.value or 0.0, color=f"C{index}", linestyle=":")
    axes.set(title="accept length by condition, 95 % intervals", ylabel="tokens per verify round")
    axes.set_ylim(bottom=1)
    axes.set_xticks(range(len(names)), names, rotation=25, ha="right")
    axes.legend(fontsize="small")


def _contexts(axes: Any, results: Sequence[HeadResult]) -> None:
    """Accept length by the mean number of prompt tokens of each bucket; limits of the heads as vertical lines."""
    for index, result in enumerate(results):
        buckets = [measured for name, measured in result.measured.items() if context_tokens(name)]
        places = [sum(len(reply.case.ids) for reply in m.replies) / len(m.replies) for m in buckets]
        _line(axes, places, [m.acceptance.length for m in buckets], result.head.name, color=f"C{index}")
        positions = result.head.positions
        if places and positions and positions <= 1.2 * max(places):
            axes.axvline(positions, color=f"C{index}", linestyle=":", label=f"{result.head.name}: position limit")
    axes.set(title="accept length by context, 95 % intervals", xlabel="prompt tokens", ylabel="tokens per verify round")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(bottom=1)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _line(axes: Any, x: Sequence[float], values: Sequence[Estimate], label: str, **style: Any) -> None:
    y = [value.value for value in values]
    axes.errorbar(x, y, yerr=_errors(values), label=label, marker="o", markersize=3, capsize=2, **style)


def _errors(values: Sequence[Estimate]) -> list[list[float]]:
    """Distances of the interval's ends, none below zero (a percentile interval may miss its estimate)."""
    low = [0.0 if e.value is None or e.low is None else max(e.value - e.low, 0.0) for e in values]
    high = [0.0 if e.value is None or e.high is None else max(e.high - e.value, 0.0) for e in values]
    return [low, high]
