"""The tokens on the way from each node of a draft tree to its root, on any device and without waiting for it.

Dimensions: B requests; N nodes of a tree (node 0 is the root, the last committed token); D nodes of the longest path.
"""

from __future__ import annotations

import torch


def parents(next_token: torch.Tensor, next_sibling: torch.Tensor) -> torch.Tensor:
    """The parent of every node from SGLang's links.

    Args:
        next_token: int64 [B, N] first child of each node, -1 for none.
        next_sibling: int64 [B, N] next child of the same parent, -1 for none.

    Returns:
        int64 [B, N]; -1 for the root and for a node that nothing links to.
    """
    batch, nodes = next_token.shape
    own = torch.arange(nodes, device=next_token.device).expand(batch, nodes)
    parent = _inverse(next_token, own, torch.full_like(next_token, -1))
    elder = _inverse(next_sibling, own, own)
    for _ in range((nodes - 1).bit_length()):  # pointer doubling: the eldest sibling hangs on the parent
        elder = elder.gather(1, elder)
    return parent.gather(1, elder)


def path_tokens(tokens: torch.Tensor, parent: torch.Tensor, depth: int) -> torch.Tensor:
    """Tokens from each node up to the root.

    Args:
        tokens: int64 [B, N] token of each node.
        parent: int64 [B, N] of `parents`.
        depth: D, nodes of the longest path.

    Returns:
        int64 [B, N, D]: the node's own token, its parent's and so on, -1 where the path is over.
    """
    here = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    steps = []
    for _ in range(depth):
        inside = here >= 0
        at = here.clamp(min=0)
        steps.append(torch.where(inside, tokens.gather(1, at), -1))
        here = torch.where(inside, parent.gather(1, at), -1)
    return torch.stack(steps, dim=2)


def accepted_tokens(tokens: torch.Tensor, accept_index: torch.Tensor) -> torch.Tensor:
    """Tokens that a round commits, its bonus token left out: that one is the next root.

    Args:
        tokens: int64 [B, N] token of each node.
        accept_index: [B, D] flat numbers (request * N + node) of the accepted path, root first, -1 past its end.

    Returns:
        int64 [B, D], -1 past the end of a path.
    """
    index = accept_index.long()
    return torch.where(index >= 0, tokens.reshape(-1)[index.clamp(min=0)], -1)


def _inverse(links: torch.Tensor, own: torch.Tensor, default: torch.Tensor) -> torch.Tensor:
    """``out[links[i]] = i`` per row, ``default`` where nothing links to; a link of -1 goes to a column that is cut."""
    spare = torch.zeros_like(links[:, :1])
    nodes = links.shape[1]
    return torch.cat([default, spare], dim=1).scatter(1, torch.where(links >= 0, links, nodes), own)[:, :nodes]
