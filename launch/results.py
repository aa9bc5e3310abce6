"""Every figure of docs/drift.md: a pair of heads, EAGLE-3 and EAGLE 3.1, probed and served alike.

    python launch/results.py                                    the shipped pair; writes docs/results/ and docs/drift.md
    python launch/results.py --pair 1=RUN/eagle3/head,RUN/eagle31/head --pair 0=...      other pairs, by their seed
    python launch/results.py --render | --check                 pictures and tables from the JSON; are they up to date?

For each head: the drift probe in torch (chain of 8 drafted steps), and one server of its own with a tree of 5 steps,
topk 4 and 16 draft tokens, asked by ``robust`` greedily under every condition and context length. What is measured of a
head is kept in ``docs/results/pairs/``; a head whose files are there is not measured again (``--fresh`` does).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import twins
import twins_view

from sglang_eagle31.tools.bench.results import portable
from sglang_eagle31.tools.demo.report import Tree
from sglang_eagle31.tools.robust.run import Options, run
from sglang_eagle31.tools.shared.conditions import parse_conditions, parse_contexts
from sglang_eagle31.tools.shared.demo_model import PROMPTS, prepare_model
from sglang_eagle31.tools.shared.provenance import provenance
from sglang_eagle31.tools.shared.server_process import Server, ServerFailed, serve_sglang

ROOT = Path(__file__).resolve().parents[1]
HEADS = ROOT / "launch/heads"
SHIPPED = {"eagle3": HEADS / "smollm2-135m-eagle3", "eagle31": HEADS / "smollm2-135m-eagle31"}


@dataclass(frozen=True)
class Pair:
    """Twins: what differs between them is the variant."""

    seed: int
    heads: dict[str, Path]
    """By variant, ``eagle3`` and ``eagle31``."""


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", action="append", type=parse_pair, metavar="SEED=EAGLE3,EAGLE31")
    parser.add_argument("--model", type=Path, help="target (default: the demo model, prepared on first use)")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="held-out chats (default: the demo's 40)")
    parser.add_argument("--limit", type=int, help="first N prompts")
    parser.add_argument("--context-prompts", type=int, default=16, help="prompts a context length (default: 16)")
    parser.add_argument("--contexts", default="512,1024,2048,4096", help="tokens (default: 512,1024,2048,4096)")
    parser.add_argument("--tokens", type=int, default=128, help="longest answer (default: 128)")
    parser.add_argument("--concurrency", type=int, default=1, help="requests at a time (default: 1)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--fresh", action="store_true", help="measure heads again whose files are there")
    parser.add_argument("--render", action="store_true", help="only pictures and tables, from the JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 where docs/drift.md is not what the JSON says")
    return parser.parse_args()


def parse_pair(text: str) -> Pair:
    """``SEED=EAGLE3,EAGLE31``."""
    try:
        seed, folders = text.split("=", 1)
        eagle3, eagle31 = (Path(folder) for folder in folders.split(","))
        return Pair(int(seed), {"eagle3": eagle3, "eagle31": eagle31})
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not SEED=EAGLE3,EAGLE31") from None


def shipped() -> Pair:
    """The heads of this repository; their seed is in their provenance."""
    recorded = json.loads((SHIPPED["eagle31"] / "provenance.json").read_text())
    return Pair(int(recorded["training"]["parts"][0]["options"]["seed"]), SHIPPED)


def measure(pair: Pair, variant: str, args: argparse.Namespace, model: Path) -> None:
    """Write drift.json and robust-*.json of one head to its folder, unless they are there for these weights."""
    head, folder = pair.heads[variant], twins.folder_of(pair.seed, variant)
    weights = hashlib.sha256((head / "model.safetensors").read_bytes()).hexdigest()
    stamp = folder / "head.json"
    done = json.loads(stamp.read_text()) if stamp.exists() else {}
    if done.get("sha256") == weights and not args.fresh:
        print(f"[results] seed {pair.seed} {variant}: measured already ({folder})", flush=True)
        return
    print(f"[results] seed {pair.seed} {variant}: {head}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    probe(head, model, args, folder)
    serve(head, model, args, folder, variant)
    recorded = json.loads((head / "provenance.json").read_text())
    kept = {name: recorded.get(name) for name in ("data", "training", "evaluation", "held_out", "twin_of")}
    head_facts = {"sha256": weights, "bytes": (head / "model.safetensors").stat().st_size, "provenance": kept}
    stamp.write_text(portable(json.dumps(head_facts | {"measured": provenance(sys.argv)}, indent=1), ROOT) + "\n")


def probe(head: Path, model: Path, args: argparse.Namespace, folder: Path) -> None:
    """The drift probe, by its own command."""
    command = [sys.executable, "-m", "sglang_eagle31", "drift", str(head), "--target", str(model), "--steps", "8"]
    command += ["--prompts", str(args.prompts), "--out", str(folder)]
    if args.limit:
        command += ["--limit", str(args.limit)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found = folder / "drift.json"
    found.write_text(portable(found.read_text(), ROOT))


def serve(head: Path, model: Path, args: argparse.Namespace, folder: Path, variant: str) -> None:
    """Conditions and contexts on one server; ``regular`` on another that feeds back the other variant's state."""
    parts = {"conditions": ("none", args.limit), "contexts": (args.contexts, args.context_prompts)}
    with serve_sglang(f"results-{variant}", model, flags(head, args), log_dir=Path("build")) as server:
        for part, (contexts, limit) in parts.items():
            ask(
                server,
                model,
                args,
                folder / f"{part}.json",
                contexts,
                None if part == "conditions" else "regular",
                limit,
            )
    other = ["--eagle31-override", f"feedback={twins.SWITCHED[variant]}"]
    with serve_sglang(f"results-{variant}-switched", model, flags(head, args) + other, log_dir=Path("build")) as server:
        ask(server, model, args, folder / "switched.json", "none", "regular", args.limit)


def flags(head: Path, args: argparse.Namespace, tree: Tree | None = None) -> list[str]:
    """Of the server, with the tree of docs/drift.md or another."""
    found = ["--device", args.device, "--dtype", args.dtype, "--random-seed", "0", "--max-running-requests", "4"]
    found += ["--max-total-tokens", "16384", "--speculative-algorithm", "EAGLE31", "--eagle31-guard", "off"]
    return [*found, "--speculative-draft-model-path", str(head), *(tree or Tree(*twins.TREE)).flags()]


def ask(
    server: Server,
    model: Path,
    args: argparse.Namespace,
    path: Path,
    contexts: str,
    conditions: str | None,
    limit: int | None,
) -> None:
    """``robust``, and its JSON to ``path``."""
    options = Options(
        urls=[f"{path.parent.name}={server.url}"],
        model=model,
        conditions=parse_conditions(conditions),
        contexts=parse_contexts(contexts),
        prompts=args.prompts,
        limit=limit,
        max_tokens=args.tokens,
        concurrency=args.concurrency,
        out=Path("build/results"),
    )
    run(options, sys.argv)
    path.write_text(portable((options.out / "robust.json").read_text(), ROOT))


def main() -> int:
    """Measure what is missing, then write JSON, pictures and tables."""
    args = parse_args()
    if args.check:
        return twins_view.check()
    if not args.render:
        model = args.model or prepare_model()
        for pair in args.pair or [shipped()]:
            for variant in ("eagle3", "eagle31"):
                try:
                    measure(pair, variant, args, model)
                except ServerFailed as failure:
                    print(failure, file=sys.stderr)
                    return 2
        record: dict[str, Any] = twins.summarise() | {"written": provenance(sys.argv)}
        twins.RESULT.write_text(portable(json.dumps(record, indent=1), ROOT) + "\n")
    twins_view.render()
    return 0


if __name__ == "__main__":
    sys.exit(main())
