"""Which keys a query of speculative decoding sees, as boolean tensors over the keys of each request.

Shapes: B requests, n query rows a request, L key columns (the longest request's). Column j of request b is its j-th
token: columns below ``base[b]`` are committed, the following ones are drafted. Columns past a request's end are never
visible.
"""

from __future__ import annotations

import torch


def chain(base: torch.Tensor, rows: int, length: int) -> torch.Tensor:
    """Row i of a request sees its committed tokens and the drafted ones up to itself: ``[B, n, L]``."""
    last = base.view(-1, 1) + torch.arange(rows, device=base.device)  # [B, n]
    return torch.arange(length, device=base.device) <= last.unsqueeze(-1)


def tree(base: torch.Tensor, ancestors: torch.Tensor, length: int) -> torch.Tensor:
    """Row i sees the committed tokens and its ancestors.

    Args:
        base: committed tokens of each request, ``[B]``.
        ancestors: ``[B, n, n]`` boolean, ``ancestors[b, i, j]`` when node j is node i or above it.
        length: L.

    Returns:
        ``[B, n, L]`` boolean.
    """
    rows = ancestors.shape[1]
    offset = torch.arange(length, device=base.device) - base.view(-1, 1)  # [B, L]
    node = offset.clamp(0, rows - 1).unsqueeze(1).expand(-1, rows, -1)
    drafted = (offset >= 0) & (offset < rows)
    return (ancestors.gather(2, node) & drafted.unsqueeze(1)) | (offset < 0).unsqueeze(1)


def branches(base: torch.Tensor, topk: int, num_steps: int, step: int, length: int) -> torch.Tensor:
    """Draft decoding: row t sees the committed tokens and the first ``step + 1`` slots of branch t.

    SGLang lays the slots of a request out as ``[topk, num_steps]`` after its committed tokens.

    Returns:
        ``[B, topk, L]`` boolean.
    """
    offset = torch.arange(length, device=base.device) - base.view(-1, 1)  # [B, L]
    branch, at = offset.div(num_steps, rounding_mode="floor"), offset.remainder(num_steps)
    own = branch.unsqueeze(1) == torch.arange(topk, device=base.device).view(1, -1, 1)
    return (own & (at <= step).unsqueeze(1)) | (offset < 0).unsqueeze(1)


def within(visible: torch.Tensor, query: torch.Tensor, key: torch.Tensor, window: int) -> torch.Tensor:
    """Keep the keys at most ``window`` positions before their query (SGLang's convention: the query itself on top).

    Args:
        visible: ``[B, n, L]``.
        query: position of each row, ``[B, n]``.
        key: position of each column, ``[B, L]``; a drafted token's is its depth in the tree, not its column.
        window: keys before the query.
    """
    return visible & (key.unsqueeze(1) >= query.unsqueeze(-1) - window)


def bias(visible: torch.Tensor, groups: int, dtype: torch.dtype) -> torch.Tensor:
    """What is added to the scores: ``[B, 1, groups * n, L]``, 0 where visible, -inf elsewhere.

    The query heads that share a key head are stacked as rows, group after group, so no key is ever repeated.
    """
    added = torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))
    return added.repeat(1, groups, 1).unsqueeze(1)
