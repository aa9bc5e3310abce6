"""What ``python -m sglang_eagle31 data`` does: prompts, the target's answers, its states, and a record of it all.

OUT/request.json        what was asked for; another request needs another folder
OUT/answers/*.jsonl     conversations to train on; OUT/held_out/answers/*.jsonl those to score on (greedy, one turn)
OUT/samples/            shards with the target's states (--features cache); OUT/held_out/samples/ likewise
OUT/provenance.json     packages, licences, counts, seed, versions
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from sglang_eagle31.tools.shared import corpora
from sglang_eagle31.tools.shared.jsonl import read_jsonl
from sglang_eagle31.tools.shared.provenance import provenance
from sglang_eagle31.tools.shared.topic_prompts import Prompt, file_prompts, gather, spread
from sglang_eagle31.tools.train import features
from sglang_eagle31.tools.train.answers import MIN_ANSWER, AnswerOptions, Kept, answer_prompts, read_answers
from sglang_eagle31.tools.train.data import Sample, answer_tokens, tokenize_chat
from sglang_eagle31.tools.train.engine import SGLangEngine
from sglang_eagle31.tools.train.filters import without_held_out
from sglang_eagle31.tools.train.generate import Engine, TorchEngine
from sglang_eagle31.tools.train.target import load_target, read_tokenizer


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Answer, filter, compute states, write the record. Returns 0."""
    if args.features == "fly" and args.conversations is not None:
        raise ValueError("--features fly: not for --conversations; fix: leave --features out")
    if args.threads:
        torch.set_num_threads(args.threads)
    options = AnswerOptions(args.batch, args.max_new_tokens, args.sampled, not args.single_turn)
    tokenizer = read_tokenizer(args.target)
    held = args.out / "held_out"
    if args.conversations is None:
        train, held_out = _prompts(args)
        _request(args, options, train, held_out)
        make_engine = _engine(args, int(tokenizer.eos_token_id))
        greedy = replace(options, sampled=0.0, second_turns=False)
        with ExitStack() as stack:  # one engine for both, if it is needed at all

            @functools.cache
            def engine() -> Engine:
                return stack.enter_context(make_engine())

            answer_prompts(engine, tokenizer, train, args.out / "answers", options)
            answer_prompts(engine, tokenizer, held_out, held / "answers", greedy)
        kept, scored = _read(args.out / "answers", bool(train)), _read(held / "answers", bool(held_out))
        kept.samples = without_held_out(kept.samples, scored.samples)
    else:
        kept, scored = _conversations(args.conversations, tokenizer, args.max_length), Kept([])
    if args.features == "cache":
        dtype = torch.float32 if args.device == "cpu" else torch.bfloat16
        target, _ = load_target(args.target, args.boundaries, args.device, dtype)
        for samples, folder in ((kept.samples, args.out / "samples"), (scored.samples, held / "samples")):
            if samples:
                features.cache(target, samples, folder)
    _record(args, argv, options, kept, scored)
    print(
        f"{args.out}: {answer_tokens(kept.samples)} answer tokens to train on, {answer_tokens(scored.samples)} held out"
    )
    return 0


def _prompts(args: argparse.Namespace) -> tuple[list[Prompt], list[Prompt]]:
    """``(train, held out)`` of the asked corpora and files, cut to --answers and --held-out-answers."""
    names = _names(args.corpora, bool(args.prompts))
    found = [p for path in args.prompts for p in file_prompts(path, args.hold_out)]
    if names:
        from sglang_eagle31.tools.shared.demo_model import default_cache_dir

        for name in names:
            found += corpora.CORPORA[name].prompts(corpora.fetch(name, default_cache_dir()))
    train, held_out = gather(found, args.seed)
    held_out = spread(held_out, args.held_out_answers)
    return train[: args.answers if args.answers is not None else None], held_out


def _names(text: str | None, files: bool) -> list[str]:
    """The corpora of --corpora; by default all of them, or none beside --prompts."""
    if text is None:
        return [] if files else list(corpora.CORPORA)
    names = [name for name in text.split(",") if name]
    unknown = sorted(set(names) - set(corpora.CORPORA))
    if unknown or not (names or files):
        known = ",".join(corpora.CORPORA)
        raise ValueError(f"--corpora {text}: {', '.join(unknown) or 'none'} unknown; fix: some of {known}")
    return names


def _request(args: argparse.Namespace, options: AnswerOptions, train: list[Prompt], held_out: list[Prompt]) -> None:
    """Write request.json; raises ValueError where the folder was made for another one."""
    texts = hashlib.sha256("\n".join(p.line() for p in (*train, *held_out)).encode()).hexdigest()
    asked = {"target": Path(args.target).resolve().name, "prompts": texts, "seed": args.seed, **asdict(options)}
    path = args.out / "request.json"
    if path.exists():
        made = json.loads(path.read_text())
        changed = sorted(name for name in asked if made.get(name) != asked[name])
        if changed:
            raise ValueError(f"--out {args.out}: made with another {', '.join(changed)}; fix: choose a new folder")
    args.out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asked, indent=2) + "\n")


def _engine(args: argparse.Namespace, eos: int) -> Callable[[], Engine]:
    if args.engine == "torch":

        def torch_engine() -> Engine:
            dtype = torch.float32 if args.device == "cpu" else torch.bfloat16
            target, _ = load_target(args.target, args.boundaries, args.device, dtype)
            return TorchEngine(target.model, eos, args.seed)

        return torch_engine
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    more: dict[str, Any] = {"max_running_requests": args.batch}
    if args.device == "cpu":
        more["max_total_tokens"] = args.batch * 1024
    return lambda: SGLangEngine(args.target, args.device, args.dtype, eos, args.seed, **more)


def _read(folder: Path, any_asked: bool) -> Kept:
    return read_answers(folder) if any_asked else Kept([])


def _conversations(path: Path, tokenizer: Any, max_length: int) -> Kept:
    """Samples of conversations that have their answers already."""
    kept = Kept([])
    for number, entry in enumerate(read_jsonl(path)):
        ids, mask = tokenize_chat(tokenizer, entry["messages"])
        ids, mask = ids[:max_length], mask[:max_length]
        kept.answers += 1
        if sum(mask) < MIN_ANSWER:
            kept.short += 1
            continue
        info = {"id": str(entry.get("id", number)), "source": str(entry.get("source", path.stem)), "topic": ""}
        kept.samples.append(Sample.bare(ids, mask, {**info, "temperature": None}))
    return kept


def _record(args: argparse.Namespace, argv: Sequence[str], options: AnswerOptions, kept: Kept, held: Kept) -> None:
    names = [] if args.conversations else _names(args.corpora, bool(args.prompts))
    used = {name: corpora.CORPORA[name] for name in names}
    record = {
        **provenance([Path(a).name if a.startswith(("/", "~")) else a for a in argv]),
        "target": Path(args.target).resolve().name,
        "engine": None if args.conversations else args.engine,
        "options": {**asdict(options), "seed": args.seed},
        "corpora": {n: {"package": c.package, "licence": c.licence, "held_out": c.held_out} for n, c in used.items()},
        "files": [path.name for path in (args.conversations and [args.conversations]) or args.prompts],
        "train": {**kept.to_dict(), **counts(kept.samples)},
        "held_out": {**held.to_dict(), **counts(held.samples)},
    }
    (args.out / "provenance.json").write_text(json.dumps(record, indent=2) + "\n")


def counts(samples: Sequence[Sample]) -> dict[str, Any]:
    """Samples and tokens, by source and temperature."""
    return {
        "samples": len(samples),
        "tokens": sum(len(s.ids) for s in samples),
        "answer_tokens": answer_tokens(samples),
        "samples_by_source": dict(sorted(Counter(str(s.info["source"]) for s in samples).items())),
        "samples_by_temperature": dict(sorted(Counter(str(s.info.get("temperature")) for s in samples).items())),
    }
