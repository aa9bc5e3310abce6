"""Walks of many shapes until so many turns of the scheduler are done; the figures go to stdout as JSON.

    python tests/rollback/rollback_soak.py --rounds 10000 --seed 0

The first walk whose state is not the model's ends it with exit code 1, and says with which seed it can be run again.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections import Counter
from random import Random

from rollback_shapes import seeded
from rollback_walk import Walk
from rollback_world import world

TURNS = 250
"""Turns a walk, before it is drained."""


def main() -> int:
    """Run the walks; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10_000, help="turns of the scheduler (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first walk (default %(default)s)")
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # SGLang warns of every retraction
    begin, turns, seed = time.monotonic(), 0, args.seed
    tally, accepted, caches = Counter[str](), Counter[int](), Counter[str]()
    while turns < args.rounds:
        shape, mix = seeded(seed)
        with world(shape, seed) as made:
            walk = Walk(made, Random(seed), mix)
            try:
                walk.run(TURNS)
            except Exception:
                print(f"seed {seed}, turn {walk.turns}: {shape}, {mix}", file=sys.stderr)
                raise
        turns, seed = turns + walk.turns, seed + 1
        caches[shape.cache] += walk.turns
        tally.update(walk.model.tally)
        accepted.update(walk.model.histogram)
    figures = {
        "rounds": turns,
        "walks": seed - args.seed,
        "leaks": 0,
        **tally,
        "verifications by accepted drafts": {depth: accepted[depth] for depth in sorted(accepted)},
        "rounds by cache": caches,
        "seconds": round(time.monotonic() - begin),
    }
    print(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
