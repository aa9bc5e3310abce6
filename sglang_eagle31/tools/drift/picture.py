"""One picture of a probe: where a head looks, how much one key gets, and how its states grow, by draft depth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sglang_eagle31.server.probe.record import KINDS, Record
from sglang_eagle31.tools.drift.verdict import Verdict

COLOURS = {"sink": "#4c72b0", "prompt": "#8fb0d9", "answer": "#b8b8b8", "drafted": "#dd5555"}
LABELS = {"sink": "sink", "prompt": "prompt", "answer": "committed answer", "drafted": "drafted tokens"}


def draw(path: Path, title: str, record: Record, verdict: Verdict) -> None:
    """Write a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 9.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2)
    figure.suptitle("\n".join([f"{title} — drift: {verdict.drift}", *verdict.text]), fontsize=10, wrap=True)
    _shares(axes[0][0], record)
    _lines(axes[0][1], record, {f"key_{kind}": (LABELS[kind], COLOURS[kind]) for kind in KINDS})
    axes[0][1].set(title="Attention that one key gets", ylabel="share of attention per key", yscale="log")
    _lines(axes[1][0], record, {"rms_fed": ("state that the row reads", "#333333")}, errors=True)
    axes[1][0].set(title="Size of the state that is fed (depth 0: fused target states)", ylabel="RMS")
    axes[1][0].set_ylim(bottom=0)
    named = {"entropy": ("entropy (nats)", "#55a868"), "cosine": ("cosine of the state read and handed on", "#8172b3")}
    _lines(axes[1][1], record, named)
    axes[1][1].set(title="Spread of attention, turn of the state")
    for axis in axes.flat:
        axis.set_xlabel("draft depth (0: last row that reads the target's states)")
        axis.set_xticks(sorted(record.depths))
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=8, ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.13), frameon=False)
    figure.savefig(path, dpi=120)


def _shares(axis: Any, record: Record) -> None:
    depths = sorted(record.depths)
    bottom = [0.0] * len(depths)
    for kind in KINDS:
        heights = [record.mean(depth, f"mass_{kind}") or 0.0 for depth in depths]
        axis.bar(depths, heights, bottom=bottom, color=COLOURS[kind], label=LABELS[kind], width=0.8)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    near = [(d, 1 - share) for d in depths if (share := record.mean(0, f"near_{d}")) is not None]
    if near:
        axis.plot(*zip(*near, strict=True), "k.--", linewidth=1, label="if only distance counted")
    axis.set(title="What the head looks at", ylabel="share of attention", ylim=(0, 1))


def _lines(axis: Any, record: Record, names: dict[str, tuple[str, str]], errors: bool = False) -> None:
    for name, (label, colour) in names.items():
        points = [(d, value) for d in sorted(record.depths) if (value := record.mean(d, name)) is not None]
        if not points:
            continue
        depths, values = zip(*points, strict=True)
        bars = [2 * (record.error(d, name) or 0.0) for d in depths] if errors else None
        axis.errorbar(depths, values, yerr=bars, marker="o", color=colour, label=label, capsize=3 if errors else 0)
    axis.grid(alpha=0.3)
