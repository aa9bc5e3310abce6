"""The measurement as one JSON object, and as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sglang_eagle31.tools.robust.comparison import Comparison
from sglang_eagle31.tools.robust.diagnose import Finding
from sglang_eagle31.tools.robust.measurement import HeadResult, Measured
from sglang_eagle31.tools.robust.statistics import Estimate
from sglang_eagle31.tools.shared.conditions import BASE, CONDITIONS, context_tokens
from sglang_eagle31.tools.shared.prompts import StartToken

SCHEMA = 1
STYLE = {"kept": "green", "unclear": "yellow", "too few": "dim"}


@dataclass(frozen=True)
class Report:
    """Everything that one run found."""

    results: Sequence[HeadResult]
    findings: Sequence[Finding]
    comparisons: Sequence[Comparison]
    notes: Sequence[str]
    start: StartToken
    settings: Mapping[str, Any]
    """Options that change numbers: prompts file and count, max_tokens, seed, concurrency, filler."""

    def to_json(self) -> dict[str, Any]:
        """Schema: docs/robustness.md."""
        return {
            "schema": SCHEMA,
            "settings": dict(self.settings),
            "start_token": {"id": self.start.id, "text": self.start.text, "kind": self.start.kind},
            "notes": list(self.notes),
            "heads": [
                {**result.head.to_json(), "conditions": [_measured(measured) for measured in result.measured.values()]}
                for result in self.results
            ],
            "comparisons": [_comparison(comparison) for comparison in self.comparisons],
            "diagnosis": [_finding(finding) for finding in self.findings],
        }


def render(report: Report) -> Group:
    """For people: one table a head, one for the comparison, notes and the diagnosis."""
    parts: list[RenderableType] = [_head_table(result) for result in report.results]
    if report.comparisons:
        parts.append(_comparison_table(report.comparisons))
    parts += [Text(f"note: {note}") for note in report.notes]
    parts.append(Text("diagnosis", style="bold"))
    for finding in report.findings:
        line = Text(f"  {finding.head} · {finding.condition}: ")
        line.append(finding.kind, style=STYLE.get(finding.kind, "red"))
        line.append(f". {finding.text}")
        parts.append(line)
    return Group(*parts)


def title(result: HeadResult) -> str:
    """Name, algorithm and tree of a head on one line."""
    head = result.head
    sizes = (("steps", head.steps), ("topk", head.topk), ("draft tokens", head.draft_tokens))
    tree = ", ".join(f"{name} {size}" for name, size in sizes if size)
    return f"{head.name} ({head.variant or head.algorithm}; {tree})"


def what(condition: str) -> str:
    """A condition in words."""
    tokens = context_tokens(condition)
    return CONDITIONS[condition].what if tokens is None else f"prompts of up to {tokens} tokens"


def _head_table(result: HeadResult) -> Table:
    depth = max(measured.depth for measured in result.measured.values())
    table = Table(title=title(result), caption="share of verify rounds that accepted at least k drafts; 95 % intervals")
    table.add_column("condition")
    table.add_column("prompts", justify="right")
    table.add_column("loops", justify="right")
    table.add_column("accept length")
    for k in range(1, depth + 1):
        table.add_column(f"{k}", justify="right")
    for measured in result.measured.values():
        known = measured.acceptance
        row = [measured.condition, str(known.prompts), str(measured.looping or ""), str(known.length)]
        table.add_row(*row, *(_share(known.reach[k]) if k < len(known.reach) else "" for k in range(depth)))
    return table


def _comparison_table(comparisons: Sequence[Comparison]) -> Table:
    table = Table(title=f"accept length by that of {comparisons[0].reference}, same questions")
    for name in ("condition", "head", "ratio", "prompts", "same answers"):
        table.add_column(name)
    for item in comparisons:
        table.add_row(item.condition, item.head, str(item.ratio), str(item.prompts), f"{item.same_answers:.0%}")
    return table


def _measured(measured: Measured) -> dict[str, Any]:
    known = measured.acceptance
    sizes = [len(reply.case.ids) for reply in measured.replies]
    rounds = sum(reply.verify_rounds for reply in measured.kept)
    tokens = sum(len(reply.token_ids) for reply in measured.kept)
    return {
        "condition": measured.condition,
        "what": what(measured.condition),
        "context": context_tokens(measured.condition),
        "prompt_tokens": {"least": min(sizes), "mean": sum(sizes) / len(sizes), "most": max(sizes)},
        "prompts": known.prompts,
        "looping": measured.looping,
        "loops_counted": measured.loops_counted,
        "empty": measured.empty,
        "rounds": known.rounds,
        "accept_length": known.length.to_json(),
        "accept_length_with_loops": measured.with_loops.to_json(),
        "sglang_accept_length": tokens / rounds if rounds else None,
        "reach": [value.to_json() for value in known.reach],
        "conditional": [value.to_json() for value in known.conditional],
        "rounds_at_least": list(known.counts),
        "per_prompt": [
            {
                "prompt": reply.case.prompt,
                "prompt_tokens": len(reply.case.ids),
                "tokens": len(reply.token_ids),
                "histogram": list(reply.histogram),
                "loops": reply.looping,
                "finish": reply.finish,
            }
            for reply in measured.replies
        ],
    }


def _comparison(item: Comparison) -> dict[str, Any]:
    return {
        "condition": item.condition,
        "head": item.head,
        "reference": item.reference,
        "accept_length_ratio": item.ratio.to_json(),
        "prompts": item.prompts,
        "same_answers": item.same_answers,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    ratios = ("length", "first", "deep", "deep_by_first")
    values: dict[str, Estimate | None] = {name: getattr(finding, name) for name in ratios}
    return {
        "head": finding.head,
        "condition": finding.condition,
        "base": finding.base if finding.condition != BASE else None,
        "kind": finding.kind,
        "text": finding.text,
        "prompts": finding.prompts,
        "ratios": {name: value.to_json() for name, value in values.items() if value is not None},
    }


def _share(value: Estimate) -> str:
    return "-" if value.value is None else f"{value.value:.0%}"
