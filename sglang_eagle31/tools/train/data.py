"""Training samples: tokens and loss mask, with the target's states (in safetensors shards) or without (JSONL)."""

from __future__ import annotations

import json
from collections.abc import Iterable
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
    """``[n, K*H_t]`` bf16, captured boundaries in ascending order; ``[0, 0]`` where they are computed on the fly."""
    final: Tensor
    """``[n, H_t]`` bf16, after the target's final norm; or ``[0, 0]``."""
    argmax: Tensor
    """``[n]`` int32, the target's most likely next token; -1 where unknown; or ``[0]``."""
    info: dict[str, Any]
    """Where it comes from: id, source, topic, temperature."""

    @classmethod
    def bare(cls, ids: list[int], mask: list[bool], info: dict[str, Any]) -> Sample:
        """A sample without the target's states."""
        none = torch.zeros(0, 0, dtype=torch.bfloat16)
        whole = torch.tensor(ids, dtype=torch.int32)
        return cls(whole, torch.tensor(mask), none, none, torch.zeros(0, dtype=torch.int32), info)

    @property
    def complete(self) -> bool:
        """Whether it has the target's states."""
        return len(self.states) == len(self.ids)

    @property
    def prompt(self) -> tuple[int, ...]:
        """The tokens before the first answer token."""
        start = int(self.mask.int().argmax()) if bool(self.mask.any()) else len(self.ids)
        return tuple(self.ids[:start].tolist())


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


def shards_in(folder: Path) -> list[Path]:
    """Every shard of ``folder``, in order."""
    return sorted(folder.glob("shard-*.safetensors"))


def load_shards(folder: Path, boundaries: int) -> list[Sample]:
    """Read every shard of ``folder``; raises ValueError where there is none or the states are of another width."""
    samples: list[Sample] = []
    for path in shards_in(folder):
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            infos = json.loads(file.metadata()["samples"])
        width = boundaries * tensors["final"].shape[1]
        if tensors["states"].shape[1] != width:
            has = f"states of width {tensors['states'].shape[1]}, expected {width} for {boundaries} captured layers"
            raise ValueError(f"{path}: {has}; fix: make the data again with the same --layers")
        start = 0
        for info in infos:
            end = start + int(info["length"])
            samples.append(Sample(**{k: v[start:end] for k, v in tensors.items()}, info=info))
            start = end
    if not samples:
        raise ValueError(
            f"{folder}: no shard-*.safetensors in it; fix: make data first (python -m sglang_eagle31 data)"
        )
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


def render_chat(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    """Token ids of a conversation that waits for the assistant."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def answer_tokens(samples: Iterable[Sample]) -> int:
    """Number of supervised tokens."""
    return sum(int(s.mask.sum()) for s in samples)
