"""``bench``: throughput and latency with and without speculation, by concurrency, in turns."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang_eagle31.tools.shared.lists import integers, names

HELP = "measure what speculation is worth by concurrency, or replay recorded traffic on several settings"
EPILOG = "Exit status: 0 measured, 1 --check failed, 2 a mistake or a server that fails, 130 interrupted."
QUICK: dict[str, Any] = {
    "prompts": ["chat"],
    "concurrency": [1, 4],
    "rounds": 1,
    "tokens": 24,
    "requests": 4,
    "identity": 4,
}
LEAST = {"rounds": 1, "tokens": 2, "requests": 1, "identity": 0, "long_tokens": 64, "limit": 1, "speed": 1e-3}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.epilog = EPILOG
    add = parser.add_argument_group("what is measured").add_argument
    add("--model", type=Path, metavar="DIR", help="the target (default: the demo's)")
    add("--head", type=Path, metavar="DIR", help="its draft head (default: the demo's)")
    add("--shape", metavar="S,K,D", help="steps, topk, draft tokens (default: 3,1,4)")
    add("--arms", type=names, metavar="A,B", help="of none, eagle3, eagle31, guard (default: all)")
    add("--prompts", type=names, metavar="A,B", help="of chat, code, instruction, long, and JSONL files (default: all)")
    add("--concurrency", type=integers, metavar="N,N", help="requests at a time (default: 1,4,16,32,64)")
    add("--rounds", type=int, metavar="N", help="turns of every arm in every cell (default: 3)")
    add("--tokens", type=int, metavar="N", help="longest answer (default: 64)")
    add("--requests", type=int, metavar="N", help="requests of a cell (default: by concurrency, 8 to 64)")
    add("--identity", type=int, metavar="N", help="prompts of a set whose answers are compared (default: 16; 0: none)")
    add("--long-tokens", type=int, metavar="N", help="length of the prompts of long (default: 1024)")
    add("--speed-category", metavar="NAME", help="of a SPEED-Bench file: low_entropy, mixed, high_entropy, coding, ...")
    add("--quick", action="store_true", help="a minute: chat, concurrency 1 and 4, one round; to see that it works")

    add = parser.add_argument_group("recorded traffic").add_argument
    add("--replay", type=Path, metavar="FILE", help='JSONL of {"path": ..., "body": {...}, "at": seconds}')
    add("--arm", action="append", metavar='NAME="FLAGS"', help="a server to compare; ratios are to the first")
    add("--limit", type=int, metavar="N", help="only the first N requests")
    add("--speed", type=float, metavar="X", help="of the recorded times, at --concurrency 0 (default: 1)")

    add = parser.add_argument_group("how").add_argument
    add("--device", help="SGLang's (default: cuda where torch sees a GPU, else cpu)")
    add(
        "--dtype",
        choices=("bfloat16", "float16", "float32"),
        help="default: bfloat16 where the CPU or GPU multiplies it, else float32",
    )
    add(
        "--keep-servers",
        dest="keep",
        action=argparse.BooleanOptionalAction,
        help="all servers stay up, and those whose turn it is not are stopped; else they start again each round "
        "(default: keep on a CPU)",
    )
    add("server_flags", nargs="*", metavar="-- FLAG ...", help="after --: flags of every server")

    add = parser.add_argument_group("result").add_argument
    add(
        "--out",
        type=Path,
        default=Path("build/bench.json"),
        metavar="FILE",
        help="JSON, a PNG beside it (default: build/bench.json)",
    )
    add("--resume", action="store_true", help="keep what --out has, if it was measured under the same conditions")
    add("--document", type=Path, metavar="PAGE", help="write the tables between the markers of this page, too")
    add("--render", action="store_true", help="measure nothing: picture, page and tables from --out")
    add("--check", action="store_true", help="measure nothing: is --document what --out says?")


def run(args: argparse.Namespace) -> int:
    """Measure, write JSON and picture, print the table."""
    from sglang_eagle31.tools.shared.server_process import ServerFailed

    if args.check:
        return _check(args)
    if not args.render:
        from sglang_eagle31.tools.bench import start

        try:
            start.run(options(args), sys.argv)
        except (ServerFailed, RuntimeError) as failure:
            kept = f"\nwhat was measured before is in {args.out}; --resume goes on" if args.out.exists() else ""
            print(f"{failure}{kept}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print(f"interrupted; what was measured is in {args.out}, and --resume goes on", file=sys.stderr)
            return 130
    _show(args)
    return 0


def options(args: argparse.Namespace) -> Any:
    """The options of a run. Raises ValueError for those that make no sense."""
    from sglang_eagle31.maths.shape import Shape
    from sglang_eagle31.tools.bench.arms import parse_arms
    from sglang_eagle31.tools.bench.options import Options
    from sglang_eagle31.tools.shared import device

    for name, least in LEAST.items():
        value = getattr(args, name)
        if value is not None and value < least:
            raise ValueError(f"--{name.replace('_', '-')} {value}: expected at least {least}; fix: leave it out")
    given: dict[str, Any] = dict(QUICK) if args.quick else {}
    for name in Options.__dataclass_fields__:
        if getattr(args, name, None) is not None:
            given[name] = getattr(args, name)
    if args.shape:
        given["shape"] = Shape.parse(args.shape)
    given.setdefault("device", device.here())
    if "dtype" not in given:
        given["dtype"], why = device.dtype_on(given["device"])
        print(f"[bench] {given['device']}, {given['dtype']}: {why}", file=sys.stderr, flush=True)
    given["flags"] = args.server_flags
    if args.replay is None:
        _only_with_replay(args)
    else:
        _not_with_replay(args)
        given["replay_arms"] = parse_arms(args.arm or [])
        given.setdefault("concurrency", [0] if _is_timed(args.replay) else [1])
    found = Options(**given)
    if min(found.concurrency, default=-1) < (0 if args.replay else 1):
        raise ValueError(
            f"--concurrency {_joined(found.concurrency)}: expected numbers from 1; fix: for example 1,4,16"
        )
    if not found.shape.steps:
        raise ValueError(f"--shape {found.shape}: drafts nothing, which is the arm none; fix: for example 3,1,4")
    return found


def _only_with_replay(args: argparse.Namespace) -> None:
    for flag in ("arm", "limit", "speed"):
        if getattr(args, flag) is not None:
            raise ValueError(f"--{flag}: only for recorded traffic; fix: --replay FILE, or leave it out")
    foreign = [flag for flag in args.server_flags if flag.startswith(("--speculative", "--eagle31-guard"))]
    if foreign:
        raise ValueError(f"{foreign[0]}: the arms have their own; fix: --shape and --head, or --replay with --arm")


def _not_with_replay(args: argparse.Namespace) -> None:
    for flag in ("arms", "prompts", "requests", "identity", "speed_category", "shape", "head", "document"):
        if getattr(args, flag) is not None:
            name = flag.replace("_", "-")
            raise ValueError(f"--{name}: not with --replay, whose arms and requests are given; fix: leave it out")


def _is_timed(path: Path) -> bool:
    from sglang_eagle31.tools.bench.replay import read

    return read(path, 1)[0].at is not None


def _show(args: argparse.Namespace) -> None:
    import json

    from rich.console import Console

    from sglang_eagle31.tools.bench import document, picture, report

    if not args.out.exists():
        raise ValueError(f"--out {args.out}: nothing was measured there; fix: run without --render")
    record = json.loads(args.out.read_text(encoding="utf-8"))
    image = args.out.with_suffix(".png")
    drawn = picture.draw(record, image)
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print(report.render(record))
    console.print(f"everything measured: {args.out}{f', picture: {image}' if drawn else ''}", markup=False)
    if args.document:
        args.document.write_text(document.fill(args.document, args.out), encoding="utf-8")


def _check(args: argparse.Namespace) -> int:
    from sglang_eagle31.tools.bench import document

    if args.document is None:
        raise ValueError("--check: of which page? fix: --document PAGE")
    if args.document.read_text(encoding="utf-8") == document.fill(args.document, args.out):
        return 0
    fix = f"python -m sglang_eagle31 bench --out {args.out} --document {args.document}"
    print(
        f"{args.document} is not what {args.out} says; fix: {fix}{' --render' if args.out.exists() else ''}",
        file=sys.stderr,
    )
    return 1


def _joined(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
