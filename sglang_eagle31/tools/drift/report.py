"""The probe's result as JSON and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from sglang_eagle31.server.probe.record import KINDS, SCHEMA, Record
from sglang_eagle31.tools.drift.verdict import Verdict

STYLE = {"none": "bold green", "unknown": "bold yellow", "unclear": "bold yellow"}
CAPTION = (
    "near: what a row of depth 0 gives to its last keys, as many as are drafted at this depth; "
    "/key: thousandths of the attention that one key of the group gets"
)
KEY_UNIT = 1000
"""Mass per key is printed in thousandths."""


def result(record: Record, verdict: Verdict, prompts: Sequence[Record], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object; its schema is in docs/drift-probe.md.

    Args:
        record: of all prompts or servers.
        verdict: on that record.
        prompts: the record of each prompt, for intervals over prompts.
        facts: what was probed, and how.
    """
    return {
        "schema": SCHEMA,
        **facts,
        "verdict": verdict.to_json(),
        "record": record.to_json(),
        "per_prompt": [means(one) for one in prompts],
    }


def means(record: Record) -> dict[str, dict[str, float]]:
    """Mean of each quantity by depth."""
    return {
        str(depth): {name: value for name in record.names() if (value := record.mean(depth, name)) is not None}
        for depth in sorted(record.depths)
    }


def render(title: str, record: Record, verdict: Verdict) -> Group:
    """The table by depth, what the target's states measure, and the verdict."""
    table = Table(title=title, caption=CAPTION)
    for name in (
        "depth",
        "rows",
        *KINDS,
        "near",
        "self",
        *(f"{kind}/key" for kind in KINDS),
        "entropy",
        "RMS",
        "cosine",
    ):
        table.add_column(name, justify="right")
    for depth in sorted(record.depths):
        table.add_row(*_row(record, depth))
    lines = [Text(line) for line in (*_states(record), _where(record)) if line]
    drift = Text.assemble("drift: ", (verdict.drift, STYLE.get(verdict.drift, "bold red")))
    return Group(table, *lines, drift, *(Text(f"- {line}") for line in verdict.text))


def _row(record: Record, depth: int) -> list[str]:
    def show(name: str, form: str, unit: float = 1.0) -> str:
        value = record.mean(depth, name)
        return "" if value is None else format(unit * value, form)

    return [
        str(depth) if depth else "0 (prefill)",
        str(record.rows(depth)),
        *(show(f"mass_{kind}", ".3f") for kind in KINDS),
        "" if (near := record.mean(0, f"near_{depth}")) is None else f"{near:.3f}",
        show("mass_self", ".3f"),
        *(show(f"key_{kind}", ".3g", KEY_UNIT) for kind in KINDS),
        show("entropy", ".2f"),
        show("rms_fed", ".4g"),
        show("cosine", ".3f"),
    ]


def _states(record: Record) -> list[str]:
    found: Mapping[str, Any] = record.depths.get(0, {})
    names = [name.removeprefix("rms_captured_") for name in found if name.startswith("rms_captured_")]
    if not names:
        return []
    names.sort(key=lambda name: (len(name), name))  # boundaries by number
    each = ", ".join(f"{name}: {record.mean(0, f'rms_captured_{name}'):.4g}" for name in names)
    fused = record.mean(0, "rms_fed")
    return [f"RMS of the target's states by boundary {each}" + (f"; fused {fused:.4g}" if fused is not None else "")]


def _where(record: Record) -> str:
    total = sum(record.sinks.values())
    most = sorted(record.sinks.items(), key=lambda item: -item[1])[:4]
    each = ", ".join(f"column {column} in {count}" for column, count in most)
    return f"sink found at {each} of {total} prompts" if total else ""
