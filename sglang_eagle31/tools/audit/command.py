"""``audit``: what a draft head computes, whether EAGLE31 runs it exactly, and what other engines would do with it."""

from __future__ import annotations

import argparse
import functools
import json
import sys
from typing import NoReturn

from sglang_eagle31.tools.shared.override import add_override

HELP = "read a draft head's files and say whether EAGLE31 runs it exactly as it was trained"
EPILOG = (
    "Exit status: 0 exact, 2 needs-override, 3 refused, 1 an error or a mistake in the arguments. No server, no GPU; "
    "no weights are loaded."
)


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
    from rich.console import Console

    from sglang_eagle31.head.overrides import pairs
    from sglang_eagle31.tools.audit.report import EXIT, audit
    from sglang_eagle31.tools.audit.table import show

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
