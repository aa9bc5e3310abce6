"""Is the tuner's pick the best of the grid? Tune the demo model, then measure every shape, and compare.

    python launch/tune_grid.py [--limits 5,4,16] [--concurrency 1]      writes docs/results/tune.json and a picture

One server of the demo model with the guard on ``observe``. With as many turns as it takes to ask all prompts, the tuner
and the grid answer the same questions, so that what differs between them is time alone.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from guard_phases import FLAGS

from sglang_eagle31.maths.shape import Shape
from sglang_eagle31.tools.bench.results import portable
from sglang_eagle31.tools.shared.demo_model import HEAD, PROMPTS, prepare_model
from sglang_eagle31.tools.shared.server_process import serve_sglang
from sglang_eagle31.tools.tune.answer import Options
from sglang_eagle31.tools.tune.run import Asked, run


def main() -> int:
    """Serve and tune."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", type=Shape.parse, default=Shape(5, 4, 16), help="largest shape (default: 5,4,16)")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--turns", type=int, default=4, help="of each shape (default: 4)")
    parser.add_argument("--requests-per-turn", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=40, help="longest answer (default: 40)")
    parser.add_argument("--goal", default="throughput")
    parser.add_argument("--out", type=Path, default=Path("docs/results/tune.json"))
    args = parser.parse_args()
    speculation = ["--speculative-algorithm", "EAGLE31", "--speculative-draft-model-path", str(HEAD)]
    speculation += [*args.limits.flags().split(), "--eagle31-guard", "observe"]
    users = ["--max-running-requests", str(args.concurrency)]
    with serve_sglang("tune", prepare_model(), [*FLAGS, *users, *speculation], log_dir=Path("build")) as server:
        options = Options(goal=args.goal, turns=args.turns, grid=True)
        each, tokens = args.requests_per_turn, args.tokens
        asked = Asked(server.url, PROMPTS, options, (args.concurrency,), (0.0,), tokens, each, 1800.0, args.out)
        run(asked, sys.argv)
    args.out.write_text(portable(args.out.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
