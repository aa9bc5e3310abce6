"""One picture: predicted against realised gain of every confirmed shape, a colour an answer."""

from __future__ import annotations

from pathlib import Path

from sglang_eagle31.tools.tune.report import Report

SIZE = 6.4, 5.2
"""Inches."""


def draw(report: Report, path: Path) -> None:
    """Write a PNG. Raises ValueError where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError(f"{path}: no picture without matplotlib ({error}); fix: pip install matplotlib") from error
    figure = Figure(figsize=SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    least = most = 1.0
    for index, answer in enumerate(report.answers):
        shown = answer.realised if answer.grid is None else answer.grid
        x, y = [one.predicted for one in shown], [one.gain for one in shown]
        errors = [[one.gain - one.low for one in shown], [one.high - one.gain for one in shown]]
        label = f"T {answer.temperature:g}, concurrency {answer.concurrency}"
        axes.errorbar(x, y, yerr=errors, fmt="o", markersize=4, capsize=2, color=f"C{index}", label=label)
        best = answer.best
        axes.annotate(str(best.shape), (best.predicted, best.gain), (6, -10), textcoords="offset points")
        least = min(least, *x, *(one.low for one in shown))
        most = max(most, *x, *(one.high for one in shown))
    ends = 0.95 * least, 1.05 * most
    axes.plot(ends, ends, color="grey", linewidth=1)
    axes.axhline(1, color="grey", linestyle=":")
    axes.set(xlabel="predicted gain", ylabel="realised gain, least to most", xlim=ends, ylim=ends)
    axes.set_title(f"gain against no speculation, {report.options.goal}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=130)
