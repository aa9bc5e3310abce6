"""``python -m sglang_eagle31 demo``: EAGLE31 against no speculation on this machine, token by token."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HELP = "serve SmolLM2-135M with and without EAGLE31 and compare speed and tokens"
EPILOG = "Exit status: 0 same tokens, 1 a token differs, 2 a mistake, no model or a server that fails, 130 interrupted."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.epilog = EPILOG
    parser.add_argument("--prompts", type=int, metavar="N", help="use the first N prompts only (default: all)")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="longest answer (default: 128)")
    parser.add_argument("--steps", type=int, default=3, metavar="N", help="draft steps a round (default: 3)")
    parser.add_argument("--topk", type=int, default=4, metavar="N", help="branches of the draft tree (default: 4)")
    parser.add_argument("--draft-tokens", type=int, default=8, metavar="N", help="verified tokens (default: 8)")
    parser.add_argument("--head", type=Path, metavar="DIR", help="draft head (default: the one that comes with this)")
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "float32"),
        help="default: bfloat16 where the machine multiplies it, else float32",
    )
    parser.add_argument("--device", help="SGLang's (default: cuda where torch sees a GPU, else cpu)")
    parser.add_argument("--concurrency", type=int, default=1, metavar="N", help="requests at a time (default: 1)")
    parser.add_argument(
        "--out", type=Path, default=Path("build/demo.json"), metavar="FILE", help="JSON (default: build/demo.json)"
    )


def run(args: argparse.Namespace) -> int:
    """0: same tokens; 1: a token differs; 2: no model, or a server did not come up; 130: interrupted."""
    from sglang_eagle31.tools.demo import run as demo
    from sglang_eagle31.tools.demo.report import Tree
    from sglang_eagle31.tools.shared import device
    from sglang_eagle31.tools.shared.demo_model import HEAD
    from sglang_eagle31.tools.shared.server_process import ServerFailed

    for flag in ("tokens", "steps", "topk", "draft_tokens", "concurrency"):
        if getattr(args, flag) < 1:
            raise ValueError(f"--{flag.replace('_', '-')} {getattr(args, flag)}: give a number of at least 1")
    on = args.device or device.here()
    dtype, why = (args.dtype, "as --dtype asks") if args.dtype else device.dtype_on(on)
    print(f"[demo] {on}, {dtype}: {why}", flush=True)
    options = demo.Options(
        tree=Tree(args.steps, args.topk, args.draft_tokens),
        head=args.head or HEAD,
        prompts=args.prompts,
        tokens=args.tokens,
        concurrency=args.concurrency,
        dtype=dtype,
        device=on,
        out=args.out,
    )
    try:
        return demo.run(options, sys.argv)
    except (ServerFailed, RuntimeError) as failure:
        print(failure if isinstance(failure, ServerFailed) else f"error: {failure}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the server was ended", file=sys.stderr)
        return 130
