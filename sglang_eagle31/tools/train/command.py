"""``train``: train a head by training-time test and export it; or write the same run for a larger trainer."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sglang_eagle31.tools.shared.help_defaults import Defaults
from sglang_eagle31.tools.shared.override import add_override

HELP = "train an EAGLE-3 or EAGLE 3.1 draft head for a small target, and write it in the SpecForge layout"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Grouped by what they are about; every default is printed."""
    parser.formatter_class = Defaults
    parser.add_argument("--target", metavar="DIR", help="the target, a Hugging Face folder (Llama type)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="run folder: checkpoints, log, curves.png, head")
    parser.add_argument("--head-dir", type=Path, metavar="DIR", help="where the head is written (default: OUT/head)")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoints in OUT")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="for target and head")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0 leaves torch's own choice")
    parser.add_argument("--seed", type=int, default=0, help="of data order, start values and dropout")
    parser.add_argument("--pair", action="store_true", help="both variants into OUT/eagle3, OUT/eagle31, and pair.json")
    instead = parser.add_argument_group("instead of training")
    instead.add_argument("--plot", type=Path, metavar="RUN", help="draw RUN/curves.png again")
    instead.add_argument("--emit", nargs=2, metavar=("specforge|torchspec", "DIR"), help="that trainer's config")
    instead.add_argument("--chat-template", default="llama3", help="name of the template there")
    data = parser.add_argument_group("data")
    data.add_argument("--data", type=Path, metavar="DIR", help="a folder that the command data made")
    data.add_argument("--samples", type=Path, metavar="DIR", help="shards alone, instead of --data")
    data.add_argument("--held-out", type=Path, metavar="PATH", help="shards, or JSONL of prompts, never trained on")
    data.add_argument("--features", choices=("cache", "fly"), default="cache", help="fly: states of each batch anew")
    head = parser.add_argument_group("head")
    head.add_argument("--variant", choices=("eagle31", "eagle3"), default="eagle31", help="what to train")
    head.add_argument("--layers", metavar="B,B,B", help="captured boundaries (default: 2,N//2,N-3)")
    head.add_argument("--draft-vocab", type=int, default=8192, help="most frequent tokens the head can draft")
    head.add_argument("--window", type=int, metavar="W", help="keys that a query sees, itself included (default: all)")
    head.add_argument("--init", default="closed-form", metavar="closed-form|random|DIR", help="start; DIR: a head")
    add_override(head, "to read the head of --init")
    head.add_argument("--trained-depth", type=int, metavar="N", help="recorded in the head (default: --ttt)")
    run_ = parser.add_argument_group("optimisation")
    run_.add_argument("--steps", type=int, default=1000, help="length of the run")
    run_.add_argument("--epochs", type=int, default=0, help="length of the run in passes, instead of --steps")
    run_.add_argument("--minutes", type=float, default=0.0, help="length of the run in time, instead of --steps")
    run_.add_argument("--ttt", type=int, default=5, help="unrolled draft steps")
    run_.add_argument("--lr", type=float, default=1e-3, help="peak of AdamW's learning rate")
    run_.add_argument("--output-lr", type=float, default=1.0, help="learning rate of lm_head relative to the rest")
    run_.add_argument("--dropout", type=float, default=0.0, help="against overfitting where data are few")
    run_.add_argument("--warmup", type=float, default=0.02, help="share of the run")
    run_.add_argument("--batch-tokens", type=int, default=2048, help="padded tokens in a batch")
    run_.add_argument("--accumulate", type=int, default=1, metavar="N", help="batches that make one step")
    run_.add_argument("--eval-every", type=int, default=100, metavar="STEPS", help="between scores")
    run_.add_argument("--eval-depth", type=int, default=5, metavar="N", help="tokens drafted from held-out positions")
    run_.add_argument("--save-every", type=int, default=100, metavar="STEPS", help="between checkpoints")
    run_.add_argument("--precision", choices=("auto", "bf16", "float32"), default="auto", help="auto: bf16 on a GPU")


def run(args: argparse.Namespace) -> int:
    """Returns 0 when the head is written."""
    from sglang_eagle31.tools.train.run import run as train

    return train(args, sys.argv)
