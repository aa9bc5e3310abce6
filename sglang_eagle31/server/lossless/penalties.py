"""Frequency, presence and repetition penalties and ``min_new_tokens``, exact at every node of a draft tree.

Dimensions: R requests; N nodes of a tree; V vocabulary; D nodes of the longest path; S stop tokens.

The token after a node follows everything committed and the node's path, so these are what is counted. With ``n`` the
count of a token in the output, SGLang's sampler without speculation (``sampling/penaltylib``, 0.5.23, in the order of
its overlap schedule) computes from a logit ``x``::

    y = x - frequency * n - presence * [n > 0]
    y * repetition if y < 0 else y / repetition        where n > 0

and sets the stop tokens to ``-inf`` while the output is shorter than ``min_new_tokens``. Prompts are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang_eagle31.server.lossless.copies import on


@dataclass(frozen=True)
class Penalties:
    """Penalties of R requests, each [R] in float32; ``scales`` says whether any repetition penalty is not 1."""

    frequency: torch.Tensor
    presence: torch.Tensor
    repetition: torch.Tensor
    scales: bool

    @classmethod
    def of(cls, rows: list[tuple[float, float, float]], device: torch.device | str) -> Penalties:
        """From (frequency, presence, repetition) of each request."""
        table = on(device, rows, torch.float32).reshape(-1, 3)
        return cls(table[:, 0], table[:, 1], table[:, 2], any(row[2] != 1.0 for row in rows))

    def offsets(self, counts: torch.Tensor) -> torch.Tensor:
        """What is subtracted: ``counts`` [R, ...] to float32 of the same shape."""
        return _rows(self.frequency, counts) * counts + _rows(self.presence, counts) * (counts > 0)

    def factors(self, counts: torch.Tensor) -> torch.Tensor:
        """Repetition penalty where a token has occurred, else 1; ``counts`` [R, ...] to the same shape."""
        return torch.where(counts > 0, _rows(self.repetition, counts), 1.0)

    def adjust(self, logits: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """`logits` [R, ...] with penalties; ``counts`` has their shape or broadcasts to it."""
        lower = logits - self.offsets(counts)
        if not self.scales:
            return lower
        factors = self.factors(counts)
        return torch.where(lower < 0, lower * factors, lower / factors)


def penalise(logits: torch.Tensor, penalties: Penalties, counts: torch.Tensor, paths: torch.Tensor) -> None:
    """Penalise the logits after each node, in place.

    Args:
        logits: [R, N, V], written.
        penalties: of the R requests.
        counts: int [R, V] occurrences in the committed output, its last token (the root) left out.
        paths: int64 [R, N, D] of `paths.path_tokens`, root included.
    """
    # All tokens get the penalty of the committed output at once; the few on the path are then done again.
    index = torch.where(paths >= 0, paths, paths[:, :, :1])
    before = logits.gather(2, index)
    occurrences = (paths.unsqueeze(2) == index.unsqueeze(3)).sum(3)
    seen = counts.unsqueeze(1).expand(-1, index.shape[1], -1).gather(2, index) + occurrences
    logits.copy_(penalties.adjust(logits, counts.unsqueeze(1)))
    logits.scatter_(2, index, penalties.adjust(before, seen).to(logits.dtype))


def forbid_stops(logits: torch.Tensor, stops: torch.Tensor, minimum: torch.Tensor, lengths: torch.Tensor) -> None:
    """Set the stop tokens to ``-inf`` at nodes after which the output is still shorter than its minimum, in place.

    Args:
        logits: [R, N, V], written.
        stops: int64 [R, S] stop tokens of each request, padded with any of its own; -1 for a request without any.
        minimum: int [R] ``min_new_tokens``.
        lengths: int [R, N] output tokens up to and with each node.
    """
    if not stops.shape[1]:
        return
    index = stops.clamp(min=0).unsqueeze(1).expand(-1, logits.shape[1], -1)
    hit = (lengths < minimum.unsqueeze(1)).unsqueeze(2) & (stops >= 0).unsqueeze(1)
    logits.scatter_(2, index, logits.gather(2, index).masked_fill(hit, float("-inf")))


def add_counts(counts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """``counts`` int [R, V] with ``tokens`` int64 [R, D] counted in, -1 left out; a new tensor."""
    return counts.scatter_add(1, tokens.clamp(min=0), (tokens >= 0).to(counts.dtype))


def _rows(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return values.reshape(-1, *[1] * (like.dim() - 1))
