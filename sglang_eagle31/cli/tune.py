"""``tune``: which steps, topk and draft tokens pay, and when not to speculate."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sglang_eagle31.cost.simulate import Answer, Given, Simulation, read, simulate

HELP = "predict which draft shape pays from acceptance and cost, or that none does"
EPILOG = "The formulas, worked examples and how to read the answer: docs/tuning.md."
CLOSE = 1.05
"""Predicted gain below which no advice is given without a warning: costs and acceptance are rarely known to 5 %."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.epilog = EPILOG
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--simulate", action="store_true", help="calculate from the numbers given; no server is asked")
    parser.add_argument(
        "--input", type=Path, metavar="FILE", help="JSON object of the options' names; options override"
    )
    numbers = parser.add_argument_group("what is known")
    add = numbers.add_argument
    add(
        "--acceptance", type=_floats, metavar="A[,A...]", help="of each drafted token when those before it are accepted"
    )
    add("--recovery", type=_floats, metavar="R[,R...]", help="chance of the second choice when the first is wrong, ...")
    add("--cost", type=float, metavar="C", help="of a draft step, in target steps; say 0.05")
    add("--verify-slope", type=float, metavar="S", help="of each further token of a pass, in target steps (default 0)")
    add("--free-tokens", type=float, metavar="N", help="tokens of a pass that cost as much as one (default 1)")
    search = parser.add_argument_group("what is looked at")
    add = search.add_argument
    add("--concurrency", type=_ints, metavar="N[,N...]", help="requests of a round (default 1)")
    add("--max-steps", type=int, metavar="N", help="deepest draft (default 10)")
    add("--topk", type=_ints, metavar="N[,N...]", help="of trees, with --recovery (default 2,4,8)")
    add("--draft-tokens", type=_ints, metavar="N[,N...]", help="of trees (default 4,8,16,32,64)")
    parser.add_argument("--json", action="store_true", help="print the JSON object instead of the tables")


def run(args: argparse.Namespace) -> int:
    """Print the grid and the answer.

    Raises:
        ValueError: a number that is missing or makes no sense, a file that cannot be read.
    """
    values: dict[str, Any] = read(args.input) if args.input else {}
    for name in Given.__dataclass_fields__:
        if getattr(args, name) is not None:
            values[name] = getattr(args, name)
    result = simulate(Given.from_json(values, f"--input {args.input}" if args.input else "tune"))
    if args.json:
        print(json.dumps(result.to_json(), indent=1))
        return 0
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(_table(result))
    for answer in result.answers:
        console.print(verdict(answer), highlight=False, soft_wrap=True)
    return 0


def verdict(answer: Answer) -> str:
    """The answer for one batch size in words."""
    best, rival = answer.best, answer.runner_up
    if not answer.speculate:
        said = (
            f"do not speculate: even {rival.shape} is predicted at {rival.speedup:.2f}x ({rival.expected:.2f} tokens "
            f"in the time of {rival.expected / rival.speedup:.2f} plain steps)"
        )
        if answer.acceptance is not None:
            said += f"; it would break even at acceptance {answer.acceptance:.2f}"
    else:
        said = f"{best.shape} is predicted at {best.speedup:.2f}x ({best.expected:.2f} tokens a round)"
        if answer.acceptance is not None:
            said += f"; it breaks even at acceptance {answer.acceptance:.2f}"
        if answer.batch is not None:
            said += f"{' and' if answer.acceptance is not None else '; it'} pays up to concurrency {answer.batch}"
        said += f"\n  {best.shape.flags()}"
    if answer.speculate and best.speedup < CLOSE:
        said += "\n  That is too close to call from calculated numbers."
    if answer.speculate and answer.at_edge:
        said += "\n  It is the deepest that was looked at; a larger --max-steps may find a better one."
    return f"concurrency {best.batch}: {said}"


def _table(result: Simulation) -> Table:
    batches = result.given.concurrency
    table = Table(title="predicted speed-up against no speculation, by concurrency")
    for name in ("steps", "topk", "draft tokens", "tokens a round", *(f"{batch}" for batch in batches)):
        table.add_column(name, justify="right")
    count = len(result.predictions) // len(batches)
    fastest = {(one.best.shape, one.best.batch) for one in result.answers}
    for row in range(count):
        cells = result.predictions[row::count]
        shape = cells[0].shape
        marked = [f"{one.speedup:.2f}{'*' if (shape, one.batch) in fastest else ' '}" for one in cells]
        table.add_row(
            *(str(number) for number in (shape.steps, shape.topk, shape.draft_tokens)),
            f"{cells[0].expected:.2f}",
            *marked,
        )
    return table


def _floats(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _ints(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]
