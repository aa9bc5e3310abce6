"""``robust``: acceptance by draft depth under template and context changes, on any SGLang server."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HELP = "measure acceptance by draft depth under other templates, system prompts and context lengths, and explain it"
EPILOG = "Exit status: 0 measured, 2 a mistake or a server that cannot be measured, 130 interrupted."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.epilog = EPILOG
    parser.add_argument(
        "--url",
        action="append",
        required=True,
        metavar="URL",
        help="a server, as URL or NAME=URL; others are compared with the first",
    )
    parser.add_argument("--model", required=True, type=Path, metavar="DIR", help="the target, for its tokenizer")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help='JSONL of {"messages": [...]} (default: the demo)')
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N prompts")
    parser.add_argument("--conditions", metavar="A,B", help="of regular and the other conditions (default: all)")
    parser.add_argument(
        "--contexts", metavar="N,N", help="context lengths in tokens, or none (default: 512,1024,2048,4096,8192)"
    )
    parser.add_argument("--filler", type=Path, metavar="FILE", help="text for the contexts (default: Python's help)")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="longest answer (default: 128)")
    parser.add_argument("--concurrency", type=int, default=1, metavar="N", help="requests at a time (default: 1)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the places in the text and of the intervals (default: 0)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/robust"),
        metavar="DIR",
        help="for robust.json, robust.png (default: build/robust)",
    )


def run(args: argparse.Namespace) -> int:
    """Measure, print tables and diagnosis, write JSON and picture."""
    from sglang_eagle31.tools.robust import run as robust
    from sglang_eagle31.tools.shared import conditions
    from sglang_eagle31.tools.shared.demo_model import PROMPTS

    for flag in ("max_tokens", "concurrency"):
        if getattr(args, flag) < 1:
            raise ValueError(f"--{flag.replace('_', '-')} {getattr(args, flag)}: expected at least 1; fix: say, 64")
    options = robust.Options(
        urls=args.url,
        model=args.model,
        conditions=conditions.parse_conditions(args.conditions),
        contexts=conditions.parse_contexts(args.contexts),
        prompts=args.prompts or PROMPTS,
        filler=args.filler,
        limit=args.limit,
        max_tokens=args.max_tokens,
        concurrency=args.concurrency,
        seed=args.seed,
        out=args.out,
    )
    try:
        robust.run(options, sys.argv)
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
    return 0
