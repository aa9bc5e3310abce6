"""``data``: conversations to train a head on, answered by the target itself."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sglang_eagle31.tools.shared.help_defaults import Defaults

HELP = "let the target answer prompts and keep its hidden states: the data that a head is trained on"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Every default is printed."""
    parser.formatter_class = Defaults
    parser.add_argument("--target", required=True, metavar="DIR", help="the target, a Hugging Face folder")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="where it all goes; run again to go on")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="for engine and features")
    parser.add_argument("--threads", type=int, default=0, help="torch threads of this process; 0: torch's own choice")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts' order and of sampling")
    prompts = parser.add_argument_group("prompts")
    prompts.add_argument(
        "--prompts", nargs="+", type=Path, default=[], metavar="FILE", help='JSONL: {"messages": [..]}'
    )
    prompts.add_argument("--hold-out", type=int, default=0, metavar="N", help="hold out one topic in N of --prompts")
    prompts.add_argument("--corpora", metavar="A,B", help="corpora by name (default: all, or none beside --prompts)")
    prompts.add_argument(
        "--answers", type=int, metavar="N", help="prompts answered at most, to train on (default: all)"
    )
    prompts.add_argument("--held-out-answers", type=int, default=120, metavar="N", help="and to score on")
    prompts.add_argument("--conversations", type=Path, metavar="FILE", help="JSONL that has its answers already")
    prompts.add_argument("--max-length", type=int, default=2048, help="tokens kept of one of --conversations")
    answers = parser.add_argument_group("answers")
    answers.add_argument("--engine", choices=("sglang", "torch"), default="sglang", help="torch: without SGLang")
    answers.add_argument("--dtype", choices=("auto", "bfloat16", "float32"), default="auto", help="of SGLang's engine")
    answers.add_argument("--batch", type=int, default=64, metavar="N", help="prompts answered together")
    answers.add_argument("--max-new-tokens", type=int, default=192, metavar="N", help="length of an answer")
    answers.add_argument("--sampled", type=float, default=0.25, metavar="SHARE", help="at temperature 1, not greedily")
    answers.add_argument("--single-turn", action="store_true", help="ask no second questions")
    features = parser.add_argument_group("features")
    features.add_argument("--features", choices=("cache", "fly"), default="cache", help="fly: states when trained")
    features.add_argument("--layers", metavar="B,B,B", help="captured boundaries (default: 2,N//2,N-3)")


def run(args: argparse.Namespace) -> int:
    """Returns 0 when everything is written."""
    from sglang_eagle31.tools.train.collect import run as collect
    from sglang_eagle31.tools.train.target import parse_boundaries

    args.boundaries = parse_boundaries(args.layers)
    return collect(args, sys.argv)
