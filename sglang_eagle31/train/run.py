"""What ``python -m sglang_eagle31 train`` does, from its parsed arguments."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from sglang_eagle31.train import initial, vocab
from sglang_eagle31.train.data import Sample, answer_tokens, load_shards, read_jsonl
from sglang_eagle31.train.evaluate import Acceptance
from sglang_eagle31.train.export import export
from sglang_eagle31.train.loop import Data, Options, Trainer
from sglang_eagle31.train.make_data import AnswerOptions, answer_prompts, features_of
from sglang_eagle31.train.model import DraftHead, config_for
from sglang_eagle31.train.prompts import CORPORA, Prompt, all_prompts
from sglang_eagle31.train.target import Target, load_target


def run(args: argparse.Namespace) -> int:
    """Make the samples that are missing, train, export the best head. Returns 0."""
    if args.threads:
        torch.set_num_threads(args.threads)
    if (args.out / "checkpoint.pt").exists() != args.resume and not args.make_data:
        state, fix = ("no", "leave --resume out") if args.resume else ("a", "add --resume, or choose another folder")
        raise ValueError(f"--out {args.out}: there is {state} checkpoint.pt in it; {fix}")
    _options(args)  # a mistake shows before the slow part
    torch.manual_seed(args.seed)
    dtype = torch.float32 if args.device == "cpu" else torch.bfloat16
    target, tokenizer = load_target(args.target, _boundaries(args.layers), args.device, dtype)
    samples = args.samples or args.out / "samples"
    if args.make_data or not list(samples.glob("shard-*.safetensors")):
        kept = _make_samples(args, target, tokenizer, samples)
        print(f"{kept} answer tokens in {samples}")
        if args.make_data:
            return 0
    held_out = _held_out(args, target, tokenizer)
    train = [s for s in load_shards(samples, len(target.boundaries)) if s.info["id"] not in _ids(held_out)]
    trainer, facts = _prepare(args, target, train, held_out)
    del target
    if args.resume:
        trainer.resume()
    head_dir = args.head_dir or args.out / "head"
    trainer.on_best = lambda score: _export(head_dir, trainer, facts, score)
    trainer.run()
    if not held_out:
        _export(head_dir, trainer, facts, None)
    print(f"head: {head_dir}")
    return 0


def _boundaries(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--layers {text}: give boundaries as numbers, for example 2,15,27") from None


def _options(args: argparse.Namespace) -> Options:
    return Options(**{field.name: getattr(args, field.name) for field in fields(Options) if hasattr(args, field.name)})


def _share(text: str) -> tuple[int, int]:
    first, _, second = text.partition("/")
    if not (first.isdigit() and second.isdigit() and int(first) < int(second)):
        raise ValueError(f"--worker {text}: give I/N with I below N, for example 0/2 and 1/2")
    return int(first), int(second)


def _ids(samples: list[Sample]) -> set[str]:
    return {s.info["id"] for s in samples}


def _make_samples(args: argparse.Namespace, target: Target, tokenizer: Any, out: Path) -> int:
    if (args.data is None) == (args.prompts is None):
        raise ValueError("--data / --prompts: give exactly one of them (there are no samples yet)")
    worker, workers = _share(args.worker)
    if args.data is not None:
        return features_of(target, tokenizer, args.data, out, args.max_length)
    if args.prompts == "demo":
        from sglang_eagle31.demo.model import default_cache_dir

        prompts = [p for p in all_prompts(default_cache_dir(), args.seed) if not p.held_out]
    else:
        prompts = _prompts(Path(args.prompts))
    return answer_prompts(
        target,
        tokenizer,
        prompts[worker::workers],
        out,
        AnswerOptions(batch=args.data_batch, max_new_tokens=args.max_new_tokens, seed=args.seed),
        worker=worker,
        minutes=args.data_minutes,
    )


def _prompts(path: Path) -> list[Prompt]:
    return [
        Prompt(str(e.get("id", i)), str(e.get("source", path.name)), str(e.get("topic", "")), e["messages"], False)
        for i, e in enumerate(read_jsonl(path))
    ]


def _held_out(args: argparse.Namespace, target: Target, tokenizer: Any) -> list[Sample]:
    """Greedy answers to --held-out, made once; answers that loop were cut where the loop starts."""
    if args.held_out is None:
        return []
    folder = args.out / "held_out"
    if not list(folder.glob("shard-*.safetensors")):
        options = AnswerOptions(batch=24, max_new_tokens=128, sampled_share=0, second_turns=False)
        answer_prompts(target, tokenizer, _prompts(args.held_out), folder, options)
    return load_shards(folder, len(target.boundaries))


def _prepare(
    args: argparse.Namespace, target: Target, train: list[Sample], held_out: list[Sample]
) -> tuple[Trainer, dict[str, Any]]:
    config = target.model.config
    counts = vocab.count_tokens(((s.ids, s.mask) for s in train), config.vocab_size)
    if args.resume:  # the data may have grown meanwhile; the vocabulary must not change
        used = torch.load(args.out / "checkpoint.pt", weights_only=True)["used"].cpu()
    else:
        used = vocab.choose(counts, args.draft_vocab)
    held_counts = vocab.count_tokens(((s.ids, s.mask) for s in held_out), config.vocab_size)
    head = DraftHead(config_for(config, args.variant, target.boundaries, len(used)))
    embedding = target.embedding.float().cpu()
    rows = target.head.float().cpu()[used]
    gain = target.model.model.norm.weight.float().cpu()
    facts: dict[str, Any] = {
        "target": Path(args.target).name,
        "head": head.config.to_dict(),
        "data": _sources(args, train),
        "held_out": {"prompts": len(held_out), "answer_tokens": answer_tokens(held_out)},
        "vocabulary_coverage": {"train": vocab.coverage(counts, used), "held_out": vocab.coverage(held_counts, used)},
    }
    if args.init == "closed-form" and not args.resume:
        facts["closed_form_explained_variance"] = initial.closed_form(head, train, embedding, rows, gain, args.seed)
    print(f"train {len(train)} samples, {answer_tokens(train)} answer tokens; {facts['vocabulary_coverage']}")
    device = torch.device(args.device)
    data = Data(
        train,
        held_out,
        embedding.to(device),
        rows.to(device),
        used.to(device),
        vocab.maps(used, config.vocab_size)[1].to(device),
    )
    return Trainer(head.to(device), data, _options(args), args.out), facts


def _sources(args: argparse.Namespace, train: list[Sample]) -> dict[str, Any]:
    return {
        "answers": "written by the target itself",
        "samples": len(train),
        "tokens": sum(len(s.ids) for s in train),
        "answer_tokens": answer_tokens(train),
        "samples_by_source": dict(Counter(s.info["source"] for s in train)),
        "sampled_at_temperature": dict(Counter(str(s.info.get("temperature")) for s in train)),
        "corpora": CORPORA if args.prompts == "demo" or args.data is None else {},
    }


def _export(folder: Path, trainer: Trainer, facts: dict[str, Any], score: Acceptance | None) -> None:
    provenance = {**facts, "training": trainer.describe(), "evaluation": score.to_dict() if score else None}
    export(folder, trainer.head, trainer.data.used, provenance)
