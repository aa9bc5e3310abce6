"""``convert``: write a head in the format of another engine or trainer, computing the same, or refuse."""

from __future__ import annotations

import argparse
from pathlib import Path

from sglang_eagle31.tools.shared.override import add_override

HELP = "write a draft head in another format, lossless or not at all"
EPILOG = "Exit status: 0 written, 2 refused or a mistake; then nothing is written."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.epilog = EPILOG
    parser.add_argument("draft", metavar="DRAFT", help="folder of the head, or a repository in the cache")
    parser.add_argument("out", metavar="OUT", type=Path, help="a new folder")
    parser.add_argument("--to", required=True, choices=("sglang", "vllm", "specforge"), help="who will read it")
    parser.add_argument("--target", help="the target model; needed for sglang, which reads layer ids by its class")
    add_override(parser)
    parser.add_argument(
        "--unpickle", action="store_true", help="also read *.bin files (pickles), by torch with weights_only"
    )


def run(args: argparse.Namespace) -> int:
    """Convert, and say what was written."""
    from sglang_eagle31.head.overrides import pairs
    from sglang_eagle31.tools.convert.run import convert

    spec = convert(args.draft, args.out, args.to, args.target, pairs(args.override), args.unpickle)
    print(f"{args.out}: {spec.variant} head of {spec.producer}, in the format of {args.to}")
    return 0
