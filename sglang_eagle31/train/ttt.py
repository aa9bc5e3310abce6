"""Training-time test (EAGLE-3, section 3): the drafter is unrolled on its own states, tokens are teacher-forced.

Row ``t`` pairs the target's states of token ``t`` with the embedding of token ``t+1`` and predicts token ``t+2``.
At step ``i`` the same row holds the drafter's own state and the embedding of token ``t+1+i`` and predicts ``t+2+i``:

    tokens      x0   x1   x2   x3   x4
    row 0       h0+x1 -> x2                 step 0
                 g+x2 -> x3                 step 1 (g: what step 0 fed on)
    row 1            h1+x2 -> x3            step 0

Attention of step ``i``: causal over the step-0 keys, and of the later steps only the row's own chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_eagle31.train.data import Sample
from sglang_eagle31.train.model import DraftHead, rope_tables

STEP_DECAY = 0.8
"""Weight of step ``i`` in the loss is ``STEP_DECAY**i``."""


@dataclass
class Batch:
    """Right-padded samples: B sequences of at most n tokens."""

    ids: Tensor
    """``[B, n]`` int64, padded with 0."""
    states: Tensor
    """``[B, n, K*H_t]``"""
    final: Tensor
    """``[B, n, H_t]``"""
    argmax: Tensor
    """``[B, n]`` int64, -1 where unknown."""
    predicted: Tensor
    """``[B, n]`` bool: position ``d`` whose next token (``d+1``) is the assistant's."""


def collate(samples: list[Sample], device: torch.device, dtype: torch.dtype = torch.float32) -> Batch:
    """Pad samples to the longest."""
    pad = torch.nn.utils.rnn.pad_sequence
    mask = pad([s.mask for s in samples], batch_first=True)
    return Batch(
        ids=pad([s.ids.long() for s in samples], batch_first=True).to(device),
        states=pad([s.states for s in samples], batch_first=True).to(device, dtype),
        final=pad([s.final for s in samples], batch_first=True).to(device, dtype),
        argmax=pad([s.argmax.long() for s in samples], batch_first=True, padding_value=-1).to(device),
        predicted=F.pad(mask[:, 1:], (0, 1)).to(device),
    )


def chain_attention(q: Tensor, keys: list[Tensor], values: list[Tensor], first_row: int = 0) -> Tensor:
    """Attention of the newest step, ``[B, kv, group, m, d]``.

    q ``[B, kv, group, m, d]`` holds rows ``first_row .. first_row+m-1``; ``keys[0], values[0]`` are the step-0 rows
    ``[B, kv, n, d]`` (attended causally), ``keys[1:]`` those of later steps ``[B, kv, m, d]`` (own row only).
    One softmax covers both.
    """
    batch, kv, group, m, width = q.shape
    n = keys[0].shape[2]
    q = q * width**-0.5
    context = (q.flatten(2, 3) @ keys[0].transpose(2, 3)).view(batch, kv, group, m, n)
    rows = torch.arange(first_row, first_row + m, device=q.device)
    future = torch.arange(n, device=q.device) > rows[:, None]
    context = context.masked_fill(future, float("-inf"))
    own = [(q * k[:, :, None]).sum(-1, keepdim=True) for k in keys[1:]]
    weights = torch.softmax(torch.cat([context, *own], dim=-1), dim=-1)
    out = (weights[..., :n].flatten(2, 3) @ values[0]).view(batch, kv, group, m, width)
    for step, v in enumerate(values[1:]):
        out = out + weights[..., n + step, None] * v[:, :, None]
    return out


def unroll(
    head: DraftHead,
    states: Tensor,
    embed: Callable[[int, Tensor | None], Tensor],
    steps: int,
) -> Iterator[Tensor]:
    """Yield for each step the state that ``lm_head`` reads, ``[B, n, H]``.

    states ``[B, n, K*H_t]``; ``embed(i, previous)`` gives step ``i``'s input embeddings ``[B, n, H]``, where
    ``previous`` is the state just yielded (None at step 0): teacher forcing ignores it, evaluation samples from it.
    """
    config, attention = head.config, head.midlayer.self_attn
    g = head.fuse(states)
    positions = torch.arange(states.shape[1], device=states.device)
    keys: list[Tensor] = []
    values: list[Tensor] = []
    normed: Tensor | None = None
    for step in range(steps):
        cos, sin = rope_tables(positions + step, config.head_dim, config.rope_theta)
        q, k, v = attention.project(head.attention_input(embed(step, normed), g), cos, sin)
        keys.append(k)
        values.append(v)
        normed, g = head.finish(g, attention.merge(chain_attention(q, keys, values)))
        yield normed


def shifted(tokens: Tensor, by: int) -> Tensor:
    """``tokens [B, n]`` moved left by ``by``, zero-padded on the right."""
    return F.pad(tokens[:, by:], (0, min(by, tokens.shape[1])))


@dataclass
class StepResult:
    """Loss and accuracy of one batch; lists have one entry a step."""

    loss: Tensor
    """Scalar, weighted sum over the steps."""
    losses: list[float]
    accuracy: list[float]
    """Share of rows whose prediction is the target's argmax."""
    full_accuracy: list[float]
    """Share of rows that are right at this step and all before it."""
    rows: int


def ttt_loss(
    head: DraftHead, batch: Batch, embedding: Tensor, target_rows: Tensor, t2d: Tensor, steps: int
) -> StepResult:
    """Unroll ``steps`` steps and compare each with the target's distribution over the draft vocabulary.

    embedding ``[V, H]``; target_rows ``[V_d, H_t]``: the target's lm_head rows of the draft vocabulary;
    t2d ``[V]`` bool. A position counts where the assistant speaks next and the target's argmax is in the vocabulary.
    """
    known = batch.argmax >= 0
    sequence, position = (batch.predicted & known & t2d[batch.argmax.clamp_min(0)]).nonzero(as_tuple=True)
    with torch.no_grad():
        soft = torch.softmax(batch.final[sequence, position] @ target_rows.T, dim=-1)
        wanted = (torch.cumsum(t2d, 0) - 1)[batch.argmax[sequence, position]]
        forced = [F.embedding(shifted(batch.ids, step + 1), embedding) for step in range(steps)]
    result = StepResult(soft.new_zeros(()), [], [], [], len(sequence))
    alive = torch.ones_like(batch.predicted)
    for step, state in enumerate(unroll(head, batch.states, lambda i, _: forced[i], steps)):
        inside = position > step
        where = sequence[inside], position[inside] - 1 - step
        logits = head.lm_head(state[where])
        loss = F.cross_entropy(logits, soft[inside])
        hit = logits.detach().argmax(-1) == wanted[inside]
        full = alive[where] & hit
        alive = torch.zeros_like(alive)
        alive[where] = full
        result.loss = result.loss + STEP_DECAY**step * loss
        result.losses.append(float(loss.detach()))
        result.accuracy.append(float(hit.float().mean()))
        result.full_accuracy.append(float(full.float().mean()))
    return result
