"""Pictures of a run: loss, accuracy by depth and accept length over the steps, in training and held out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SMOOTH = 0.95
"""Weight of the past in the running mean of the training curves."""


def read_log(run: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """``(training entries, held-out entries)`` of ``run/log.jsonl``; of a step logged twice the last counts.

    Raises ValueError where there is none.
    """
    path = run / "log.jsonl"
    if not path.is_file():
        raise ValueError(f"--plot {run}: no log.jsonl in it; fix: give the folder of a run")
    train: dict[int, dict[str, Any]] = {}
    held_out: dict[int, dict[str, Any]] = {}
    for entry in map(json.loads, path.read_text().splitlines()):
        (held_out if "held_out" in entry else train)[entry["step"]] = entry
    return [train[step] for step in sorted(train)], [held_out[step] for step in sorted(held_out)]


def plot(run: Path) -> Path:
    """Draw ``run/curves.png``; returns its path. Raises ValueError for a folder without a log."""
    train, held_out = read_log(run)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(15, 8), constrained_layout=True)
    steps = [entry["step"] for entry in train]
    for axis, key, title in (
        (axes[0][0], "losses", "training: loss by draft depth"),
        (axes[0][1], "accuracy", "training: P(token right), teacher-forced"),
        (axes[0][2], "conditional", "training: P(token right | all before it right)"),
    ):
        depths = len(train[0][key]) if train else 0
        for depth in range(depths):
            values = _running([entry[key][depth] for entry in train if len(entry[key]) > depth])
            axis.plot(steps[: len(values)], values, label=f"depth {depth + 1}", linewidth=1)
        axis.set_title(title)
    scored = [entry["step"] for entry in held_out]
    scores = [entry["held_out"] for entry in held_out]
    for axis, key, title in (
        (axes[1][0], "full", "held out: P(first k tokens accepted)"),
        (axes[1][1], "conditional", "held out: P(token k accepted | those before)"),
    ):
        for depth in range(len(scores[0][key]) if scores else 0):
            axis.plot(scored, [score[key][depth] for score in scores], marker=".", label=f"depth {depth + 1}")
        axis.set_title(title)
    axis = axes[1][2]
    axis.plot(steps, _running([entry["accept_length"] for entry in train]), label="training", color="grey")
    axis.plot(scored, [score["accept_length"] for score in scores], marker=".", label="held out", color="black")
    for source in sorted(scores[-1].get("sources", {})) if scores else []:
        values = [score["sources"][source]["accept_length"] for score in scores]
        axis.plot(scored, values, marker=".", linewidth=1, label=source)
    axis.set_title("accept length (chain)")
    for axis in axes.flat:
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend(fontsize="small")
    figure.suptitle(run.resolve().name)
    path = run / "curves.png"
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def _running(values: list[float]) -> list[float]:
    """The running mean."""
    smooth: list[float] = []
    for value in values:
        smooth.append(SMOOTH * smooth[-1] + (1 - SMOOTH) * value if smooth else value)
    return smooth
