"""``audit``: what a draft head computes, whether EAGLE31 runs it exactly, and what other engines would do with it."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
from typing import Any, NoReturn

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sglang_eagle31.audit.report import EXIT, Report, audit
from sglang_eagle31.cli.override import add_override
from sglang_eagle31.drafter.overrides import pairs
from sglang_eagle31.drafter.spec import DrafterSpec

HELP = "read a draft head's files and say whether EAGLE31 runs it exactly as it was trained"
EPILOG = (
    "Exit status: 0 exact, 2 needs-override, 3 refused, 1 an error or a mistake in the arguments. No server, no GPU; "
    "no weights are loaded."
)
STYLE = {"exact": "green", "needs-override": "yellow", "refused": "red", "wrong": "red", "stops": "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.epilog = EPILOG
    parser.error = functools.partial(_mistake, parser)  # type: ignore[method-assign]  # 2 has a meaning here
    parser.add_argument("draft", metavar="DRAFT", help="folder of the head, or a repository in the cache")
    parser.add_argument("--target", help="the target model, to check the head against it (its config and headers only)")
    add_override(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the audit; the exit status is the verdict's."""
    try:
        report = audit(args.draft, args.target, pairs(args.override))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(report.to_json(), indent=1))
    else:
        show(report, Console(width=None if sys.stdout.isatty() else 160))
    return EXIT[report.verdict]


def _mistake(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    parser.print_usage(sys.stderr)
    parser.exit(1, f"{parser.prog}: error: {message}\n")


def show(report: Report, console: Console) -> None:
    """The audit for people."""
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
