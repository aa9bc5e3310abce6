"""``drift``: what a head attends to and how its states grow by draft depth, offline or in a live server."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sglang_eagle31.server.probe.record import Record
from sglang_eagle31.tools.shared.demo_model import PROMPTS
from sglang_eagle31.tools.shared.override import add_override

HELP = "measure attention and hidden-state drift of a draft head by draft depth, offline or in a live server"
EPILOG = "Prints a table; with --out, writes drift.json and drift.png too. How to read them: docs/drift-probe.md."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.epilog = EPILOG
    parser.add_argument("head", metavar="HEAD", nargs="?", help="folder of the head, or a repository in the cache")
    parser.add_argument("--target", help="folder of the target model (offline)")
    parser.add_argument("--url", help="a live server started with --eagle31-drift-sample, instead of HEAD and --target")
    parser.add_argument(
        "--prompts", type=Path, metavar="FILE", help="JSONL of messages or input_ids (default: the demo's)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="at most N prompts")
    parser.add_argument("--steps", type=int, default=8, help="drafted rows of a round (default 8)")
    parser.add_argument("--topk", type=int, default=1, help="branches a step; 1 drafts a chain (default 1)")
    parser.add_argument("--rounds", type=int, default=16, help="rounds of each prompt (default 16)")
    parser.add_argument("--answer-tokens", type=int, default=128, help="the target's answer at most (default 128)")
    parser.add_argument("--seed", type=int, default=0, help="of the places from which is drafted (default 0)")
    add_override(parser)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for drift.json and drift.png (default: none, nothing is written)",
    )
    parser.add_argument("--json", action="store_true", help="print the JSON object instead of the table")


def run(args: argparse.Namespace) -> int:
    """Print the table, write what was asked for.

    Raises:
        ValueError: a head that cannot be run, a target or prompts that cannot be read, a server without a probe.
    """
    from rich.console import Console

    from sglang_eagle31.tools.drift import report
    from sglang_eagle31.tools.drift.verdict import judge
    from sglang_eagle31.tools.shared.provenance import provenance

    if bool(args.url) == bool(args.head):
        raise ValueError("give HEAD with --target, or --url; fix: one of the two")
    if args.limit is not None and args.limit < 1:
        raise ValueError(f"--limit {args.limit}: expected at least 1; fix: --limit 8")
    record, prompts, facts = _served(args.url) if args.url else _offline(args)
    verdict = judge(record)
    result = report.result(record, verdict, prompts, {**facts, "provenance": provenance(sys.argv)})
    title = f"{facts['head']} ({facts['variant']})"
    if args.json:
        print(json.dumps(result, indent=1))
    else:
        console = Console(width=None if sys.stdout.isatty() else 160)
        console.print(report.render(title, record, verdict))
    if args.out:
        from sglang_eagle31.tools.drift.picture import draw

        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "drift.json").write_text(json.dumps(result, indent=1) + "\n")
        draw(args.out / "drift.png", Path(title).name, record, verdict)
        print(f"wrote {args.out / 'drift.json'} and {args.out / 'drift.png'}", file=sys.stderr)
    return 0


def _served(url: str) -> tuple[Record, list[Record], dict[str, Any]]:
    from sglang_eagle31.tools.drift.served import collect
    from sglang_eagle31.tools.shared.server_info import server_info

    record, facts = collect(server_info(url), url)
    return record, [], facts


def _offline(args: argparse.Namespace) -> tuple[Record, list[Record], dict[str, Any]]:
    from tqdm import tqdm

    from sglang_eagle31.head.check import resolve
    from sglang_eagle31.head.checkpoint import Checkpoint, local_folder
    from sglang_eagle31.head.overrides import pairs
    from sglang_eagle31.head.target import read_target
    from sglang_eagle31.tools.drift.head import read_head
    from sglang_eagle31.tools.drift.offline import Settings, probe
    from sglang_eagle31.tools.drift.target import TargetModel, read_prompts

    if not args.target:
        raise ValueError("--target is not given, and the head reads a target's states; fix: --target FOLDER")
    settings = Settings(args.steps, args.topk, args.rounds, args.answer_tokens, args.seed)
    checkpoint = Checkpoint.read(local_folder(args.head))
    folder = local_folder(args.target)
    reading, reasons = resolve(checkpoint, read_target(str(folder)), pairs(args.override))
    if reasons:
        raise ValueError(f"the head {args.head} cannot be run:\n" + "\n".join(f"  - {reason}" for reason in reasons))
    spec = reading.spec()
    if args.topk > spec.draft_vocab_size:
        raise ValueError(f"--topk {args.topk}: the head has {spec.draft_vocab_size} draft tokens; fix: fewer branches")
    target = TargetModel.load(str(folder))
    head = read_head(checkpoint, spec, reading.names, target.embedding, target.head)
    ids = read_prompts(args.prompts or PROMPTS, target, args.limit)
    records = [probe(head, target, one, settings) for one in tqdm(ids, unit="prompt", file=sys.stderr)]
    total = Record()
    for one in records:
        total.merge(one)
    facts = {
        "head": str(checkpoint.folder),
        "variant": spec.variant,
        "target": str(folder),
        "prompts": str(args.prompts or PROMPTS.name),
        "settings": asdict(settings),
        "spec": spec.to_json(),
    }
    return total, records, facts
