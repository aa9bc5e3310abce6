"""All checks over one set of facts: lines, the worst status, JSON, and a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sglang_eagle31.tools.doctor.checks import acceptance, checklist, guard, head, machine, plugins, server, software
from sglang_eagle31.tools.doctor.facts import Facts, Line, Status

SCHEMA = 1
STYLE: dict[Status, str] = {"ok": "green", "warn": "yellow", "FAIL": "bold red", "skip": "dim"}
WORST: tuple[Status, ...] = ("FAIL", "warn", "skip", "ok")


def examine(facts: Facts) -> list[Line]:
    """Every line, in the order in which they are read."""
    here, started = facts.machine, facts.started
    lines: list[Line | None] = [
        machine.platform(here),
        machine.cpu(here, started),
        machine.dtype(started),
        machine.accelerator(here, started),
        machine.threads(here, started),
        machine.memory(here, started, facts.head),
        machine.load(here),
        machine.compiler(here, started),
        software.python(facts.software),
        software.sglang(facts.software),
        software.packages(facts.software),
        plugins.entry_points(facts.plugins),
        plugins.enabled(here),
        plugins.options(facts.plugins),
        plugins.cache(facts.plugins),
        plugins.seams(facts.plugins, started),
        plugins.loaded(started),
        plugins.kernel(started),
        plugins.attention(started),
    ]
    served = facts.server is not None and bool(facts.server.ours)
    if facts.head is not None or not served:  # a server with the marker has audited its head
        lines.append(head.audited(facts.head))
    lines += [head.elsewhere(facts.head, facts.server), head.context(facts.head)]
    if facts.server is not None:
        lines += _served(facts)
    lines += [item(facts) for item in checklist.ITEMS]
    return [line for line in lines if line is not None]


def _served(facts: Facts) -> list[Line | None]:
    one = facts.server
    assert one is not None
    if one.error:
        return [server.answers(one)]
    return [
        server.answers(one),
        server.marker(one),
        server.schedulers(one),
        server.version(one, facts.software),
        server.tree(one),
        server.depth(one, facts.head),
        server.context(one),
        server.window(one),
        server.attention(one),
        server.pool(one),
        server.tested(one),
        acceptance.alarm(one),
        acceptance.length(one),
        acceptance.depths(one),
        acceptance.templates(one),
        acceptance.contexts(one),
        acceptance.drift(one),
        guard.guard(one),
    ]


def count(lines: Sequence[Line]) -> dict[Status, int]:
    """Lines by status, the worst first."""
    return {status: sum(line.status == status for line in lines) for status in WORST}


def to_json(facts: Facts, lines: Sequence[Line]) -> dict[str, Any]:
    """``status`` is ``FAIL`` if any line is, else ``warn`` if any is, else ``ok``."""
    counted = count(lines)
    plain = asdict(facts.machine)
    return {
        "schema": SCHEMA,
        "status": "FAIL" if counted["FAIL"] else "warn" if counted["warn"] else "ok",
        "counts": counted,
        "lines": [asdict(line) for line in lines],
        "machine": {**plain, "flags": sorted(facts.machine.flags)},
        "software": asdict(facts.software),
        "started": None if facts.started is None else asdict(facts.started),
    }


def render(lines: Sequence[Line]) -> RenderableType:
    """For people: a table a section, and what to do under what is not ok."""
    parts: list[RenderableType] = []
    for section in dict.fromkeys(line.section for line in lines):
        table = Table(
            title=section, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False
        )
        table.add_column(width=4)
        table.add_column(no_wrap=True, min_width=15)
        table.add_column(overflow="fold")
        for line in lines:
            if line.section == section:
                text = Text(line.text)
                if line.fix:
                    text.append(f"\n-> {line.fix}", style="cyan")
                table.add_row(Text(line.status, style=STYLE[line.status]), line.name, text)
        parts += [table, Text()]
    counted = count(lines)
    parts.append(Text(", ".join(f"{number} {status}" for status, number in counted.items() if number)))
    return Group(*parts)
