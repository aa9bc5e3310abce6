"""One pair of heads served in another way, asked the same questions as in docs/drift.md: what is a missed goal's fault?

    python launch/twins_at.py --tree 8,1,9 --what "chains of 8"      the shipped pair; adds to docs/results/tries.json
    python launch/twins_at.py --name random --pair 0=EAGLE3,EAGLE31 --probe               another pair, in the same tree
    python launch/twins_at.py --name window --contexts 4096 --server "--speculative-draft-window-size 511"

Each head has a server of its own, which answers greedily. Kept are by condition accept length, acceptance by depth and
the twins' ratio, with 95 % intervals over prompts (those where an answer loops are left out), and with ``--probe`` what
the drift probe finds in a chain of 8 drafted steps.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import results
import twins

from sglang_eagle31.tools.bench.results import portable
from sglang_eagle31.tools.demo.report import Tree
from sglang_eagle31.tools.robust.statistics import Array, acceptance, length, ratio, table
from sglang_eagle31.tools.shared.demo_model import PROMPTS, prepare_model
from sglang_eagle31.tools.shared.provenance import provenance
from sglang_eagle31.tools.shared.server_process import serve_sglang

Found = dict[str, dict[int, list[int]]]
"""Histograms of accepted drafts, by condition and prompt."""


def parse_args() -> argparse.Namespace:
    """The command line; prompts, device and dtype as ``results.ask`` wants them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", help="in the file (default: the tree)")
    parser.add_argument("--what", help="the same for people (default: the name)")
    parser.add_argument("--pair", type=results.parse_pair, metavar="SEED=EAGLE3,EAGLE31", default=results.shipped())
    parser.add_argument("--tree", default="5,4,16", metavar="S,K,D", help="steps, topk, draft tokens (default: 5,4,16)")
    parser.add_argument("--server", type=shlex.split, default=[], metavar="FLAGS", help="further flags of the servers")
    parser.add_argument("--probe", action="store_true", help="the drift probe too")
    parser.add_argument("--conditions", default="regular", help="as of robust, or none (default: regular)")
    parser.add_argument("--limit", type=int, default=20, help="first N prompts (default: 20)")
    parser.add_argument("--contexts", default="none", help="tokens, as of robust (default: none)")
    parser.add_argument("--context-prompts", type=int, default=16, help="prompts a context length (default: 16)")
    parser.add_argument("--tokens", type=int, default=96, help="longest answer (default: 96)")
    parser.add_argument("--concurrency", type=int, default=4, help="requests at a time (default: 4)")
    return parser.parse_args(namespace=argparse.Namespace(prompts=PROMPTS, device="cpu", dtype="bfloat16"))


def main() -> int:
    """Measure both heads and add the pair to the file."""
    args = parse_args()
    tree = Tree(*(int(number) for number in args.tree.split(",")))
    found = {variant: ask(args, variant, tree) for variant in twins.VARIANTS}
    entry: dict[str, Any] = {"what": args.what or args.name or args.tree, "tree": args.tree, "server": args.server}
    entry["conditions"] = {name: summary(found, name, tree.steps) for name in found["eagle3"]}
    if args.probe:
        entry["drift"] = {variant: probe(args, variant) for variant in twins.VARIANTS}
    name = args.name or args.tree
    print(json.dumps({name: entry}, indent=1))
    record: dict[str, Any] = json.loads(twins.TRIES.read_text()) if twins.TRIES.exists() else {}
    record[name] = entry | {"measured": provenance(sys.argv)}
    twins.TRIES.write_text(portable(json.dumps(record, indent=1), twins.ROOT) + "\n")
    return 0


def ask(args: argparse.Namespace, variant: str, tree: Tree) -> Found:
    """What one head's server accepts."""
    model, folder = prepare_model(), folder_of(variant)
    flags = results.flags(args.pair.heads[variant], args, tree) + args.server
    parts = {"conditions": ("none", args.conditions, args.limit)} if args.conditions != "none" else {}
    if args.contexts != "none":
        parts["contexts"] = (args.contexts, "regular", args.context_prompts)
    found: Found = {}
    with serve_sglang(f"twins-{variant}", model, flags, log_dir=Path("build")) as server:
        for part, (contexts, conditions, limit) in parts.items():
            path = folder / f"{part}.json"
            results.ask(server, model, args, path, contexts, conditions, limit)
            for one in json.loads(path.read_text())["heads"][0]["conditions"]:
                found.setdefault(one["condition"], twins.kept(one))
    return found


def probe(args: argparse.Namespace, variant: str) -> dict[str, Any]:
    """The drift probe's means by depth, and the growth of the state that is fed back."""
    folder = folder_of(variant)
    results.probe(args.pair.heads[variant], prepare_model(), args, folder)
    prompts = json.loads((folder / "drift.json").read_text())["per_prompt"]
    return {"rms_growth": twins.growth([prompts]), **twins.means_by_depth(prompts)}


def folder_of(variant: str) -> Path:
    """Where the answers are kept until the next call."""
    folder = Path("build/twins") / variant
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def summary(found: dict[str, Found], condition: str, steps: int) -> dict[str, Any]:
    """Both twins under one condition, over the prompts that count for both."""
    rows = {variant: found[variant][condition] for variant in twins.VARIANTS}
    both = sorted(rows["eagle3"].keys() & rows["eagle31"].keys())
    tables: dict[str, Array] = {v: np.array([table([one[p]], steps)[0] for p in both]) for v, one in rows.items()}
    entry: dict[str, Any] = {"prompts": len(both)}
    for variant, histograms in tables.items():
        one = acceptance(histograms, 0)
        conditional = [twins.estimate(each) for each in one.conditional]
        entry[variant] = {"accept_length": twins.estimate(one.length), "rounds": one.rounds, "conditional": conditional}
    entry["ratio"] = twins.estimate(ratio(length, tables["eagle31"], tables["eagle3"], 0))
    return entry


if __name__ == "__main__":
    sys.exit(main())
