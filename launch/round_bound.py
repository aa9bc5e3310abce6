"""How near is a round to what its acceptance allows, with the weights as they are and with packed ones?

    python launch/round_bound.py [--concurrency 1] [--turns 4]      writes docs/results/round.json

Two EAGLE31 servers of the demo model take turns, one with ``--eagle31-pack-weights off``. Each is asked the same
prompts without a draft and in several shapes, pinned per request. With E tokens a round, N draft steps and c, the time
of a draft step in plain steps of the same server, speculation gains at most E / (N c + 1): the bound of a target that
verifies any width in the time of one token. ``of_bound`` is the gain that was measured, by it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from guard_phases import FLAGS
from tqdm import tqdm

from sglang_eagle31.maths.shape import NO_SPECULATION, Shape
from sglang_eagle31.tools.bench.arms import GUARD_FLAG, Arm
from sglang_eagle31.tools.bench.turns import Turns, turns
from sglang_eagle31.tools.shared.demo_model import HEAD, PROMPTS, prepare_model
from sglang_eagle31.tools.shared.provenance import provenance
from sglang_eagle31.tools.shared.requests_file import read_requests
from sglang_eagle31.tools.shared.server_process import serve_sglang
from sglang_eagle31.tools.tune.client import HttpLoad
from sglang_eagle31.tools.tune.learn import accept_length, learn
from sglang_eagle31.tools.tune.turns import Cycles, run_cycles

MOST = Shape(5, 4, 16)
SHAPES = (NO_SPECULATION, *map(Shape.parse, ("1,1,2", "3,1,4", "5,1,6", "3,4,8", "5,4,8", "5,4,16")))
ARMS = {"plain": "off", "packed": "on"}


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--turns", type=int, default=4, help="of each shape and server (default: 4)")
    parser.add_argument("--requests", type=int, default=8, help="of a turn (default: 8)")
    parser.add_argument("--tokens", type=int, default=40, help="longest answer (default: 40)")
    parser.add_argument("--out", type=Path, default=Path("docs/results/round.json"))
    args = parser.parse_args()
    users = ["--max-running-requests", str(args.concurrency)]
    with turns(prepare_model(), [*FLAGS, *users], Path("build/round"), True, serve_sglang) as turn:
        cycles = measure(args, turn)
    named = {name: getattr(args, name) for name in ("concurrency", "turns", "requests", "tokens")}
    conditions = {
        **provenance(sys.argv),
        **named,
        "prompts": len(read_requests(PROMPTS, flag="--prompts")),
        "head": HEAD.name,
    }
    first = cycles["plain"]
    found = {name: record(one, first, args.concurrency) for name, one in cycles.items()}
    args.out.write_text(json.dumps({"weights": found, "conditions": conditions}, indent=1) + "\n")
    for name, one in found.items():
        print(f"{name} weights: c {one['draft_cost']:.3f}, a further token {one['verify_slope']:.3f} plain steps")
        for shape, row in one["shapes"].items():
            print(f"  {shape}: " + ", ".join(f"{key} {value:.2f}" for key, value in row.items()))
    return 0


def measure(args: argparse.Namespace, turn: Turns) -> dict[str, Cycles]:
    """Every server's turns, of which each cycle has one of each shape."""
    flags = ["--speculative-algorithm", "EAGLE31", "--speculative-draft-model-path", str(HEAD), *MOST.flags().split()]
    arms = [Arm(n, (*flags, GUARD_FLAG, "observe", "--eagle31-pack-weights", pack)) for n, pack in ARMS.items()]
    prompts = read_requests(PROMPTS, flag="--prompts")
    parts: dict[str, list[Cycles]] = {arm.name: [] for arm in arms}
    with tqdm(total=len(arms) * args.turns * len(SHAPES), unit="turn") as bar:
        for number in range(args.turns):
            for arm in arms if number % 2 else arms[::-1]:
                with turn(arm) as server:
                    load = HttpLoad(server.url, prompts, 0.0, args.concurrency, args.tokens, args.requests)
                    shapes = SHAPES if number % 2 else (SHAPES[0], *SHAPES[:0:-1])
                    one = run_cycles(load, shapes, [number], lambda _: False, time.monotonic, bar.update)
                    ordered = [[one.of(shape)[0] for shape in SHAPES]]
                    parts[arm.name].append(Cycles(list(SHAPES), ordered, one.requests))
    return {
        name: Cycles(list(SHAPES), [cycle for one in some for cycle in one.turns], sum(one.requests for one in some))
        for name, some in parts.items()
    }


def record(cycles: Cycles, first: Cycles, batch: int) -> dict[str, Any]:
    """Costs of one server, and of each shape the tokens of a round, its gain and the bound.

    ``gain`` is against no speculation on the same server, ``of_first`` against that on the first server.
    """
    learnt = learn(cycles, batch)
    c = learnt.draft_cost
    rows = {}
    for shape in SHAPES[1:]:
        tokens, gain = accept_length(cycles.of(shape)), cycles.gain(shape, "throughput")
        bound = tokens / (shape.steps * c + 1)
        plain = zip(cycles.of(shape), first.of(NO_SPECULATION), strict=True)
        of_first = median(one.rate("throughput") / other.rate("throughput") for one, other in plain)
        rows[str(shape)] = {
            "tokens": tokens,
            "bound": bound,
            "gain": gain,
            "of_bound": gain / bound,
            "of_first": of_first,
        }
    seconds = {str(shape): value for shape, value in learnt.measured.items()}
    return {"draft_cost": c, "verify_slope": learnt.verify_slope, "round_seconds": seconds, "shapes": rows}


if __name__ == "__main__":
    sys.exit(main())
