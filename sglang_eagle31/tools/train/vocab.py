"""The draft vocabulary: the target tokens that the training text uses most."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def count_tokens(texts: Iterable[tuple[Tensor, Tensor]], vocab_size: int) -> Tensor:
    """Occurrences ``[V]`` of each token under its mask; ``texts`` yields ``(ids [n], mask [n])``."""
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for ids, mask in texts:
        counts += torch.bincount(ids[mask].long(), minlength=vocab_size)
    return counts


def choose(counts: Tensor, size: int) -> Tensor:
    """Sorted ids ``[V_d]`` of the ``size`` most frequent tokens; ties go to the smaller id."""
    if not 0 < size <= len(counts):
        raise ValueError(f"--draft-vocab {size}: not a part of the vocabulary; fix: 1 to {len(counts)}")
    return torch.sort(torch.sort(counts, descending=True, stable=True).indices[:size]).values


def maps(used: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    """``d2t int64 [V_d]`` in offset form (target id = draft id + d2t) and ``t2d bool [V]``."""
    t2d = torch.zeros(vocab_size, dtype=torch.bool)
    t2d[used] = True
    return used - torch.arange(len(used)), t2d


def used_ids(d2t: Tensor) -> Tensor:
    """Inverse of ``maps``: target ids ``[V_d]``."""
    return d2t + torch.arange(len(d2t))


def coverage(counts: Tensor, used: Tensor) -> float:
    """Share of the counted occurrences that the vocabulary contains."""
    return float(counts[used].sum() / counts.sum().clamp_min(1))
