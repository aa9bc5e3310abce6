"""Let the target answer prompts, keeping the states it computes on the way: no second pass over the text is needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sglang_eagle31.train.target import Target

ATTENTION = "eagle31_grouped"
"""Name under which ``grouped_attention`` is registered with transformers."""


@dataclass
class Answer:
    """One finished sequence, prompt included."""

    ids: Tensor
    """``[n]`` int64"""
    prompt_length: int
    states: Tensor
    """``[n, K*H_t]`` bf16; the row of the last token is not computed and zero."""
    final: Tensor
    """``[n, H_t]`` bf16, as above."""
    argmax: Tensor
    """``[n]`` int32: the target's most likely next token; -1 where not computed (inside the prompt, last row)."""
    finished: bool
    """True when the target ended the answer itself."""


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
    target: Target,
    prompts: list[list[int]],
    max_new_tokens: int,
    eos: int,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
) -> list[Answer]:
    """Answer ``prompts`` (token ids) together, greedily where ``temperature`` is 0; left-padded to the longest."""
    config, device = target.model.config, target.device
    width = max(len(p) for p in prompts)
    ids = torch.tensor([[eos] * (width - len(p)) + p for p in prompts], device=device)
    pad = torch.tensor([width - len(p) for p in prompts], device=device)
    total = width + max_new_tokens
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shape = (len(prompts), config.num_key_value_heads, total, head_dim)
    cache = SlotCache(config.num_hidden_layers, shape, target.model.dtype, device)
    columns = torch.arange(total, device=device)
    lowest = torch.finfo(target.model.dtype).min
    live = torch.arange(len(prompts), device=device)  # rows of `sequence` still in the running batch
    done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    sequence = torch.nn.functional.pad(ids, (0, max_new_tokens), value=eos)
    best = torch.full_like(sequence, -1)
    passes: list[tuple[Tensor, slice]] = []
    step = ids
    with target.recording() as record:
        while cache.length < total - 1 and not bool(done.all()):
            if int(done[live].sum()) * 4 >= len(live):
                cache.keep(~done[live])
                step, live = step[~done[live]], live[~done[live]]
            rows = torch.arange(cache.length, cache.length + step.shape[1], device=device)
            end = cache.length + step.shape[1]
            hidden = (columns[:end] > rows[:, None]) | (columns[:end] < pad[live, None, None])
            mask = torch.zeros(hidden.shape, dtype=target.model.dtype, device=device).masked_fill_(hidden, lowest)
            logits = target.model(
                input_ids=step,
                attention_mask=mask[:, None],
                position_ids=(rows[None] - pad[live, None]).clamp_min(0),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
            passes.append((live, slice(cache.length, end)))
            cache.length = end
            best[live, end - 1] = logits.argmax(-1)
            step = _pick(logits, temperature, generator)[:, None].masked_fill(done[live, None], eos)
            sequence[live, end] = step[:, 0]
            done[live] |= step[:, 0] == eos
    states, final = (_gather(parts, passes, sequence.shape) for parts in (record.fused(), record.final))
    return [_answer(sequence[i], states[i], final[i], best[i], p, width, eos) for i, p in enumerate(pad.tolist())]


def _pick(logits: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    if temperature == 0.0:
        return logits.argmax(-1)
    return torch.multinomial(torch.softmax(logits.float() / temperature, dim=-1), 1, generator=generator)[:, 0]


def _gather(parts: list[Tensor], passes: list[tuple[Tensor, slice]], shape: torch.Size) -> Tensor:
    """Put the pieces of all passes into one ``[B, n, width]``; positions never computed stay zero."""
    whole = torch.zeros(*shape, parts[0].shape[-1], dtype=parts[0].dtype, device=parts[0].device)
    for part, (rows, columns) in zip(parts, passes, strict=True):
        whole[rows, columns] = part
    return whole


def _answer(ids: Tensor, states: Tensor, final: Tensor, best: Tensor, pad: int, width: int, eos: int) -> Answer:
    ends = (ids[width:] == eos).nonzero()
    end = width + int(ends[0]) + 1 if len(ends) else len(ids)
    argmax = best[pad:end].to(torch.int32).cpu()
    argmax[-1] = -1
    return Answer(
        ids=ids[pad:end].cpu(),
        prompt_length=width - pad,
        states=states[pad:end].cpu(),
        final=final[pad:end].cpu(),
        argmax=argmax,
        finished=len(ends) > 0,
    )
