"""Everything that a run needs before its first step: samples, frozen target, draft vocabulary, start values."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sglang_eagle31.head.overrides import pairs
from sglang_eagle31.tools.shared.topic_prompts import file_prompts
from sglang_eagle31.tools.train import features, initial, vocab
from sglang_eagle31.tools.train.answers import AnswerOptions, answer_prompts, read_answers
from sglang_eagle31.tools.train.collect import counts
from sglang_eagle31.tools.train.data import Sample, load_shards, shards_in
from sglang_eagle31.tools.train.filters import without_held_out
from sglang_eagle31.tools.train.generate import TorchEngine
from sglang_eagle31.tools.train.loop import Data
from sglang_eagle31.tools.train.model import DraftHead, config_for
from sglang_eagle31.tools.train.start import read_head
from sglang_eagle31.tools.train.target import Target, load_target, parse_boundaries

CLOSED_FORM = 1000
"""Samples that the closed-form start values are made from."""
START = ("closed-form", "random")


@dataclass
class Prepared:
    """What runs of both variants share."""

    target: Target
    data: Data
    gain: Tensor
    """``[H_t]``: weight of the target's final norm."""
    facts: dict[str, Any]
    start: DraftHead | None = None
    """A finished head to continue (``--init FOLDER``)."""


def prepare(args: argparse.Namespace, out: Path) -> Prepared:
    """Load the target and the samples; samples that are held out are never among those to train on.

    Raises ValueError for every mistake in the arguments, before the slow part where that is possible.
    """
    dtype = torch.float32 if args.device == "cpu" else torch.bfloat16
    target, tokenizer = load_target(args.target, parse_boundaries(args.layers), args.device, dtype)
    embedding = target.embedding.float().cpu()
    start = used = None
    if args.init not in START:
        depth = args.trained_depth or args.ttt
        start, used = read_head(args.init, args.target, pairs(args.override), embedding, args.window, depth)
        target.boundaries = start.config.boundaries
    samples, held_out = _samples(args, target), _held_out(args, target, tokenizer, out)
    train = without_held_out(samples, held_out)
    if not train:
        raise ValueError("--samples: every sample is held out; fix: give other --held-out prompts")
    size = int(target.model.config.vocab_size)
    tokens = vocab.count_tokens(((s.ids, s.mask) for s in train), size)
    if used is None:
        used = _vocabulary(args, out, tokens)
    held_tokens = vocab.count_tokens(((s.ids, s.mask) for s in held_out), size)
    device = torch.device(args.device)
    data = Data(
        train,
        held_out,
        embedding.to(device),
        target.head.float().cpu()[used].to(device),
        used.to(device),
        vocab.maps(used, size)[1].to(device),
        lambda batch: features.completed(target, batch),
    )
    facts = {
        "target": Path(args.target).resolve().name,
        "data": {"answers": "written by the target itself", **counts(train), "dropped": len(samples) - len(train)},
        "held_out": counts(held_out),
        "vocabulary_coverage": {"train": vocab.coverage(tokens, used), "held_out": vocab.coverage(held_tokens, used)},
    }
    gain = target.model.model.norm.weight.float().cpu()
    return Prepared(target, data, gain, facts, start)


def make_head(
    args: argparse.Namespace, prepared: Prepared, variant: str, resumed: bool
) -> tuple[DraftHead, dict[str, Any]]:
    """A head with its start values (they do not matter if ``resumed``), the same for the same seed; facts about it."""
    torch.manual_seed(args.seed)
    depth = args.trained_depth or args.ttt
    if prepared.start is not None:
        if prepared.start.config.variant != variant:
            has = f"--init {args.init}: an {prepared.start.config.variant} head, expected {variant}"
            raise ValueError(f"{has}; fix: --variant {prepared.start.config.variant}")
        head = DraftHead(prepared.start.config)
        head.load_state_dict(prepared.start.state_dict())
        return head, {"head": head.config.to_dict(), "continued_from": Path(args.init).name}
    data, target = prepared.data, prepared.target
    size = len(data.used)
    head = DraftHead(config_for(target.model.config, variant, target.boundaries, size, args.window, depth))
    facts: dict[str, Any] = {"head": head.config.to_dict()}
    if args.init == "closed-form" and not resumed:
        samples = features.completed(target, data.train[:CLOSED_FORM])
        frozen = (data.embedding.cpu(), data.target_rows.cpu(), prepared.gain)
        facts["closed_form_explained_variance"] = initial.closed_form(head, samples, *frozen, args.seed)
    return head, facts


def _samples(args: argparse.Namespace, target: Target) -> list[Sample]:
    """Of --samples (shards), or of --data (a folder that `data` made): its shards, or its answers alone."""
    if (args.samples is None) == (args.data is None):
        raise ValueError("--data / --samples: give exactly one of them; fix: --data DIR as made by the command data")
    if args.samples is not None:
        return load_shards(args.samples, len(target.boundaries))
    return _of_folder(args.data, args.features, target)


def _of_folder(folder: Path, kind: str, target: Target) -> list[Sample]:
    shards = folder / "samples"
    if kind == "fly":
        return read_answers(folder / "answers").samples
    if not shards_in(shards) and (folder / "answers").is_dir():
        features.cache(target, read_answers(folder / "answers").samples, shards)
    return load_shards(shards, len(target.boundaries))


def _held_out(args: argparse.Namespace, target: Target, tokenizer: Any, out: Path) -> list[Sample]:
    """Greedy answers to score on: of --data's held_out, of shards, or of prompts that the target answers now."""
    source = args.held_out
    if source is None and args.data is not None:
        source = args.data / "held_out"
        return _of_folder(source, args.features, target) if source.is_dir() else []
    if source is None:
        return []
    if source.is_dir():
        return load_shards(source, len(target.boundaries))
    answers = out / "held_out"
    prompts = [replace(p, held_out=True) for p in file_prompts(source)]
    options = AnswerOptions(batch=24, max_new_tokens=128, sampled=0.0, second_turns=False)
    eos = int(tokenizer.eos_token_id)
    with TorchEngine(target.model, eos, args.seed) as engine:
        answer_prompts(lambda: engine, tokenizer, prompts, answers, options)
    return features.completed(target, read_answers(answers).samples)


def _vocabulary(args: argparse.Namespace, out: Path, tokens: Tensor) -> Tensor:
    """The most frequent tokens; on resumption what the checkpoint has, for the data may have grown meanwhile."""
    done = sorted(out.rglob("checkpoint.pt"))
    if args.resume and done:
        used: Tensor = torch.load(done[0], weights_only=True)["used"].cpu()
        return used
    return vocab.choose(tokens, args.draft_vocab)
