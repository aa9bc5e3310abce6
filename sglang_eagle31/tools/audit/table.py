"""The audit as people read it: verdict, reasons, the fields with their sources, and other engines."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sglang_eagle31.head.spec import DrafterSpec
from sglang_eagle31.tools.audit.report import Report

STYLE = {"exact": "green", "needs-override": "yellow", "refused": "red", "wrong": "red", "stops": "red"}


def show(report: Report, console: Console) -> None:
    """Print the report."""
    verdict = f"[{STYLE[report.verdict]}]{report.verdict}[/]"
    console.print(f"[bold]{verdict}[/]  {escape(report.producer)}  {escape(report.variant)}")
    console.print(f"head    {escape(report.head)}\ntarget  {escape(report.target or 'not given')}", soft_wrap=True)
    if report.evidence:
        console.print(f"read as {escape(report.producer)}: {escape(report.evidence)}", soft_wrap=True)
    for name, lines in (("reason", report.reasons), ("note", report.notes)):
        for line in lines:
            console.print(f"- {name}: {escape(line)}", soft_wrap=True)
    if report.spec:
        table = Table("field", "value", "source", box=None, pad_edge=False)
        latent = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        order = [item.name for item in dataclasses.fields(DrafterSpec) if item.name in report.spec]
        for name in order:
            value, source = report.spec[name]
            if value or name not in latent:
                table.add_row(name, escape(_short(value)), escape(source))
        console.print(table)
    for engine, outcome in report.elsewhere.items():
        style = STYLE.get(outcome.kind, "yellow")
        console.print(f"[bold]{engine} {outcome.versions}[/] would: [{style}]{outcome.kind}[/] (by {outcome.evidence})")
        for line in outcome.reasons:
            console.print(f"  - {escape(line)}", soft_wrap=True)


def _short(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, (dict, list, tuple)) else str(value)
    return text if len(text) < 80 else f"{text[:77]}..."
