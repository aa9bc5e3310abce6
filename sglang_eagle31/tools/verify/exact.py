"""Exact distributions, written apart from the code under test: float64, one rule after the other as SGLang defines it.

SGLang 0.5.23 without speculation on a CPU (``top_k_top_p_min_p_sampling_from_probs_torch``): probabilities after
temperature are sorted; a token is kept if its rank is below top_k, if the mass before it is at most top_p, and if it
has at least min_p times the largest probability. All three look at the unfiltered probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang_eagle31.tools.verify.synthetic import CONTEXTS, VOCAB, Table, child


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters of one request."""

    temperature: float = 1.0
    top_k: int = VOCAB
    """VOCAB: off."""
    top_p: float = 1.0
    min_p: float = 0.0

    def __str__(self) -> str:
        text = f"T {self.temperature:g}"
        text += f", top-k {self.top_k}" if self.top_k < VOCAB else ""
        text += f", top-p {self.top_p:g}" if self.top_p < 1 else ""
        return text + (f", min-p {self.min_p:g}" if self.min_p else "")


def adjusted(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Probabilities ``[..., V]`` in float64 that a request samples from, of logits ``[..., V]``."""
    probs = (logits.double() / sampling.temperature).softmax(-1)
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    keep = torch.arange(probs.shape[-1]) < sampling.top_k
    keep = keep & (ordered.cumsum(-1) - ordered <= sampling.top_p)
    keep = keep & (ordered >= sampling.min_p * ordered[..., :1])
    kept = torch.zeros_like(probs).scatter(-1, order, torch.where(keep, ordered, 0.0))
    return kept / kept.sum(-1, keepdim=True)


def joint(table: Table, sampling: Sampling, tokens: int) -> torch.Tensor:
    """P(next ``tokens`` tokens | context) in float64, ``[C, V ** tokens]``; the first token is the slowest index."""
    context = torch.arange(CONTEXTS)[:, None]
    row = torch.zeros(CONTEXTS, 1, dtype=torch.long)
    mass = torch.ones(CONTEXTS, 1, dtype=torch.float64)
    for _ in range(tokens):
        mass = (mass[..., None] * adjusted(table.after(context, row), sampling)).flatten(1)
        row = child(row[..., None], torch.arange(VOCAB)).flatten(1)
    return mass


def tally(context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Counts of token sequences ``[n, m]`` by context ``[n]``, in the cells of `joint`: ``[C, V ** m]``."""
    cells = VOCAB ** tokens.shape[1]
    index = context.long()
    for column in tokens.long().unbind(1):
        index = index * VOCAB + column
    return index.bincount(minlength=CONTEXTS * cells).view(CONTEXTS, cells)
