"""Who answers prompts, and a batched loop of our own in torch for where SGLang's engine (engine.py) cannot run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor

ATTENTION = "eagle31_grouped"
"""Name under which ``grouped_attention`` is registered with transformers."""


@dataclass(frozen=True)
class Reply:
    """The tokens of one answer, its end-of-turn token included where ``finished``."""

    ids: list[int]
    finished: bool


class Engine(Protocol):
    """Who answers."""

    name: str

    def __enter__(self) -> Engine: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Give up processes and memory."""

    def answer(
        self, prompts: Sequence[list[int]], temperatures: Sequence[float], max_new_tokens: int, key: str
    ) -> list[Reply]:
        """One reply a prompt (token ids), greedy where its temperature is 0; ``key`` names the batch, for the seed."""


class TorchEngine:
    """transformers' model in a batched loop of our own."""

    name = "torch"

    def __init__(self, model: Any, eos: int, seed: int) -> None:
        self.model, self.eos, self.seed = model, eos, seed
        self.attention = model.config._attn_implementation

    def __enter__(self) -> TorchEngine:
        use_grouped_attention(self.model)
        return self

    def __exit__(self, *_: object) -> None:
        self.model.config._attn_implementation = self.attention

    def answer(
        self, prompts: Sequence[list[int]], temperatures: Sequence[float], max_new_tokens: int, key: str
    ) -> list[Reply]:
        """As ``Engine.answer``; the same tokens for the same seed, key and prompts."""
        seed = int.from_bytes(hashlib.sha1(f"{self.seed}/{key}".encode()).digest()[:7], "big")
        generator = torch.Generator(self.model.device).manual_seed(seed)
        return answer_batch(self.model, prompts, temperatures, max_new_tokens, self.eos, generator)


def grouped_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Attention that reads each key/value head once for its whole query group.

    query ``[B, heads, q, d]``, key and value ``[B, kv, L, d]``, additive mask ``[B, 1, q, L]``.
    transformers' own CPU path repeats keys and values for every query head, which costs more than the arithmetic.
    """
    batch, heads, length, width = query.shape
    kv = key.shape[1]
    grouped = query.reshape(batch, kv, heads // kv * length, width)
    scores = (grouped @ key.transpose(2, 3)).view(batch, kv, heads // kv, length, -1) * scaling
    weights = torch.softmax(scores + attention_mask[:, :, None], dim=-1).view(batch, kv, heads // kv * length, -1)
    return (weights @ value).view(batch, heads, length, width).transpose(1, 2), None


class SlotCache:
    """Key/value cache allocated once and read through views: a growing cache copies itself at every token."""

    def __init__(self, layers: int, shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.length = 0

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store ``[B, kv, q, d]`` at the current length; return everything up to and including it."""
        end = self.length + key.shape[2]
        self.keys[layer][:, :, self.length : end] = key
        self.values[layer][:, :, self.length : end] = value
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]

    def get_seq_length(self, *_: Any) -> int:
        """Tokens stored."""
        return self.length

    def keep(self, rows: Tensor) -> None:
        """Drop the sequences that ``rows`` (bool) leaves out."""
        self.keys = [k[rows] for k in self.keys]
        self.values = [v[rows] for v in self.values]


def use_grouped_attention(model: Any) -> None:
    """Switch a transformers model to ``grouped_attention``."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, grouped_attention)
    model.config._attn_implementation = ATTENTION


@torch.inference_mode()
def answer_batch(
    model: Any,
    prompts: Sequence[list[int]],
    temperatures: Sequence[float],
    max_new_tokens: int,
    eos: int,
    generator: torch.Generator | None = None,
) -> list[Reply]:
    """Answer ``prompts`` (token ids) together, left-padded to the longest; greedily where a temperature is 0."""
    config, device = model.config, model.device
    width = max(len(p) for p in prompts)
    pad = torch.tensor([width - len(p) for p in prompts], device=device)
    sequence = torch.full((len(prompts), width + max_new_tokens), eos, device=device)
    for row, prompt in enumerate(prompts):
        sequence[row, width - len(prompt) : width] = torch.tensor(prompt, device=device)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shape = (len(prompts), config.num_key_value_heads, sequence.shape[1], head_dim)
    cache = SlotCache(config.num_hidden_layers, shape, model.dtype, device)
    heat = torch.tensor(temperatures, device=device)
    columns, lowest = torch.arange(sequence.shape[1], device=device), torch.finfo(model.dtype).min
    live = torch.arange(len(prompts), device=device)  # rows of `sequence` still in the running batch
    done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    step = sequence[:, :width]
    while cache.length < sequence.shape[1] - 1 and not bool(done.all()):
        if int(done[live].sum()) * 4 >= len(live):
            cache.keep(~done[live])
            step, live = step[~done[live]], live[~done[live]]
        end = cache.length + step.shape[1]
        rows = torch.arange(cache.length, end, device=device)
        hidden = (columns[:end] > rows[:, None]) | (columns[:end] < pad[live, None, None])
        mask = torch.zeros(hidden.shape, dtype=model.dtype, device=device).masked_fill_(hidden, lowest)
        logits = model(
            input_ids=step,
            attention_mask=mask[:, None],
            position_ids=(rows[None] - pad[live, None]).clamp_min(0),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        cache.length = end
        step = _pick(logits, heat[live], generator)[:, None].masked_fill(done[live, None], eos)
        sequence[live, end] = step[:, 0]
        done[live] |= step[:, 0] == eos
    return [_reply(row[width:].tolist(), eos) for row in sequence]


def _pick(logits: Tensor, temperatures: Tensor, generator: torch.Generator | None) -> Tensor:
    """``[B]`` tokens from ``logits [B, V]``."""
    best = logits.argmax(-1)
    warm = temperatures > 0
    if bool(warm.any()):
        shares = torch.softmax(logits[warm].float() / temperatures[warm, None], dim=-1)
        best[warm] = torch.multinomial(shares, 1, generator=generator)[:, 0]
    return best


def _reply(ids: list[int], eos: int) -> Reply:
    finished = eos in ids
    return Reply(ids[: ids.index(eos) + 1] if finished else ids, finished)
