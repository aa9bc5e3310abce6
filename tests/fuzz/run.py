"""Break thousands of valid heads at random: each has to be exact against the reference, or refused with a reason.

python tests/fuzz/run.py --count 5000 --seed 1
python tests/fuzz/run.py --only nemo31:config_move:1234      one case again, with what was done and what came out

Writes build/fuzz.json: the counts, and every wrong case. Exit status 1 when there is one.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import resource
import signal
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/integration"), str(ROOT / "tests/fuzz")]

DEADLINE = 60
"""Seconds for one case."""
MEMORY = 24 << 30
"""Address space of the process: what a hostile header claims must not be allocated."""


def plan(count: int, seed: int) -> list[str]:
    """Case names ``VARIANT:KIND:SEED``: every variant and kind in turn, so that each meets each."""
    from case import KINDS, VARIANTS

    rng = random.Random(seed)
    pairs = [(variant, kind) for variant in VARIANTS for kind in (*KINDS, "pair")]
    cases: list[str] = []
    while len(cases) < count:
        cases += [f"{variant}:{kind}:{rng.randrange(2**32)}" for variant, kind in rng.sample(pairs, len(pairs))]
    return cases


def main() -> int:
    """Run, report, and say whether anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=3000, help="mutated heads (default 3000)")
    parser.add_argument("--seed", type=int, default=0, help="of the whole run (default 0)")
    parser.add_argument("--only", nargs="+", metavar="VARIANT:KIND:SEED", help="run these cases, and say everything")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build/fuzz.json", help="the report (default build/fuzz.json)"
    )
    args = parser.parse_args()
    signal.signal(signal.SIGALRM, _too_long)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    from case import run

    outcomes: list[Any] = []
    with tempfile.TemporaryDirectory() as place:
        cases = args.only or plan(args.count * 2, args.seed)  # more than enough: some heads have nothing to mutate
        for outcome in (_timed(run, name, Path(place)) for name in _bar(cases, args.count, bool(args.only))):
            if outcome.result == "nothing" and not args.only:
                continue
            outcomes.append(outcome)
            if args.only or outcome.result == "wrong":
                _say(f"{outcome.result:8} {outcome.case}  [{outcome.mutation}]\n         {outcome.detail}")
            if len(outcomes) >= args.count:
                break
    report = summary(outcomes, args)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=1))
    print(f"{report['counts']}  {args.out}")
    return 1 if report["wrong"] else 0


def summary(outcomes: list[Any], args: argparse.Namespace) -> dict[str, Any]:
    """Counts in all, by variant and by kind; wrong cases in full."""
    tables: dict[str, dict[str, Counter[str]]] = {"variants": {}, "kinds": {}}
    for outcome in outcomes:
        variant, kind, _ = outcome.case.split(":")
        for table, row in (("variants", variant), ("kinds", kind)):
            tables[table].setdefault(row, Counter())[outcome.result] += 1
    packages = ("sglang", "sglang-eagle31", "torch", "transformers", "safetensors")
    return {
        "argv": sys.argv[1:],
        "seed": args.seed,
        "counts": dict(Counter(outcome.result for outcome in outcomes)),
        **{table: dict(sorted(rows.items())) for table, rows in tables.items()},
        "slowest_resolve_seconds": max((outcome.seconds for outcome in outcomes), default=0.0),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "wrong": [asdict(outcome) for outcome in outcomes if outcome.result == "wrong"],
    }


def _timed(run: Any, name: str, place: Path) -> Any:
    signal.alarm(DEADLINE)
    outcome = run(name, place)
    signal.alarm(0)
    return outcome


def _too_long(number: int, frame: Any) -> None:
    raise TimeoutError(f"more than {DEADLINE} s")


def _bar(cases: list[str], count: int, quiet: bool) -> Any:
    from tqdm import tqdm

    return tqdm(cases, total=None if quiet else count, unit="head", disable=quiet, mininterval=2)


def _say(text: str) -> None:
    from tqdm import tqdm

    tqdm.write(text)


if __name__ == "__main__":
    sys.exit(main())
