"""pairs.json for people: the tables of docs/drift.md and one picture."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from twins import DEPTH, RESULT, ROOT, STEPS, TEMPLATES, TRIES, VARIANTS, Measured

DOCUMENT = ROOT / "docs/drift.md"
NAMES = dict(zip(VARIANTS, ("EAGLE-3", "EAGLE 3.1"), strict=True))
COLOURS = dict(zip(VARIANTS, ("#dd8452", "#4c72b0"), strict=True))


def render() -> None:
    """Write the pictures, and the tables into docs/drift.md."""
    record = json.loads(RESULT.read_text())
    draw(record, RESULT.with_name("pairs.png"))
    if DOCUMENT.exists():
        DOCUMENT.write_text(_filled(DOCUMENT.read_text(), record))
    print(f"written: {RESULT.relative_to(ROOT)}, pairs.png beside it, {DOCUMENT.relative_to(ROOT)}")


def check() -> int:
    """Whether docs/drift.md is what pairs.json says; the exit status."""
    text = DOCUMENT.read_text()
    if text == _filled(text, json.loads(RESULT.read_text())):
        return 0
    print("docs/drift.md is not what docs/results/pairs.json says; fix: make results ARGS=--render", file=sys.stderr)
    return 1


def _filled(text: str, record: Measured) -> str:
    """The document with every block ``<!-- table NAME -->`` ... ``<!-- end -->`` made anew."""
    for name, make in TABLES.items():
        block = re.compile(rf"(<!-- table {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        body = "\n".join(make(record))
        text = block.sub(lambda found, body=body: f"{found[1]}{body}\n{found[2]}", text)  # type: ignore[misc]
    return text


def _say(entry: Measured) -> str:
    if entry["value"] is None:
        return "-"
    ends = f" [{entry['ci95'][0]:.2f}, {entry['ci95'][1]:.2f}]" if entry["ci95"] else ""
    return f"{entry['value']:.2f}{ends}"


def _length_table(chosen: Callable[[str], bool], record: Measured) -> Iterator[str]:
    yield "| | prompts | EAGLE-3 | EAGLE 3.1 | ratio | by seed |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, entry in record["by_condition"].items():
        if chosen(name):
            lengths = [_say(entry[variant]["accept_length"]) for variant in VARIANTS]
            by_seed = ", ".join(f"{one['value']:.2f}" for one in entry["by_seed"].values())
            yield f"| `{name}` | {entry['prompts']} | {' | '.join(lengths)} | {_say(entry['ratio'])} | {by_seed} |"


def _depth_table(record: Measured) -> Iterator[str]:
    entry = record["by_condition"]["regular"]
    yield "| accepted | " + " | ".join(f"depth {k}" for k in range(1, DEPTH + 1)) + " |"
    yield "| --- |" + " --- |" * DEPTH
    for variant, name in NAMES.items():
        for key, what in (("reach", "at least k"), ("conditional", "k, given those before")):
            yield f"| {name}, {what} | " + " | ".join(_say(e) for e in entry[variant][key]) + " |"


def _drift_table(record: Measured) -> Iterator[str]:
    yield "| | prefill | " + " | ".join(f"step {k}" for k in range(1, STEPS + 1)) + " |"
    yield "| --- |" + " --- |" * (STEPS + 1)
    for key, what in (("rms_fed", "RMS of the state read"), ("mass_drafted", "drafted share"), ("entropy", "entropy")):
        for variant, name in NAMES.items():
            values = record["drift_by_depth"][variant][key]
            yield f"| {name}, {what} | " + " | ".join(f"{value:.2f}" for value in values) + " |"


def _summary_table(record: Measured) -> Iterator[str]:
    yield "| | measured | goal |"
    yield "| --- | --- | --- |"
    yield f"| served accept length of the shipped 3.1 head | {_say(record['served_accept_length'])} | 2.8 |"
    for key, what, goal in (
        ("mean_ratio", "accept length, 3.1 by its twin: `regular`", "1.10"),
        ("worst_template_ratio", "the twin's worst template condition", "1.5"),
        ("longest_context_ratio", "longest context", "1.18"),
    ):
        where = f" (`{record[key]['condition']}`)" if "condition" in record[key] else ""
        yield f"| {what}{where} | {_say(record[key])} | {goal} |"
    for variant, name in NAMES.items():
        other = record["switched_feedback"][variant]
        lengths = ", ".join(_say(other[str(seed)]) for seed in record["seeds"])
        what = f"accept length of {name} served with {other['feedback']}-norm feedback, against its training"
        yield f"| {what} | {lengths} | |"
    growth = record["rms_growth"]
    yield f"| RMS growth over 8 steps, EAGLE 3.1 | {_say(growth['eagle31'])} | at most 1.1 |"
    yield f"| RMS growth over 8 steps, EAGLE-3 | {_say(growth['eagle3'])} | |"


def _tries_table(record: Measured) -> Iterator[str]:
    yield "| | tree | condition | prompts | EAGLE-3 | EAGLE 3.1 | ratio | as shipped, seed 0 |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for entry in json.loads(TRIES.read_text()).values():
        for name, found in entry["conditions"].items():
            lengths = [_say(found[variant]["accept_length"]) for variant in VARIANTS]
            known = record["by_condition"].get(name, {}).get("by_seed", {}).get("0")
            row = [entry["what"], entry["tree"], f"`{name}`", str(found["prompts"]), *lengths, _say(found["ratio"])]
            yield f"| {' | '.join([*row, _say(known) if known else '-'])} |"


TABLES: dict[str, Callable[[Measured], Iterator[str]]] = {
    "summary": _summary_table,
    "templates": lambda record: _length_table(lambda name: name in TEMPLATES, record),
    "content": lambda record: _length_table(lambda n: n not in TEMPLATES and not n.startswith("context_"), record),
    "contexts": lambda record: _length_table(lambda name: name.startswith("context_"), record),
    "depth": _depth_table,
    "drift": _drift_table,
    "tries": _tries_table,
}


def draw(record: Measured, path: Path) -> None:
    """Four panels: size of the fed-back state, acceptance by depth, templates, contexts."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 9), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2)
    for index, (variant, label) in enumerate(NAMES.items()):
        colour = COLOURS[variant]
        values = record["drift_by_depth"][variant]["rms_fed"]
        axes[0][0].plot(range(1, STEPS + 1), np.array(values[1:]) / values[1], "o-", color=colour, label=label)
        entry = record["by_condition"]["regular"][variant]["conditional"]
        _bars(axes[0][1], range(1, DEPTH + 1), entry, index, label, colour)
        for axis, names in (
            (axes[1][0], [n for n in record["by_condition"] if not n.startswith("context_")]),
            (axes[1][1], [n for n in record["by_condition"] if n.startswith("context_")]),
        ):
            lengths = [record["by_condition"][n][variant]["accept_length"] for n in names]
            _bars(axis, range(len(names)), lengths, index, label, colour)
            axis.set_xticks(range(len(names)), [n.removeprefix("context_") for n in names], rotation=25, ha="right")
    axes[0][0].set(title="Size of the state that is fed back, by step 1", xlabel="drafted step", ylabel="RMS ratio")
    axes[0][0].set_ylim(bottom=0)
    axes[0][1].set(title="Accepted at k, given those before", xlabel="k", ylabel="share")
    axes[1][0].set(title="Accept length by condition")
    axes[1][1].set(title="Accept length by context", xlabel="tokens of the prompt")
    for axis in axes[1]:
        axis.set_ylim(bottom=1)
    for axis in axes.flat:
        axis.legend(fontsize=8)
        axis.grid(alpha=0.3)
    figure.suptitle(
        f"SmolLM2-135M-Instruct, twins of seeds {record['seeds']}; 95 % intervals over prompts", fontsize=10
    )
    figure.savefig(path, dpi=110)


def _bars(axis: Any, places: Sequence[int], entries: Sequence[Measured], index: int, label: str, colour: str) -> None:
    known = [(x, e) for x, e in zip(places, entries, strict=True) if e["value"] is not None]
    values = [e["value"] for _, e in known]
    ends = [e["ci95"] or [e["value"]] * 2 for _, e in known]
    errors = [[v - low for v, (low, _) in zip(values, ends, strict=True)]]
    errors += [[high - v for v, (_, high) in zip(values, ends, strict=True)]]
    axis.bar(
        [x + 0.4 * (index - 0.5) for x, _ in known],
        values,
        0.4,
        yerr=np.maximum(errors, 0),
        capsize=2,
        label=label,
        color=colour,
        alpha=0.85,
    )
