"""``train``: make data with the target, train a head by training-time test, export it."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "train an EAGLE-3 or EAGLE 3.1 draft head for a small target, and write it in the SpecForge layout"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Grouped by what they are about; every default is printed."""
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    parser.add_argument("--target", required=True, metavar="DIR", help="the target, a Hugging Face folder (Llama type)")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="run folder: checkpoints, log, samples")
    parser.add_argument("--head-dir", type=Path, metavar="DIR", help="where the head is written (default OUT/head)")
    parser.add_argument("--resume", action="store_true", help="go on from OUT/checkpoint.pt")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="for target and head")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0 leaves torch's own choice")
    parser.add_argument("--seed", type=int, default=0, help="of data order, start values and sampling")
    data = parser.add_argument_group("data")
    data.add_argument("--data", type=Path, metavar="FILE", help='JSONL of {"messages": [...]} that end with an answer')
    data.add_argument("--prompts", metavar="FILE|demo", help="JSONL of prompts the target answers, or the demo's own")
    data.add_argument("--held-out", type=Path, metavar="FILE", help="JSONL of prompts to score on, never trained on")
    data.add_argument("--samples", type=Path, metavar="DIR", help="shards of samples, made once (default OUT/samples)")
    data.add_argument("--make-data", action="store_true", help="only make the samples, then stop")
    data.add_argument("--data-minutes", type=float, default=float("inf"), help="stop answering after this time")
    data.add_argument("--worker", default="0/1", metavar="I/N", help="answer every Nth prompt, from the Ith on")
    data.add_argument("--max-new-tokens", type=int, default=160, help="length of an answer")
    data.add_argument("--max-length", type=int, default=2048, help="tokens kept of a conversation of --data")
    data.add_argument("--data-batch", type=int, default=48, help="prompts answered together")
    head = parser.add_argument_group("head")
    head.add_argument("--variant", choices=("eagle31", "eagle3"), default="eagle31", help="what to train")
    head.add_argument("--layers", metavar="B,B,B", help="captured boundaries (default 2,N//2,N-3)")
    head.add_argument("--draft-vocab", type=int, default=8192, help="most frequent tokens the head can draft")
    head.add_argument("--init", choices=("closed-form", "random"), default="closed-form", help="start values")
    run_ = parser.add_argument_group("optimisation")
    run_.add_argument("--steps", type=int, default=1000, help="length of the run")
    run_.add_argument("--minutes", type=float, default=0.0, help="length of the run in time, instead of --steps")
    run_.add_argument("--ttt", type=int, default=4, help="unrolled draft steps")
    run_.add_argument("--lr", type=float, default=1e-3, help="peak of AdamW's learning rate")
    run_.add_argument("--output-lr", type=float, default=1.0, help="learning rate of lm_head relative to the rest")
    run_.add_argument("--dropout", type=float, default=0.0, help="against overfitting where data are few")
    run_.add_argument("--warmup", type=float, default=0.02, help="share of the run")
    run_.add_argument("--batch-tokens", type=int, default=2048, help="padded tokens in a batch")
    run_.add_argument("--eval-every", type=int, default=100, metavar="STEPS")
    run_.add_argument("--save-every", type=int, default=100, metavar="STEPS")
    run_.add_argument("--bf16", action="store_true", help="autocast; slower on a CPU without AMX")


def run(args: argparse.Namespace) -> int:
    """Returns 0 when the head (or, with --make-data, the samples) is written."""
    from sglang_eagle31.train.run import run as train

    return train(args)
