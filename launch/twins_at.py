"""One pair of heads at another draft shape, by the same questions as docs/drift.md: is a missed goal the shape's fault?

    python launch/twins_at.py --tree 8,1,9                           the shipped pair; adds to docs/results/tries.json
    python launch/twins_at.py --name longer --pair 0=EAGLE3,EAGLE31  another pair, in the tree of docs/drift.md

Each head has a server of its own, which answers the first prompts greedily under ``regular``. Kept are accept length,
acceptance by depth and the twins' ratio, with 95 % intervals over prompts; prompts where an answer loops are left out.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import results
import twins

from sglang_eagle31.demo.model import prepare_model
from sglang_eagle31.demo.report import Tree, provenance
from sglang_eagle31.demo.servers import serve_sglang
from sglang_eagle31.robust.run import PROMPTS
from sglang_eagle31.robust.statistics import Array, acceptance, length, ratio, table

OUT = results.ROOT / "docs/results/tries.json"


def main() -> int:
    """Measure both heads and add the pair to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", help="in the file (default: the tree)")
    parser.add_argument("--pair", type=results.parse_pair, metavar="SEED=EAGLE3,EAGLE31", default=results.shipped())
    parser.add_argument("--tree", default="5,4,16", metavar="S,K,D", help="steps, topk, draft tokens (default: 5,4,16)")
    parser.add_argument("--limit", type=int, default=20, help="first N prompts (default: 20)")
    parser.add_argument("--tokens", type=int, default=96, help="longest answer (default: 96)")
    parser.add_argument("--concurrency", type=int, default=4, help="requests at a time (default: 4)")
    args = parser.parse_args()
    args.prompts, args.device, args.dtype = PROMPTS, "cpu", "bfloat16"
    steps, topk, draft_tokens = (int(number) for number in args.tree.split(","))
    kept = {variant: ask(args, variant, Tree(steps, topk, draft_tokens)) for variant in twins.VARIANTS}
    both = sorted(kept["eagle3"].keys() & kept["eagle31"].keys())
    rows = {variant: np.array([table([found[p]], steps)[0] for p in both]) for variant, found in kept.items()}
    entry = {"tree": args.tree, "prompts": len(both), **summary(rows), "measured": provenance(sys.argv)}
    name = args.name or args.tree
    print(json.dumps({name: entry}, indent=1))
    record: dict[str, Any] = json.loads(OUT.read_text()) if OUT.exists() else {}
    OUT.write_text(results.portable(json.dumps(record | {name: entry}, indent=1)) + "\n")
    return 0


def ask(args: argparse.Namespace, variant: str, tree: Tree) -> dict[int, list[int]]:
    """Accepted drafts by prompt, as histograms."""
    model, folder = prepare_model(), Path("build/twins") / variant
    folder.mkdir(parents=True, exist_ok=True)
    flags = results.flags(args.pair.heads[variant], args, tree)
    with serve_sglang(f"twins-{variant}", model, flags, log_dir=Path("build")) as server:
        results.ask(server, model, args, folder / "regular.json", "none", "regular", args.limit)
    return twins.kept(json.loads((folder / "regular.json").read_text())["heads"][0]["conditions"][0])


def summary(rows: dict[str, Array]) -> dict[str, Any]:
    """Of both twins, histograms ``[P, steps + 1]`` of the same prompts."""
    found: dict[str, Any] = {}
    for variant, histograms in rows.items():
        one = acceptance(histograms, 0)
        conditional = [twins.estimate(each) for each in one.conditional]
        found[variant] = {"accept_length": twins.estimate(one.length), "rounds": one.rounds, "conditional": conditional}
    found["ratio"] = twins.estimate(ratio(length, rows["eagle31"], rows["eagle3"], 0))
    return found


if __name__ == "__main__":
    sys.exit(main())
