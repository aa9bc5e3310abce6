"""Attention weights recomputed from queries and keys, and what one query row attends to, by kind of key.

Dimensions: R query rows, S keys, A heads, D head width. Key j of a draft head is the target's state of token j with the
embedding of token j + 1, so the keys of a request are: the prompt's, those of committed answer tokens, and those of
drafted tokens. Entropy is in nats.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_eagle31.server.probe.record import KINDS

NEAR = 16
"""How many of its last keys are summed up for a row of depth 0."""


def weights(
    query: Tensor,
    keys: Tensor,
    visible: Tensor,
    scale: float,
    cap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Softmax weights in float32, ``[R, A, S]``; hidden keys get 0.

    Args:
        query: ``[R, A, D]``, rotated.
        keys: ``[S, KV, D]``, rotated; head ``a`` reads key head ``a // (A / KV)``.
        visible: ``[R, S]`` boolean; every row sees a key.
        scale: factor on the scores.
        cap: logit cap (``cap * tanh(score / cap)``); 0 is none.
        sinks: one learned logit a head, ``[A]``, that takes part in the softmax; weights then sum to less than 1.
    """
    rows, heads, width = query.shape
    kv_heads = keys.shape[1]
    grouped = query.float().view(rows, kv_heads, heads // kv_heads, width)
    scores = torch.einsum("rkgd,skd->rkgs", grouped, keys.float()).reshape(rows, heads, -1) * scale
    if cap:
        scores = cap * torch.tanh(scores / cap)
    scores = scores.masked_fill(~visible.unsqueeze(1), float("-inf"))
    if sinks is None:
        return scores.softmax(-1)
    learned = sinks.float().view(1, heads, 1).expand(rows, -1, -1)
    return torch.cat([scores, learned], dim=-1).softmax(-1)[..., :-1]


def entropy(weight: Tensor) -> Tensor:
    """Entropy of each row's weights in nats, mean over heads: ``[R, A, S]`` to ``[R]``."""
    return -torch.xlogy(weight, weight).sum(-1).mean(-1)


def column_means(weight: Tensor, last: Tensor) -> Tensor:
    """Mean weight of each key that all rows see: ``[R, A, S]`` to ``[s]``.

    Args:
        weight: rows of a prefill.
        last: the own key of each row, ``[R]``; keys after the first row's own are not seen by all, and are left out.
    """
    return weight[..., : int(last.min()) + 1].mean(dim=(0, 1))


def sink_rows(length: int, most: int = 16) -> list[int]:
    """Rows of a prefill of ``length`` rows by which the sink is located: evenly spread over its second half."""
    first = length // 2
    count = min(most, length - first)
    return [first + i * (length - first) // count for i in range(count)]


def near(weight: Tensor, own: Tensor) -> dict[str, Tensor]:
    """What a row that reads the target's states gives to its last d keys, its own included: ``near_d``, ``[R]``.

    It is the control for ``mass_drafted`` at depth d, where the last d keys are the drafted ones: attention that
    depends on the distance alone gives more and more to drafted tokens, too.

    Args:
        weight: ``[R, A, S]`` over keys in order.
        own: index of each row's own key, ``[R]``.
    """
    sums = torch.nn.functional.pad(weight.mean(1).cumsum(-1), (1, 0))  # [R, S + 1]: keys before each
    most = min(NEAR, int(own.min()) + 1)
    end = sums.gather(1, own.view(-1, 1) + 1)
    return {f"near_{d}": (end - sums.gather(1, own.view(-1, 1) + 1 - d)).squeeze(1) for d in range(1, most + 1)}


def kinds(columns: Tensor, sink: int, prompt: int, committed: int) -> Tensor:
    """Which group each key belongs to, as an index into `KINDS`.

    Args:
        columns: place of each key in the sequence, ``[S]``; drafted ones are ``committed`` or more.
        sink: the located sink's place.
        prompt: how many places are the prompt's.
        committed: how many places the target has read.
    """
    kind = 1 + (columns >= prompt).long() + (columns >= committed).long()
    return kind.masked_fill(columns == sink, 0)


def measure(weight: Tensor, visible: Tensor, kind: Tensor, own: Tensor) -> dict[str, Tensor]:
    """Every quantity of each row, mean over heads.

    Args:
        weight: ``[R, A, S]`` as `weights` gives it.
        visible: ``[R, S]``.
        kind: ``[S]`` as `kinds` gives it.
        own: index of each row's own key, ``[R]``.

    Returns:
        ``mass_KIND`` (sum over the group's keys), ``key_KIND`` (the same over the number of keys that the row sees; NaN
        where it sees none), ``mass_self`` (own key, which is part of its group too) and ``entropy``, each ``[R]``.
    """
    mean = weight.mean(1)  # [R, S]
    out = {"entropy": entropy(weight), "mass_self": mean.gather(1, own.view(-1, 1)).squeeze(1)}
    for index, name in enumerate(KINDS):
        inside = visible & (kind == index)
        mass = (mean * inside).sum(-1)
        out[f"mass_{name}"] = mass
        out[f"key_{name}"] = mass / inside.sum(-1).float().masked_fill(~inside.any(-1), float("nan"))
    return out
