"""Draft-tree ops of EAGLE speculative decoding on a CPU: build the tree, verify it greedily.

Dimensions: B requests; N nodes of a tree (node 0 is the bonus token, the root); K = topk; D = draft steps;
S = D + 1, the longest accepted path with its root.

Candidates. Draft step 0 proposes K candidates, numbered 0..K-1; step i > 0 proposes K for each of the K beams kept
by step i - 1, numbered K + K*K*(i - 1) + beam*K + rank. So `candidate // K` numbers the group of candidates that share
a parent; group 0 hangs on the root and `parent_list[group]` is the candidate the others hang on.

The arithmetic is NumPy on zero-copy views: with 4 to 1,000 elements a call costs a fraction of a torch call.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

Ints = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]

FULL_MASK = 0
"""Tree mask of [N, seq_len + N] per request, requests one after the other."""
QLEN_ONLY = 1
"""Tree mask of [N, N] per request; the committed prefix is visible without a mask."""


class Numbering(NamedTuple):
    """Node numbers of a batch; a node's flat number is request * N + node."""

    flat: Ints  # [B*N] flat number of each node
    local: Ints  # [B*N] number of each node in its own tree
    request: Ints  # [B, 1]
    itself: Bools  # [B*N, N] one-hot of `local`


class _Shape(NamedTuple):
    """Structure of B trees, free of sequence lengths."""

    mask: Bools  # [B, N, N] node i (dim 1) sees node j (dim 2): j is i, an ancestor of i, or the root
    depth: Ints  # [B, N]
    first_child: Ints  # [B, N], -1 = none
    next_sibling: Ints  # [B, N], -1 = none


@lru_cache(maxsize=64)
def numbering_of(batch: int, nodes: int) -> Numbering:
    flat = np.arange(batch * nodes)
    local = flat % nodes
    return Numbering(flat, local, np.arange(batch)[:, None], local[:, None] == np.arange(nodes))


@lru_cache(maxsize=64)
def _chain_shape(batch: int, nodes: int) -> _Shape:
    """Every node the only child of the one before it."""
    node = np.arange(nodes)
    child = np.append(node[1:], -1)
    mask = node[:, None] >= node
    shape = (batch, nodes)
    return _Shape(
        np.broadcast_to(mask, (batch, nodes, nodes)),
        np.broadcast_to(node, shape),
        np.broadcast_to(child, shape),
        np.full(shape, -1),
    )


def _tree_parents(parent_list: Ints, selected: Ints, groups: Ints, topk: int, depth: int) -> tuple[Ints, Bools | None]:
    """Flat parent number of every node [B*N], and which nodes are orphans [B*N] (None: no node is).

    A root and an orphan are their own parent. An orphan is a selected candidate whose parent was not selected: with a
    draft probability of exactly 1.0 a child scores as high as its parent, and top-k may drop the parent.
    """
    batch, drafts = selected.shape
    numbering = numbering_of(batch, drafts + 1)
    # Key of a node: candidate + 1 (the root: 0), shifted by request so that all rows are one ascending array.
    keys = np.zeros((batch, drafts + 1), dtype=np.int64)
    wanted = np.zeros_like(keys)
    np.add(selected, 1, out=keys[:, 1:])
    width = parent_list.shape[1]
    if width:
        parents = parent_list.ravel().take(groups + numbering.request * width)
        np.multiply(parents + 1, groups > 0, out=wanted[:, 1:])
    if batch > 1:
        shift = numbering.request * (topk * (1 + topk * depth) + 1)
        keys += shift
        wanted += shift
    ordered, wanted = keys.ravel(), wanted.ravel()
    if not (ordered[1:] > ordered[:-1]).all():
        raise ValueError(f"selected_index must ascend in each row and fit topk={topk}, depth={depth}; got {selected}")
    parent = ordered.searchsorted(wanted)
    orphan = ordered.take(parent) != wanted
    if not orphan.any():
        return parent, None
    return np.where(orphan, numbering.flat, parent), orphan


def _ancestor_mask(parent: Ints, numbering: Numbering, depth: int) -> Bools:
    """[B*N, N]: each node sees itself, its ancestors and the root. Pointer doubling: log2(depth) rounds."""
    mask = numbering.itself.take(parent, axis=0)
    mask |= numbering.itself
    jump = parent
    for _ in range((depth - 1).bit_length() - 1):
        jump = jump.take(jump)
        mask |= mask.take(jump, axis=0)
    mask[:, 0] = True
    return mask


def _tree_shape(parent_list: Ints, selected: Ints, topk: int, depth: int) -> _Shape:
    """Structure of trees of any form. Siblings are neighbours: candidates of a group have successive numbers."""
    batch, drafts = selected.shape
    nodes = drafts + 1
    numbering = numbering_of(batch, nodes)
    groups = selected // topk
    parent, orphan = _tree_parents(parent_list, selected, groups, topk, depth)
    mask = _ancestor_mask(parent, numbering, depth)

    starts = np.ones((batch, nodes), dtype=np.bool_)  # nodes that are the first of their group; roots are none
    starts[:, 0] = False
    np.not_equal(groups[:, 1:], groups[:, :-1], out=starts[:, 2:])
    next_sibling = np.full((batch, nodes), -1)
    np.copyto(next_sibling[:, 1:-1], numbering.local[2:nodes], where=~starts[:, 2:])
    if orphan is not None:  # nothing links to an orphan, so it is never accepted
        orphans = orphan.reshape(batch, nodes)
        starts &= ~orphans
        next_sibling[orphans] = -1
    first = starts.ravel().nonzero()[0]
    first_child = np.full(batch * nodes, -1)
    first_child[parent.take(first)] = numbering.local.take(first)
    return _Shape(
        mask.reshape(batch, nodes, nodes),
        (np.add.reduce(mask, axis=1, dtype=np.int64) - 1).reshape(batch, nodes),
        first_child.reshape(batch, nodes),
        next_sibling,
    )


def _write_full_mask(tree_mask: NDArray[Any], shape: _Shape, seq_lens: Ints) -> None:
    """Write the [N, N] tree cells behind each request's [N, seq_len] prefix cells, which stay as they are."""
    nodes = shape.mask.shape[1]
    row_width = seq_lens + nodes
    begin = np.cumsum(row_width * nodes) - row_width * nodes + seq_lens
    node = np.arange(nodes)
    tree_mask[begin[:, None, None] + row_width[:, None, None] * node[:, None] + node] = shape.mask


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Turn the selected candidates into trees. Nodes keep the order of `selected_index`; siblings link in that order.

    Any integer dtype. A candidate whose parent is not selected is linked to nothing; it sees the root and itself (and
    its own selected ancestors), and its position counts those.

    Args:
        parent_list: [B, K*(D-1) + 1] candidate a group hangs on, by group; [B, 0] where D is 1.
        selected_index: [B, N-1] selected candidates, ascending in each row.
        verified_seq_len: [B] committed tokens, that is, the root's position.
        tree_mask: bool, written. QLEN_ONLY: [B*N*N]; FULL_MASK: [N * (sum of seq_len + B*N)], tree cells only.
        positions: [B*N], written: seq_len + depth of the node.
        retrive_index: [B, N], written: flat number of each node.
        retrive_next_token: [B, N], written: first child, -1 for none.
        retrive_next_sibling: [B, N], written: next child of the same parent, -1 for none.
        topk: K.
        depth: D.
        draft_token_num: N.
        tree_mask_mode: FULL_MASK or QLEN_ONLY.

    Raises:
        ValueError: another mask mode (the bit-packed one is 2), or `selected_index` not ascending.
    """
    if tree_mask_mode not in (FULL_MASK, QLEN_ONLY):
        raise ValueError(
            f"tree_mask_mode={int(tree_mask_mode)}: on a CPU the tree mask is FULL_MASK (0) or QLEN_ONLY (1), "
            "the bit-packed form is not supported; use one of these"
        )
    batch, nodes = verified_seq_len.shape[0], int(draft_token_num)
    if batch == 0:
        return
    seq_lens = verified_seq_len.numpy()
    if topk == 1 and nodes == depth + 1:
        shape = _chain_shape(batch, nodes)
    else:
        shape = _tree_shape(parent_list.numpy(), selected_index.numpy(), int(topk), int(depth))
    if tree_mask_mode == QLEN_ONLY:
        tree_mask.numpy()[: batch * nodes * nodes].reshape(batch, nodes, nodes)[...] = shape.mask
    else:
        _write_full_mask(tree_mask.numpy(), shape, seq_lens)
    np.add(shape.depth, seq_lens[:, None], out=positions.numpy().reshape(batch, nodes), casting="same_kind")
    retrive_index.numpy()[...] = numbering_of(batch, nodes).flat.reshape(batch, nodes)
    retrive_next_token.numpy()[...] = shape.first_child
    retrive_next_sibling.numpy()[...] = shape.next_sibling


def linked_parents(next_token: Ints, next_sibling: Ints, numbering: Numbering, nodes: int) -> Ints:
    """Flat parent number of every node [B*N] from its links; a node that nothing links to is its own parent."""
    base = numbering.flat - numbering.local
    owner = (next_token >= 0).nonzero()[0]
    parent = numbering.flat.copy()
    parent[next_token.take(owner) + base.take(owner)] = owner
    elder = (next_sibling >= 0).nonzero()[0]
    if elder.size == 0:
        return parent
    eldest = numbering.flat.copy()
    eldest[next_sibling.take(elder) + base.take(elder)] = elder
    for _ in range((nodes - 2).bit_length()):  # pointer doubling: a sibling chain has at most N - 1 nodes
        eldest = eldest.take(eldest)
    return parent.take(eldest)


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Accept the path from the root along which each node is the target model's choice after its parent.

    Of siblings that hold the same token the first is taken; sibling chains ascend in node number. Any integer dtype.
    Argument names are those SGLang passes by keyword.

    Args:
        predicts: [B*N], written at the slots of the accepted path only: the target's token after that node.
        accept_index: [B, S], written for the accepted path only, root first: slots of its nodes.
        accept_token_num: [B], written: accepted nodes without the root, at most S - 1.
        candidates: [B, N] token of each node.
        retrive_index: [B, N] slot of each node, its row in `predicts` and flattened `target_predict`.
        retrive_next_token: [B, N] first child, -1 for none.
        retrive_next_sibling: [B, N] next sibling, -1 for none.
        target_predict: [B, N] the target's token after each node.
    """
    batch, nodes = candidates.shape
    if batch == 0:
        return
    numbering = numbering_of(batch, nodes)
    slots = retrive_index.numpy().ravel()
    links = retrive_next_token.numpy().ravel(), retrive_next_sibling.numpy().ravel()
    parent = linked_parents(*links, numbering, nodes)
    choice = target_predict.numpy().ravel().take(slots)

    fits = candidates.numpy().ravel() == choice.take(parent)
    fits &= parent != numbering.flat
    hit = fits.nonzero()[0]
    hit_parent = parent.take(hit)
    successor = numbering.flat.copy()  # first matching child, the node itself where none matches
    successor[hit_parent] = batch * nodes
    np.minimum.at(successor, hit_parent, hit)

    path = walk(successor, slots, accept_index, accept_token_num)
    predicts.numpy()[slots.take(path)] = choice.take(path)


def walk(successor: Ints, slots: Ints, accept_index: torch.Tensor, accept_token_num: torch.Tensor) -> Ints:
    """Follow each root to the end of its path, at most S nodes, and write which nodes were accepted.

    Args:
        successor: [B*N] flat number of the node accepted after each node, its own number for none.
        slots: [B*N] slot of each node.
        accept_index: [B, S], written for the paths only.
        accept_token_num: [B], written: nodes of the path without the root.

    Returns:
        [B, L] flat numbers of the nodes of each path, L the longest; a shorter path repeats its last node.
    """
    batch = accept_index.shape[0]
    path = np.empty((batch, accept_index.shape[1]), dtype=np.int64)
    here: Ints = np.arange(0, len(slots), len(slots) // batch)
    path[:, 0] = here
    length = 1
    while length < path.shape[1] and ((following := successor.take(here)) != here).any():
        path[:, length] = here = following
        length += 1
    path = path[:, :length]
    fresh = np.ones(path.shape, dtype=np.bool_)
    np.not_equal(path[:, 1:], path[:, :-1], out=fresh[:, 1:])
    np.copyto(accept_index.numpy()[:, :length], slots.take(path), where=fresh, casting="same_kind")
    accept_token_num.numpy()[...] = np.add.reduce(fresh, axis=1, dtype=np.int64) - 1
    return path
