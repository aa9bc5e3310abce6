"""``tune``: which steps, topk and draft tokens pay, and when not to speculate."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from sglang_eagle31.tools.shared.lists import integers, numbers

HELP = "find which draft shape pays on a running server or from given numbers, or that none does"
EPILOG = (
    "The formulas, what is measured and how to read the answer: docs/tuning.md. Exit status: 0 answered, 2 a mistake "
    "or a server that cannot be measured, 130 interrupted."
)
MEASURED = (
    *("prompts", "goal", "temperature", "max_new_tokens", "turns", "requests_per_turn", "confirm", "margin"),
    *("budget_seconds", "measure_grid", "out"),
)
CALCULATED = (
    *("input", "acceptance", "recovery", "cost", "verify_slope", "free_tokens"),
    *("max_steps", "topk", "draft_tokens"),
)
"""Options of one mode only."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.epilog = EPILOG
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--url", metavar="URL", help="measure an EAGLE31 server that runs, and is otherwise idle")
    mode.add_argument("--simulate", action="store_true", help="calculate from the numbers given; no server is asked")
    parser.add_argument("--concurrency", type=integers, metavar="N[,N...]", help="requests of a round (default 1)")
    parser.add_argument("--json", action="store_true", help="print the JSON object instead of the tables")
    _measuring(parser.add_argument_group("with --url"))
    _calculating(parser)


def _measuring(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--prompts", type=Path, metavar="FILE", help="JSONL of chats or /generate bodies such as the server is for")
    add("--goal", choices=("latency", "throughput"), help="of one user, or tokens of all (default throughput)")
    add("--temperature", type=numbers, metavar="T[,T...]", help="of all requests, a row each (default 0)")
    add("--max-new-tokens", type=int, metavar="N", help="longest answer (default 128)")
    add("--turns", type=int, metavar="N", help="of each measured shape, alternating (default 3)")
    add("--requests-per-turn", type=int, metavar="N", help="default: twice the concurrency")
    add("--confirm", type=int, metavar="N", help="shapes that are measured after the prediction (default 3)")
    add("--margin", type=float, metavar="G", help="realised gain below which none is advised (default 0.03)")
    add("--budget-seconds", type=float, metavar="S", help="fewer turns rather than more time (default 900)")
    add("--measure-grid", action="store_true", help="measure every shape as well, to check the pick; takes long")
    add("--out", type=Path, metavar="FILE", help="JSON; a picture beside it (default build/tune.json)")


def _calculating(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("with --simulate: what is known").add_argument
    add("--input", type=Path, metavar="FILE", help="JSON object of the options' names; options override")
    add(
        "--acceptance", type=numbers, metavar="A[,A...]", help="of each drafted token when those before it are accepted"
    )
    add("--recovery", type=numbers, metavar="R[,R...]", help="chance of the second choice when the first is wrong, ...")
    add("--cost", type=float, metavar="C", help="of a draft step, in target steps; say 0.05")
    add("--verify-slope", type=float, metavar="S", help="of each further token of a pass, in target steps (default 0)")
    add("--free-tokens", type=float, metavar="N", help="tokens of a pass that cost as much as one (default 1)")
    search = parser.add_argument_group("with --simulate: what is looked at")
    add = search.add_argument
    add("--max-steps", type=int, metavar="N", help="deepest draft (default 10)")
    add("--topk", type=integers, metavar="N[,N...]", help="of trees, with --recovery (default 2,4,8)")
    add("--draft-tokens", type=integers, metavar="N[,N...]", help="of trees (default 4,8,16,32,64)")


def run(args: argparse.Namespace) -> int:
    """Print the answer, measured or calculated.

    Raises:
        ValueError: a number that is missing or makes no sense, a file that cannot be read, a server that cannot be
            measured.
    """
    others = CALCULATED if args.url else MEASURED
    strange = [flag for flag in others if getattr(args, flag) is not None and getattr(args, flag) is not False]
    if strange:
        flag, mode = strange[0].replace("_", "-"), "--simulate" if args.url else "--url"
        raise ValueError(f"--{flag}: belongs to {mode}; fix: leave it out, or use {mode}")
    return _measure(args) if args.url else _calculate(args)


def _measure(args: argparse.Namespace) -> int:
    from sglang_eagle31.tools.tune.answer import Options
    from sglang_eagle31.tools.tune.run import Asked
    from sglang_eagle31.tools.tune.run import run as measure

    if args.prompts is None:
        raise ValueError("--prompts: not given; fix: a JSONL of chats or /generate bodies such as the server is for")

    def given(names: dict[str, str]) -> dict[str, Any]:
        return {name: getattr(args, flag) for name, flag in names.items() if getattr(args, flag) is not None}

    options = Options(**given({name: name for name in ("goal", "turns", "confirm", "margin")}), grid=args.measure_grid)
    names = {"max_new_tokens": "max_new_tokens", "requests": "requests_per_turn", "budget": "budget_seconds"}
    asked = Asked(
        args.url.rstrip("/"),
        args.prompts,
        options,
        tuple(args.concurrency or [1]),
        tuple(args.temperature or [0.0]),
        **given({**names, "out": "out"}),
    )
    try:
        measure(asked, sys.argv, as_json=args.json)
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
    return 0


def _calculate(args: argparse.Namespace) -> int:
    from rich.console import Console

    from sglang_eagle31.tools.tune.simulate import Given, read, simulate
    from sglang_eagle31.tools.tune.simulation_table import render, verdict

    values: dict[str, Any] = read(args.input) if args.input else {}
    for name in Given.__dataclass_fields__:
        if getattr(args, name) is not None:
            values[name] = getattr(args, name)
    result = simulate(Given.from_json(values, f"--input {args.input}" if args.input else "tune"))
    if args.json:
        print(json.dumps(result.to_json(), indent=1))
        return 0
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(render(result))
    for answer in result.answers:
        console.print(verdict(answer), highlight=False, soft_wrap=True)
    return 0
