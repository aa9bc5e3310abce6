"""Top-k and top-p as SGLang's sampler applies them on a CPU, and draft probabilities over the target's vocabulary.

Dimensions: R rows; V vocabulary of the target; Vd of the draft.

SGLang's CPU sampler (``top_k_top_p_min_p_sampling_from_probs_torch`` in ``layers/sampler.py``, 0.5.23) orders the
softmax by probability and keeps a token when fewer than ``top_k`` are before it *and* what is before it sums to at most
``top_p`` of the whole softmax. Verification applies the two one after the other. To renormalise in between would let
``top_p`` count shares of the ``top_k`` tokens, and keep fewer. So these functions set the others to 0 and leave the
rest as it is: rows are weights afterwards, and verification normalises them. Of tokens with equal probability at the
border the lowest ids are kept; which ones SGLang keeps depends on its batch.
"""

from __future__ import annotations

import numpy as np
import torch

_PREFIXES = (64, 2048)
"""Most probable tokens of a row that are ordered before all of them are."""


def keep_top_k(probs: torch.Tensor, top_ks: torch.Tensor) -> torch.Tensor:
    """Set all but the ``top_k`` largest of each row to 0, in place.

    Args:
        probs: [R, V] weights, written.
        top_ks: [R] at least 1; V or more keeps a row as it is.

    Returns:
        `probs`.
    """
    limited = (top_ks < probs.shape[1]).nonzero()[:, 0]
    if len(limited) == 0:
        return probs
    rows = _rows(probs, limited)
    counts = top_ks[limited].long()
    largest = rows.topk(int(counts.max()), dim=1).values
    _keep(rows, largest, counts)
    return _put(probs, limited, rows)


def keep_top_p(probs: torch.Tensor, top_ps: torch.Tensor) -> torch.Tensor:
    """Set the tokens of each row to 0 before which, in order of probability, more than ``top_p`` lies; in place.

    Args:
        probs: [R, V] weights: a softmax, or what `keep_top_k` left of one. Written.
        top_ps: [R] in (0, 1]; 1 keeps a row as it is.

    Returns:
        `probs`.
    """
    open_rows = (top_ps < 1).nonzero()[:, 0]
    for width in (*_PREFIXES, probs.shape[1]):
        if len(open_rows) == 0:
            break
        width = min(width, probs.shape[1])
        rows = _rows(probs, open_rows)
        largest = _largest(rows, width)
        before = largest.cumsum(1) - largest  # in the weights' own precision, as the sampler has it
        kept = (before <= top_ps[open_rows].to(before.dtype)[:, None]) & (largest > 0)
        settled = ~kept[:, -1] | (width == probs.shape[1])
        counts = kept.sum(1)[settled].clamp_(min=1)
        done = _rows(rows, settled.nonzero()[:, 0])
        _keep(done, largest[settled], counts)
        _put(probs, open_rows[settled], done)
        open_rows = open_rows[~settled]
    return probs


def spread_draft_probs(draft_probs: torch.Tensor, token_map: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Draft probabilities over the target's vocabulary; tokens that the draft does not know have 0.

    Args:
        draft_probs: [..., Vd].
        token_map: [Vd] the target's id of each draft id. Probabilities of draft ids with the same target id add up.
        vocab_size: V.

    Returns:
        [..., V] in the dtype of `draft_probs`.
    """
    spread = draft_probs.new_zeros(*draft_probs.shape[:-1], vocab_size)
    return spread.index_add_(-1, token_map.to(draft_probs.device), draft_probs)


def _keep(rows: torch.Tensor, largest: torch.Tensor, counts: torch.Tensor) -> None:
    """Keep the `counts` [R] largest of `rows` [R, V] in place, given the `largest` values [R, K] in order."""
    border = largest.gather(1, counts[:, None] - 1)
    above = (largest > border).sum(1)
    ties = rows == border
    wanted = counts - above
    many = (ties.sum(1) > wanted).nonzero()[:, 0]
    rows.masked_fill_(rows < border, 0.0)
    if len(many):
        beyond = ties[many].cumsum(1) > wanted[many][:, None]
        rows[many] = rows[many].masked_fill_(ties[many] & beyond, 0.0)


def _largest(rows: torch.Tensor, count: int) -> torch.Tensor:
    """The `count` largest of each row in order; for whole rows NumPy's sort takes a fifth of torch's time."""
    if count < rows.shape[1]:
        return rows.topk(count, dim=1).values
    return torch.from_numpy(np.sort(rows.numpy(), axis=1)).flip(1)


def _rows(probs: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    """The rows `which` of `probs`: itself where these are all."""
    return probs if len(which) == len(probs) else probs[which]


def _put(probs: torch.Tensor, which: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    if rows is not probs:
        probs[which] = rows
    return probs
