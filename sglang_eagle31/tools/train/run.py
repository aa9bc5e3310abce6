"""What ``python -m sglang_eagle31 train`` does, from its parsed arguments."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from sglang_eagle31.tools.shared.provenance import provenance
from sglang_eagle31.tools.train.emit import emit
from sglang_eagle31.tools.train.evaluate import Score
from sglang_eagle31.tools.train.export import export
from sglang_eagle31.tools.train.loop import Trainer
from sglang_eagle31.tools.train.model import VARIANTS
from sglang_eagle31.tools.train.options import Options
from sglang_eagle31.tools.train.plot import plot
from sglang_eagle31.tools.train.prepare import Prepared, make_head, prepare


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Train, export the best head; or draw a finished run, or write another trainer's config. Returns 0."""
    if args.plot is not None:
        print(plot(args.plot))
        return 0
    if args.target is None:
        raise ValueError("--target: missing; fix: give the target's folder")
    options = read_options(args)  # a mistake shows before the slow part
    if args.emit is not None:
        kind, folder = args.emit
        for path in emit(kind, Path(folder), args, options):
            print(path)
        return 0
    if args.out is None:
        raise ValueError("--out: missing; fix: give a folder for the run")
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.pair:
        return _pair(args, options, argv)
    _check_folder(args.out, args.resume)
    prepared = prepare(args, args.out)
    _train(args, options, prepared, args.variant, args.out, argv)
    return 0


def read_options(args: argparse.Namespace) -> Options:
    """The options of the optimiser. Raises ValueError for values that cannot be."""
    given = {field.name: getattr(args, field.name) for field in fields(Options) if hasattr(args, field.name)}
    bf16 = args.precision == "bf16" or (args.precision == "auto" and args.device == "cuda")
    return Options(**given, bf16=bf16)


def _check_folder(out: Path, resume: bool) -> None:
    if (out / "checkpoint.pt").exists() != resume:
        state, fix = ("no", "leave --resume out") if resume else ("a", "add --resume, or choose another folder")
        raise ValueError(f"--out {out}: there is {state} checkpoint.pt in it; fix: {fix}")


def _train(
    args: argparse.Namespace, options: Options, prepared: Prepared, variant: str, out: Path, argv: Sequence[str]
) -> dict[str, Any]:
    """One head into ``out/head``; returns what its provenance file says."""
    resumed = args.resume and (out / "checkpoint.pt").exists()
    head, facts = make_head(args, prepared, variant, resumed)
    data = prepared.data
    coverage = prepared.facts["vocabulary_coverage"]
    print(f"{variant}: {len(data.train)} samples to train on, {len(data.held_out)} held out, vocabulary {coverage}")
    trainer = Trainer(head.to(data.embedding.device), data, options, out)
    if resumed:
        trainer.resume()
    folder = args.head_dir or out / "head"
    whole = {**provenance(_short(argv)), **prepared.facts, **facts}

    def write(score: Score | None) -> None:
        record = {**whole, "training": trainer.describe(), "evaluation": score.to_dict() if score else None}
        export(folder, trainer.head, data.used, record)

    trainer.on_best = write
    trainer.run()
    if not data.held_out:
        write(None)
    print(f"head: {folder}")
    print(f"curves: {plot(out)}")
    made: dict[str, Any] = json.loads((folder / "provenance.json").read_text())
    return made


def _pair(args: argparse.Namespace, options: Options, argv: Sequence[str]) -> int:
    """Both variants on the same batches in the same order, then pair.json beside them."""
    if options.minutes > 0:
        raise ValueError(f"--pair with --minutes {options.minutes}: twins take equal steps; fix: --steps or --epochs")
    if args.init not in ("closed-form", "random") or args.head_dir is not None:
        raise ValueError("--pair with --init FOLDER or --head-dir: twins start alike; fix: leave these out")
    folders = {variant: args.out / variant for variant in VARIANTS}
    if any((folder / "checkpoint.pt").exists() for folder in folders.values()) != args.resume:
        _check_folder(next((f for f in folders.values() if (f / "checkpoint.pt").exists()), args.out), args.resume)
    prepared = prepare(args, args.out)
    heads = {v: _train(args, options, prepared, v, folder, argv) for v, folder in folders.items()}
    digests = {made["training"]["data_digest"] for made in heads.values()}
    if len(digests) > 1:
        raise ValueError(f"--out {args.out}: the twins saw other data ({sorted(digests)}); fix: train both again")
    record = {
        **provenance(_short(argv)),
        "seed": options.seed,
        "steps": {v: made["training"]["steps"] for v, made in heads.items()},
        "best_step": {v: made["training"]["steps_done"] for v, made in heads.items()},
        "options": {field.name: getattr(options, field.name) for field in fields(Options)},
        "data_digest": digests.pop(),
        "heads": {v: f"{v}/head" for v in heads},
        "evaluation": {v: made["evaluation"] for v, made in heads.items()},
    }
    (args.out / "pair.json").write_text(json.dumps(record, indent=2) + "\n")
    print(f"pair: {args.out / 'pair.json'}")
    return 0


def _short(argv: Sequence[str]) -> list[str]:
    """Paths cut to their last part."""
    return [Path(a).name if a.startswith(("/", "~")) else a for a in argv]
