"""Training samples on disk: tokens, loss mask and the target's states, in safetensors shards."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor


@dataclass
class Sample:
    """One tokenised conversation of ``n`` tokens with the target's features."""

    ids: Tensor
    """``[n]`` int32"""
    mask: Tensor
    """``[n]`` bool, True on the assistant's tokens (the loss covers these only)."""
    states: Tensor
    """``[n, K*H_t]`` bf16, captured boundaries in ascending order."""
    final: Tensor
    """``[n, H_t]`` bf16, after the target's final norm."""
    argmax: Tensor
    """``[n]`` int32, the target's most likely next token; -1 where unknown."""
    info: dict[str, Any]
    """Where it comes from: id, source, topic, temperature."""


def save_shard(path: Path, samples: list[Sample]) -> None:
    """Write samples to one file, under its final name only when complete."""
    joined = {
        name: torch.cat([getattr(s, name) for s in samples]) for name in ("ids", "mask", "states", "final", "argmax")
    }
    joined["ids"] = joined["ids"].to(torch.int32)
    meta = {"samples": json.dumps([{**s.info, "length": len(s.ids)} for s in samples])}
    partial = path.with_suffix(".partial")
    save_file(joined, partial, metadata=meta)
    partial.rename(path)


def load_shards(folder: Path, boundaries: int) -> list[Sample]:
    """Read every shard of ``folder``; raises ValueError where there is none or the states are of another width."""
    samples: list[Sample] = []
    for path in sorted(folder.glob("shard-*.safetensors")):
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            infos = json.loads(file.metadata()["samples"])
        if tensors["states"].shape[1] != boundaries * tensors["final"].shape[1]:
            raise ValueError(f"{path}: states of another number of layers; make the data again with the same --layers")
        start = 0
        for info in infos:
            end = start + int(info["length"])
            samples.append(Sample(**{k: v[start:end] for k, v in tensors.items()}, info=info))
            start = end
    if not samples:
        raise ValueError(f"{folder}: no shard-*.safetensors; make data first (train --make-data)")
    return samples


def tokenize_chat(tokenizer: Any, messages: list[dict[str, str]]) -> tuple[list[int], list[bool]]:
    """Token ids and loss mask of a conversation; the mask covers each assistant text with its end-of-turn token."""
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    spans = []
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            start = len(tokenizer.apply_chat_template(messages[:i], tokenize=False, add_generation_prompt=True))
            stop = len(tokenizer.apply_chat_template(messages[: i + 1], tokenize=False).rstrip())
            spans.append((start, stop))
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    mask = [any(a <= lo and hi <= b for a, b in spans) for lo, hi in encoded["offset_mapping"]]
    return list(encoded["input_ids"]), mask


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """One object a line; raises ValueError naming the line that is not one with ``messages``."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file (--data, --prompts and --held-out take JSONL)")
    with path.open() as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            entry = json.loads(line)
            if not isinstance(entry, dict) or not entry.get("messages"):
                raise ValueError(f'{path}:{number}: expected {{"messages": [{{"role": ..., "content": ...}}, ...]}}')
            yield entry


def loop_start(ids: list[int], size: int = 8, times: int = 3) -> int:
    """Index where the text starts to repeat itself (an n-gram's second occurrence, once it occurs ``times`` times).

    Returns ``len(ids)`` when it does not.
    """
    seen: dict[tuple[int, ...], list[int]] = {}
    for start in range(len(ids) - size + 1):
        places = seen.setdefault(tuple(ids[start : start + size]), [])
        places.append(start)
        if len(places) == times:
            return places[1]
    return len(ids)


def answer_tokens(samples: Iterable[Sample]) -> int:
    """Number of supervised tokens."""
    return sum(int(s.mask.sum()) for s in samples)
