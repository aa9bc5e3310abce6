"""``doctor``: is this installation as it should be, and with a URL, is a server what it was meant to be."""

from __future__ import annotations

import argparse
import json
import re
import sys

from sglang_eagle31.tools.shared.override import add_override

HELP = "check machine, installation, a head, a running server and what is to be known before it goes into production"
EPILOG = (
    "Each line is ok, warn, FAIL, or skip: it could not be told, and the line says how to find out. Exit status: 0 no "
    "FAIL, 1 a FAIL, 2 a mistake. What each line means: docs/doctor.md."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.epilog = EPILOG
    parser.add_argument("url", nargs="?", metavar="URL", help="a running server, e.g. http://localhost:30000")
    parser.add_argument("--head", metavar="DIR", help="a draft head to audit")
    parser.add_argument("--target", metavar="DIR", help="the target model of the head")
    add_override(parser)
    parser.add_argument("--quick", action="store_true", help="do not load SGLang, which takes ten seconds or more")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Gather, judge, print.

    Raises:
        ValueError: options that contradict each other, or a package that is not installed.
    """
    from rich.console import Console

    from sglang_eagle31.head.overrides import pairs
    from sglang_eagle31.tools.doctor import gather, probe, report
    from sglang_eagle31.tools.doctor.facts import Facts

    overrides = pairs(args.override)
    if args.url is not None and not re.fullmatch(r"https?://\S+", args.url):
        raise ValueError(f"{args.url}: expected the address of a server; fix: for example http://localhost:30000")
    for flag in ("target", "override"):
        if getattr(args, flag) and not args.head:
            raise ValueError(f"--{flag} is given without --head; fix: --head HEAD")
    console = Console(width=None if sys.stdout.isatty() else 160)
    server = gather.server(args.url.rstrip("/")) if args.url else None
    head = gather.head(args.head, args.target, overrides) if args.head else None
    if head is None and server is not None:
        head = gather.served_head(server, overrides)
    with Console(stderr=True).status("loading SGLang in a process of its own (--quick leaves it out)"):
        started = None if args.quick else probe.start()
    facts = Facts(gather.machine(), gather.software(), gather.plugins(), started, head, server)
    lines = report.examine(facts)
    if args.json:
        print(json.dumps(report.to_json(facts, lines), indent=1))
    else:
        console.print(report.render(lines))
    return 1 if report.count(lines)["FAIL"] else 0
