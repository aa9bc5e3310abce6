"""From prompts to training samples: the target answers, the answers are filtered, shards are written."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from sglang_eagle31.train.data import Sample, answer_tokens, loop_start, read_jsonl, save_shard, tokenize_chat
from sglang_eagle31.train.generate import Answer, answer_batch, use_grouped_attention
from sglang_eagle31.train.prompts import Prompt, followups
from sglang_eagle31.train.target import Target

MIN_ANSWER = 12
"""Shorter answers (in tokens, also after a loop was cut off) are dropped."""


@dataclass(frozen=True)
class AnswerOptions:
    """How the target answers."""

    batch: int = 48
    """Prompts answered together."""
    max_new_tokens: int = 160
    sampled_share: int = 6
    """One batch in so many is sampled at temperature 0.8, the others are greedy; 0: none is sampled."""
    second_turns: bool = True
    """Whenever a batch of greedy answers ended by themselves, ask those a follow-up question."""
    seed: int = 0


def answer_prompts(
    target: Target,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    out: Path,
    options: AnswerOptions,
    worker: int = 0,
    minutes: float = float("inf"),
) -> int:
    """Answer ``prompts`` and write shards ``out/shard-WORKER-NNNN.safetensors``; returns the answer tokens kept.

    Batches already on disk are skipped, so a stopped run goes on where it was. Stops after ``minutes``.
    """
    out.mkdir(parents=True, exist_ok=True)
    use_grouped_attention(target.model)
    stop_at = time.monotonic() + 60 * minutes
    queue = [(f"{worker:02d}-{i:04d}", group) for i, group in enumerate(_batches(prompts, options.batch))]
    kept, number = 0, 0
    finished: list[tuple[Prompt, str]] = []
    total = len(queue)
    with tqdm(total=total, desc="answers", unit="batch") as bar:
        while queue and time.monotonic() < stop_at:
            name, group = queue.pop(0)
            number += 1
            bar.update()
            path = out / f"shard-{name}.safetensors"
            if path.exists():
                continue
            sampled = options.sampled_share > 0 and number % options.sampled_share == 0
            samples, ended = _answer_batch(target, tokenizer, group, options, 0.8 if sampled else 0.0, name)
            if samples:
                save_shard(path, samples)
            kept += answer_tokens(samples)
            bar.set_postfix(tokens=kept)
            finished += ended
            if options.second_turns and len(finished) >= options.batch:
                queue.insert(0, (f"{name}b", _second_turns(finished[: options.batch], number)))
                finished = []
                bar.total = total = total + 1
    return kept


def _answer_batch(
    target: Target, tokenizer: Any, group: list[Prompt], options: AnswerOptions, temperature: float, name: str
) -> tuple[list[Sample], list[tuple[Prompt, str]]]:
    """The samples worth keeping (no two answers alike), and ``(prompt, answer)`` of those that can go on."""
    seed = int.from_bytes(hashlib.sha1(f"{options.seed}/{name}".encode()).digest()[:7], "big")
    generator = torch.Generator(target.device).manual_seed(seed)
    rendered = [_render(tokenizer, p) for p in group]
    eos = tokenizer.eos_token_id
    answers = answer_batch(target, rendered, options.max_new_tokens, eos, temperature=temperature, generator=generator)
    samples: dict[tuple[int, ...], Sample] = {}
    ended = []
    for prompt, answer in zip(group, answers, strict=True):
        sample = _sample(answer, prompt, temperature)
        text = tuple(answer.ids[answer.prompt_length :].tolist())
        if sample is None or text in samples:
            continue
        samples[text] = sample
        if answer.finished and temperature == 0.0 and len(prompt.messages) == 1:
            ended.append((prompt, tokenizer.decode(text, skip_special_tokens=True)))
    return list(samples.values()), ended


def features_of(target: Target, tokenizer: Any, path: Path, out: Path, max_length: int, batch: int = 64) -> int:
    """Write shards for conversations that have their answers already (``--data``); returns the supervised tokens."""
    out.mkdir(parents=True, exist_ok=True)
    kept, samples = 0, list[Sample]()
    for number, entry in enumerate(tqdm(list(read_jsonl(path)), desc="features", unit="conversation")):
        ids, mask = (x[:max_length] for x in tokenize_chat(tokenizer, entry["messages"]))
        if sum(mask) >= MIN_ANSWER:
            states, final, argmax = target.features(torch.tensor(ids))
            info = {"id": str(entry.get("id", number)), "source": str(entry.get("source", path.name)), "topic": ""}
            samples.append(
                Sample(torch.tensor(ids, dtype=torch.int32), torch.tensor(mask), states, final, argmax, info)
            )
            kept += sum(mask)
        if len(samples) == batch:
            save_shard(out / f"shard-data-{number:06d}.safetensors", samples)
            samples = []
    if samples:
        save_shard(out / "shard-data-last.safetensors", samples)
    return kept


def _batches(prompts: Sequence[Prompt], size: int, window: int = 8) -> Iterator[list[Prompt]]:
    """Cut into windows of ``window`` batches; inside a window prompts of one kind and length go together."""
    for start in range(0, len(prompts), size * window):
        chunk = sorted(prompts[start : start + size * window], key=lambda p: (p.source, len(p.messages[-1]["content"])))
        yield from (chunk[i : i + size] for i in range(0, len(chunk), size))


def _render(tokenizer: Any, prompt: Prompt) -> list[int]:
    text = tokenizer.apply_chat_template(prompt.messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _second_turns(turns: list[tuple[Prompt, str]], index: int) -> list[Prompt]:
    lines = followups()
    return [
        Prompt(
            f"{prompt.id}-2",
            prompt.source,
            prompt.topic,
            [
                *prompt.messages,
                {"role": "assistant", "content": text},
                {"role": "user", "content": lines[(index + i) % len(lines)]},
            ],
            prompt.held_out,
        )
        for i, (prompt, text) in enumerate(turns)
    ]


def _sample(answer: Answer, prompt: Prompt, temperature: float) -> Sample | None:
    start = answer.prompt_length
    end = start + loop_start(answer.ids[start:].tolist())
    if end - start < MIN_ANSWER:
        return None
    mask = torch.arange(end) >= start
    info = {"id": prompt.id, "source": prompt.source, "topic": prompt.topic, "temperature": temperature}
    return Sample(
        answer.ids[:end].to(torch.int32),
        mask,
        answer.states[:end].clone(),
        answer.final[:end].clone(),
        answer.argmax[:end].clone(),
        info,
    )
