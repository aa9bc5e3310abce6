"""Trees as SGLang verifies them, read and cut. B requests, N nodes with the root as node 0, K = topk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from sglang_eagle31.maths.shape import Shape
from sglang_eagle31.server.guard.evidence import Outcome

Ints = NDArray[np.int64]


def outcome(
    shape: Shape,
    rows: Sequence[int],
    accept_lens: Ints,
    accept_index: Ints,
    chosen: Ints,
    next_token: Ints,
    next_sibling: Ints,
) -> Outcome:
    """What a verification of trees says.

    Args:
        shape: of the trees.
        rows: the requests that count.
        accept_lens: ``[B]`` tokens of each request, bonus token included.
        accept_index: ``[B, steps + 1]`` accepted nodes, numbered through the batch, root first.
        chosen: ``[B, N - 1]`` of each node but the root, its number among the candidates of the draft, of which each
            parent's follow each other by rank.
        next_token, next_sibling: ``[B, N]`` the first child and the next sibling of each node, -1 for none.
    """
    paths, missed = [], []
    for row in rows:
        path = (accept_index[row, : accept_lens[row]] - row * shape.draft_tokens).tolist()
        paths.append([int(chosen[row, node - 1]) % shape.topk for node in path[1:]])
        child, count = int(next_token[row, path[-1]]), 0
        while child >= 0:
            child, count = int(next_sibling[row, child]), count + 1
        missed.append(count)
    return Outcome.tree(paths, missed, shape.steps, shape.topk)


def cut(next_token: torch.Tensor, depth: torch.Tensor, caps: Mapping[int, int]) -> None:
    """Take the children off the nodes at the cap of each capped row, in place, so that no deeper draft is accepted.

    ``next_token`` and ``depth`` are ``[B, N]``.
    """
    for row, cap in caps.items():
        next_token[row].masked_fill_(depth[row] >= cap, -1)
