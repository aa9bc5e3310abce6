"""Greedy acceptance by depth, simulated on the target's own greedy text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_eagle31.tools.train.data import Sample
from sglang_eagle31.tools.train.model import DraftHead
from sglang_eagle31.tools.train.ttt import collate, shifted
from sglang_eagle31.tools.train.unroll import Rows, unroll


@dataclass
class Score:
    """Chain drafting from every position at once."""

    rows: int
    full: list[float]
    """P(the first ``k`` drafted tokens are all accepted), k = 1..depth."""
    sources: dict[str, Score] = field(default_factory=dict)

    @property
    def conditional(self) -> list[float]:
        """P(token ``k`` is accepted, given that all before it were)."""
        before = [1.0, *self.full[:-1]]
        return [f / b if b > 0 else 0.0 for f, b in zip(self.full, before, strict=True)]

    def accept_length(self, steps: int | None = None) -> float:
        """Tokens a round with ``steps`` drafted ones (default: all): the accepted ones and the target's own."""
        return 1.0 + sum(self.full[:steps])

    def to_dict(self) -> dict[str, Any]:
        """For logs and the provenance file."""
        whole = {
            "rows": self.rows,
            "full": self.full,
            "conditional": self.conditional,
            "accept_length": self.accept_length(),
        }
        sources = {name: score.to_dict() for name, score in self.sources.items()}
        return {**whole, "sources": sources} if sources else whole


def full_accuracy(drafted: Tensor, text: Tensor) -> list[float]:
    """``drafted [R, depth]`` against the text (same shape); one share a depth."""
    right = (drafted == text).cumprod(dim=-1)
    return right.float().mean(dim=0).tolist() if len(right) else [0.0] * drafted.shape[-1]


@torch.inference_mode()
def acceptance(
    head: DraftHead, samples: Sequence[Sample], embedding: Tensor, used: Tensor, steps: int, batch: int = 8
) -> Score:
    """Draft ``steps`` tokens from every row, feeding back the head's own states and its own tokens.

    samples: greedy text of the target; embedding ``[V, H]``; used ``[V_d]``: target id of each draft id. Rows count
    where the whole chain lies inside one answer. Acceptance of a token outside the draft vocabulary is impossible,
    and counts as a miss.
    """
    head.eval()
    hits, count = torch.zeros(steps), 0
    for start in range(0, len(samples), batch):
        data = collate(samples[start : start + batch], embedding.device)
        counted = data.predicted.clone()
        for step in range(steps):
            counted &= shifted(data.predicted, step + 1)
        rows = Rows.of(counted)
        if not len(rows.row):
            continue
        drafted: list[Tensor] = []

        def embed(step: int) -> Tensor:
            return F.embedding(drafted[-1], embedding)  # noqa: B023

        first = F.embedding(shifted(data.ids, 1), embedding)
        for state in unroll(head, rows, data.states, first, steps, embed):
            drafted.append(used[head.lm_head(state).argmax(-1)])
        text = torch.stack([data.ids[rows.sequence, rows.row + 2 + step] for step in range(steps)], dim=-1)
        hits += len(rows.row) * torch.tensor(full_accuracy(torch.stack(drafted, dim=-1), text))
        count += len(rows.row)
    return Score(count, (hits / max(count, 1)).tolist())


def score_by_source(head: DraftHead, samples: Sequence[Sample], embedding: Tensor, used: Tensor, steps: int) -> Score:
    """``acceptance`` of each source, and of all rows together."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(str(sample.info["source"]), []).append(sample)
    parts = {name: acceptance(head, group, embedding, used, steps) for name, group in sorted(groups.items())}
    rows = sum(part.rows for part in parts.values())
    full = [sum(p.full[k] * p.rows for p in parts.values()) / max(rows, 1) for k in range(steps)]
    return Score(rows, full, parts)
