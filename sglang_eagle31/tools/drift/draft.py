"""Drafting with a head in torch, as SGLang drafts: a chain, or topk branches a step.

Row d of a round (depth d) embeds the d-th drafted token and reads the state that its parent's row handed on. With
branches, SGLang keeps the topk most probable tokens of a step and gives each the key slots of one branch; it does not
move keys when a branch continues another one. So a row sees the committed keys and its own branch's earlier slots,
which need not be its ancestors' (docs/drift-probe.md), and this module does the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_eagle31.tools.drift.head import Cache, Head, Output

CHUNK = 512
"""Rows of a prefill that are run at once."""


@dataclass
class Row:
    """One watched row of a prefill: the state it reads, what it hands on, and what it attends to.

    Attributes:
        column: its place in the sequence.
        g: ``[H]``.
        logits: ``[draft vocabulary]``.
        feedback: ``[H]``.
        weights: ``[1, A, column + 1]`` a layer.
        visible: ``[1, column + 1]``.
    """

    column: int
    g: Tensor
    logits: Tensor
    feedback: Tensor
    weights: list[Tensor]
    visible: Tensor


@dataclass
class Step:
    """The rows of one depth, one a branch: what they read ``[topk, H]``, and the columns and own ones of their keys."""

    depth: int
    ids: Tensor
    fed: Tensor
    out: Output
    columns: Tensor
    own: Tensor


def prefill(head: Head, captured: Tensor, next_ids: Tensor, watched: Sequence[int]) -> tuple[Cache, dict[int, Row]]:
    """Run a whole sequence over the target's states.

    Args:
        head: the draft head.
        captured: ``[n, k * target width]``.
        next_ids: the token after each, ``[n]``.
        watched: rows to hand out.

    Returns:
        the keys of every row, and the watched rows by their place.
    """
    cache, rows = Cache(), dict[int, Row]()
    for start in range(0, len(next_ids), CHUNK):
        end = min(start + CHUNK, len(next_ids))
        inside = sorted(row for row in set(watched) if start <= row < end)
        g = head.fuse(captured[start:end].float())
        at = torch.tensor(inside, dtype=torch.long) - start
        out = head.forward(g, next_ids[start:end], torch.arange(start, end), cache, watch=at)
        for index, row in enumerate(inside):
            seen = slice(0, row + 1)
            rows[row] = Row(
                row,
                g[row - start],
                out.logits[row - start],
                out.feedback[row - start],
                [weight[index : index + 1, :, seen] for weight in out.weights],
                out.visible[index : index + 1, seen],
            )
    return cache, rows


def draft(head: Head, cache: Cache, start: Row, steps: int, topk: int = 1) -> Iterator[Step]:
    """Draft from one row, ``steps`` rows deep; ``cache`` is left as it is."""
    length = start.column + 1
    cache = cache.first(length)
    scores, tokens = start.logits.softmax(-1).topk(topk)
    ids, fed = head.target_ids[tokens], start.feedback.expand(topk, -1)
    columns = torch.arange(length)
    for depth in range(1, steps + 1):
        place = length + depth - 1
        columns = torch.cat([columns, torch.full((topk,), place)])
        branches = torch.eye(topk, dtype=torch.bool).repeat(1, depth)
        visible = torch.cat([torch.ones(topk, length, dtype=torch.bool), branches], dim=1)
        everyone = torch.arange(topk)
        out = head.forward(fed, ids, torch.full((topk,), place), cache, visible, everyone)
        yield Step(depth, ids, fed, out, columns, length + (depth - 1) * topk + everyone)
        chances, tokens = out.logits.softmax(-1).topk(topk)
        scores, best = (scores.unsqueeze(1) * chances).flatten().topk(topk)
        ids, fed = head.target_ids[tokens.flatten()[best]], out.feedback[best // topk]
