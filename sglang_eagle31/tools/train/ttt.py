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

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_eagle31.tools.train.data import Sample
from sglang_eagle31.tools.train.loss import soft_cross_entropy
from sglang_eagle31.tools.train.model import DraftHead
from sglang_eagle31.tools.train.unroll import Rows, unroll

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


def collate(samples: Sequence[Sample], device: torch.device, dtype: torch.dtype = torch.float32) -> Batch:
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


def shifted(tokens: Tensor, by: int) -> Tensor:
    """``tokens [B, n]`` moved left by ``by``, zero-padded on the right."""
    return F.pad(tokens[:, by:], (0, min(by, tokens.shape[1])))


def supervised(predicted: Tensor, argmax: Tensor, t2d: Tensor) -> Tensor:
    """Positions ``[B, n]`` under the loss: the assistant speaks next, and the target's argmax is in the vocabulary."""
    return predicted & (argmax >= 0) & t2d[argmax.clamp_min(0)]


def row_counts(samples: Sequence[Sample], t2d: Tensor, steps: int) -> list[int]:
    """Rows under the loss at each step, without running the head: what accumulated batches are normalised by."""
    counts = [0] * steps
    for s in samples:
        predicted = F.pad(s.mask[1:], (0, 1))
        positions = supervised(predicted, s.argmax.long(), t2d.cpu()).nonzero()[:, 0]
        for step in range(steps):
            counts[step] += int((positions > step).sum())
    return counts


@dataclass
class StepResult:
    """Loss and accuracy of one batch; lists have one entry a step and hold sums over rows."""

    loss: Tensor
    """Scalar: the steps' mean losses, weighted and summed."""
    losses: Tensor
    """``[steps]``"""
    hits: Tensor
    """``[steps]``: rows whose prediction is the target's argmax."""
    full_hits: Tensor
    """``[steps]``: rows that are right at this step and all before it."""
    rows: Tensor
    """``[steps]``"""


def ttt_loss(
    head: DraftHead,
    batch: Batch,
    embedding: Tensor,
    target_rows: Tensor,
    t2d: Tensor,
    steps: int,
    totals: Sequence[int] | None = None,
) -> StepResult:
    """Unroll ``steps`` steps and compare each with the target's distribution over the draft vocabulary.

    embedding ``[V, H]``; target_rows ``[V_d, H_t]``: the target's lm_head rows of the draft vocabulary; t2d ``[V]``
    bool; totals: rows a step that its loss is divided by (default: this batch's), for accumulated batches.
    """
    counted = supervised(batch.predicted, batch.argmax, t2d)
    sequence, position = counted.nonzero(as_tuple=True)
    with torch.no_grad():
        soft = torch.softmax((batch.final[sequence, position] @ target_rows.T).float(), dim=-1)
        wanted = (torch.cumsum(t2d, 0) - 1)[batch.argmax[sequence, position]]
    rows = Rows.leading_to(counted, steps)
    states = unroll(head, rows, batch.states, F.embedding(shifted(batch.ids, 1), embedding), steps)
    slots = torch.full(counted.shape, -1, device=counted.device)
    slots[rows.sequence, rows.row] = torch.arange(len(rows.row), device=counted.device)
    alive = torch.ones(len(rows.row), dtype=torch.bool, device=counted.device)
    loss, sums = soft.new_zeros(()), []
    for step, state in enumerate(states):
        inside = position > step
        where = slots[sequence[inside], position[inside] - 1 - step]
        total, right = soft_cross_entropy(
            state.index_select(0, where), head.lm_head.weight, soft, wanted, inside.nonzero()[:, 0]
        )
        full = torch.zeros_like(alive)
        full[where] = alive[where] & right
        alive = full
        count = int(inside.sum()) if totals is None else totals[step]
        loss = loss + STEP_DECAY**step * total / max(count, 1)
        sums.append([total.detach(), right.sum(), full.sum(), inside.sum()])
    columns = [torch.stack([row[i].float() for row in sums]).cpu() for i in range(4)]
    return StepResult(loss, *columns)
