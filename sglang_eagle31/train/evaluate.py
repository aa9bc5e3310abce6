"""Greedy acceptance by depth, simulated on the target's own greedy text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_eagle31.train.data import Sample
from sglang_eagle31.train.model import DraftHead
from sglang_eagle31.train.ttt import collate, shifted, unroll


@dataclass
class Acceptance:
    """Chain drafting from every position at once."""

    rows: int
    full: list[float]
    """P(the first ``k`` drafted tokens are all accepted), k = 1..steps."""

    @property
    def conditional(self) -> list[float]:
        """P(token ``k`` is accepted, given that all before it were)."""
        before = [1.0, *self.full[:-1]]
        return [f / b if b > 0 else 0.0 for f, b in zip(self.full, before, strict=True)]

    def accept_length(self, steps: int | None = None) -> float:
        """Tokens a round with ``steps`` drafted ones (default: all): the accepted ones and the target's own."""
        return 1.0 + sum(self.full[:steps])

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "conditional": self.conditional, "accept_length": self.accept_length()}


def full_accuracy(drafted: Tensor, text: Tensor, counted: Tensor) -> list[float]:
    """``drafted [B, n, steps]`` against the text (same shape), over the rows ``counted [B, n]``; one share a depth."""
    right = (drafted == text).cumprod(dim=-1).bool()[counted]
    return right.float().mean(dim=0).tolist() if len(right) else [0.0] * drafted.shape[-1]


@torch.inference_mode()
def acceptance(
    head: DraftHead, samples: Sequence[Sample], embedding: Tensor, used: Tensor, steps: int = 3, batch: int = 8
) -> Acceptance:
    """Draft ``steps`` tokens from every row, feeding back the head's own states and its own tokens.

    samples: greedy text of the target; embedding ``[V, H]``; used ``[V_d]``: target id of each draft id. Rows count
    where the whole chain lies inside one answer. Acceptance of a token outside the draft vocabulary is impossible,
    and counts as a miss.
    """
    head.eval()
    hits, rows = torch.zeros(steps), 0
    for start in range(0, len(samples), batch):
        data = collate(list(samples[start : start + batch]), embedding.device)
        drafted: list[Tensor] = []

        def embed(step: int, previous: Tensor | None) -> Tensor:
            if previous is None:
                return F.embedding(shifted(data.ids, 1), embedding)  # noqa: B023
            return F.embedding(drafted[-1], embedding)  # noqa: B023

        for state in unroll(head, data.states, embed, steps):
            drafted.append(used[head.lm_head(state).argmax(-1)])
        text = torch.stack([shifted(data.ids, step + 2) for step in range(steps)], dim=-1)
        counted = data.predicted.clone()
        for step in range(steps):
            counted &= shifted(data.predicted, step + 1)
        count = int(counted.sum())
        hits += count * torch.tensor(full_accuracy(torch.stack(drafted, dim=-1), text, counted))
        rows += count
    return Acceptance(rows, (hits / max(rows, 1)).tolist())
