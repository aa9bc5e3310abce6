"""Verification of drafts for sampled requests on a CPU: target-only tree sampling, and rejection sampling of a chain.

Dimensions: B requests; N nodes of a tree (node 0 is the bonus token, the root); S the longest accepted path with its
root; V the target's vocabulary.

**Target-only tree sampling.** Let ``p`` be the target's distribution after a node whose children carry the distinct
tokens ``c_1 .. c_m``. One uniform coin ``u`` is drawn for the node. Child ``j`` is accepted when ``p(c_1) + .. +
p(c_{j-1}) <= u < p(c_1) + .. + p(c_j)``, that is, with probability ``p(c_j)``. With the rest ``r = 1 - p(c_1) - .. -
p(c_m)`` none is, and the token is drawn from ``p`` without the children's tokens, renormalised: every other ``x`` has
the probability ``r * p(x) / r = p(x)``. So the token after the node has the distribution ``p``, whatever was drafted.
It is the law of drawing one sample from ``p`` at every node and walking from the root along the children that equal the
samples, and the rule of SGLang's CUDA op (``kernels/jit/include/sgl_kernel/speculative/sampling.cuh``, 0.5.23).

**Rejection sampling** of a chain, from Leviathan et al. 2023 (arXiv 2211.17192) and Chen et al. 2023 (arXiv
2302.01318): a token ``x`` that the draft drew from ``q`` is accepted with probability ``min(1, p(x) / q(x))``. The
first that is not is replaced by a sample of ``max(p - q, 0)``, renormalised; if all are, one of ``p`` follows them.

Rows of probabilities may be weights that do not sum to 1, as `filters.keep_top_k` leaves them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sglang_eagle31.server.cpu.tree import Ints, linked_parents, numbering_of, walk

Floats = NDArray[np.floating[Any]]

_LEAST_THRESHOLD = 1e-9


def tree_speculative_sampling_target_only(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None = None,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Accept a path by target-only tree sampling (see the module), and sample the token after it.

    With thresholds below 1 more is accepted than the target would say: a child is accepted too when its own probability
    reaches `threshold_single`, and `threshold_acc` divides the mass that the coin is compared with.

    Two differences from the CUDA op keep the law exact: of siblings with the same token only the eldest has mass, and
    where rounding leaves no mass beside the children, the token after the path is drawn from ``p`` itself.

    Args:
        predicts: [B*N], written at the slots of the accepted path: the token after that node.
        accept_index: [B, S], written for the accepted path only, root first: slots of its nodes.
        accept_token_num: [B], written: accepted nodes without the root, at most S - 1.
        candidates: [B, N] token of each node.
        retrive_index: [B, N] slot of each node, its row in `predicts`.
        retrive_next_token: [B, N] first child, -1 for none.
        retrive_next_sibling: [B, N] next sibling, -1 for none. A node that nothing links to is never accepted.
        uniform_samples: [B, N] coins in [0, 1): that of a node decides between its children.
        uniform_samples_for_final_sampling: [B] coins in [0, 1) for the token after the path.
        target_probs: [B, N, V] the target's weights after each node; only read.
        draft_probs: not read; the CUDA op keeps the rejected tokens there.
        threshold_single: in [0, 1].
        threshold_acc: in [0, 1].
        deterministic: not read; the same coins always give the same tokens.
    """
    batch, nodes = candidates.shape
    if batch == 0:
        return
    numbering = numbering_of(batch, nodes)
    slots, tokens = retrive_index.numpy().ravel(), candidates.numpy().ravel()
    links = retrive_next_token.numpy().ravel(), retrive_next_sibling.numpy().ravel()
    parent = linked_parents(*links, numbering, nodes)
    mass = _mass(target_probs, parent, tokens)
    mass[parent == numbering.flat] = 0.0
    order, reach = _among_siblings(links[1], numbering.flat - numbering.local, parent, tokens, mass)

    fits = uniform_samples.numpy().ravel().take(parent) < reach / max(threshold_acc, _LEAST_THRESHOLD)
    fits |= mass >= threshold_single
    fits &= mass > 0
    hit = fits.nonzero()[0]
    hit = hit[np.argsort(-order.take(hit), kind="stable")]  # eldest last: of repeated indices the last is assigned
    successor = numbering.flat.copy()
    successor[parent.take(hit)] = hit

    path = walk(successor, slots, accept_index, accept_token_num)
    predicts.numpy()[slots.take(path[:, :-1])] = tokens.take(path[:, 1:])
    last = path[:, -1]
    weights = target_probs.reshape(batch * nodes, -1)[torch.from_numpy(last)].double()
    asked = last[accept_token_num.numpy() < accept_index.shape[1] - 1]  # a path of S nodes ends before its children
    rejected = np.flatnonzero((mass > 0) & np.isin(parent, asked))
    rest = weights.clone()
    rest[torch.from_numpy(rejected // nodes), torch.from_numpy(tokens.take(rejected)).long()] = 0.0
    predicts.numpy()[slots.take(last)] = _draw(rest, weights, uniform_samples_for_final_sampling)


def chain_speculative_sampling(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Accept the head of a chain by rejection sampling (see the module), and sample the token after it.

    A drafted token to which ``q`` gives no probability is rejected. Outputs are those of
    `tree_speculative_sampling_target_only`, with N = S and node i the only child of node i - 1.

    Args:
        predicts: [B*N], written at the slots of the accepted nodes.
        accept_index: [B, N], written for the accepted nodes only.
        accept_token_num: [B], written.
        candidates: [B, N] the chain's tokens, the root first.
        retrive_index: [B, N] slot of each node.
        retrive_next_token: not read.
        retrive_next_sibling: not read.
        uniform_samples: [B, N] coins in [0, 1): coin i decides on node i + 1.
        uniform_samples_for_final_sampling: [B] coins in [0, 1) for the token after the accepted nodes.
        target_probs: [B, N, V] the target's weights after each node.
        draft_probs: [B, N-1, V] or more rows: the probabilities that node i + 1 was drawn from, at row i.
        threshold_single: not read, the rule has no thresholds.
        threshold_acc: not read.
        deterministic: not read.
    """
    batch, nodes = candidates.shape
    if batch == 0:
        return
    drafted = candidates[:, 1:, None].long()
    total = target_probs.sum(-1, dtype=torch.float64)
    chance = target_probs[:, :-1].gather(2, drafted)[..., 0].double() / total[:, :-1]
    proposed = draft_probs[:, : nodes - 1].gather(2, drafted)[..., 0].double()
    accepted = (uniform_samples[:, : nodes - 1].double() * proposed < chance) & (proposed > 0) & (proposed <= 1)
    count = accepted.long().cumprod(1).sum(1)

    reached = torch.arange(nodes) <= count[:, None]
    accept_index.copy_(torch.where(reached, retrive_index, accept_index).to(accept_index.dtype))
    accept_token_num.copy_(count)
    request = torch.arange(batch)
    weights = target_probs[request, count].double() / total[request, count][:, None]
    short = (count < nodes - 1).nonzero()[:, 0]
    rest = weights.clone()
    rest[short] -= draft_probs[short, count[short]].double().nan_to_num(0.0, 0.0, 0.0).clamp_(0.0, 1.0)
    token = torch.from_numpy(_draw(rest.clamp_(min=0.0), weights, uniform_samples_for_final_sampling))
    following = torch.cat([candidates[:, 1:], candidates[:, :1]], 1).scatter(1, count[:, None], token[:, None])
    predicts[retrive_index[reached].long()] = following[reached].to(predicts.dtype)


def _mass(target_probs: torch.Tensor, parent: Ints, tokens: Ints) -> Floats:
    """[B*N] probability of each node's token after its parent."""
    rows = target_probs.reshape(len(parent), -1)
    at = torch.from_numpy(parent)
    mass = rows[at, torch.from_numpy(tokens).long()].double() / rows.sum(-1, dtype=torch.float64)[at]
    found: Floats = mass.numpy()
    return found


def _among_siblings(next_sibling: Ints, base: Ints, parent: Ints, tokens: Ints, mass: Floats) -> tuple[Ints, Floats]:
    """Number of elder siblings [B*N], and the mass of each node and its elder siblings [B*N].

    The mass of a node whose token an elder sibling has is set to 0. Pointer doubling: log2(N) rounds.
    """
    count = len(next_sibling)
    elder = np.full(count + 1, count)  # the last entry stands for no elder
    has = (next_sibling >= 0).nonzero()[0]
    elder[next_sibling.take(has) + base.take(has)] = has
    order = np.append((elder[:-1] < count).astype(np.int64), 0)
    jumps = [elder]
    while (jumps[-1] < count).any():
        order += order.take(jumps[-1])
        jumps.append(jumps[-1].take(jumps[-1]))
    if has.size:
        some = mass.nonzero()[0]  # children only: a root and an orphan are their own parents, without mass
        some = some[np.lexsort((order.take(some), tokens.take(some), parent.take(some)))]
        same = (np.diff(parent.take(some)) == 0) & (np.diff(tokens.take(some)) == 0)
        mass[some[1:][same]] = 0.0
    reach = np.append(mass, 0.0)
    for jump in jumps[:-1]:
        reach += reach.take(jump)
    return order[:-1], reach[:-1]


def _draw(weights: torch.Tensor, instead: torch.Tensor, coins: torch.Tensor) -> Ints:
    """[B] a token of each row of `weights` [B, V] at its coin, or of `instead` where the row has no weight.

    The first token at which the cumulated weight passes ``coin * total``; never one without weight.
    """
    cumulated = weights.cumsum(1)
    empty = (cumulated[:, -1] <= 0).nonzero()[:, 0]
    if len(empty):
        cumulated[empty] = instead[empty].cumsum(1)
    total = cumulated[:, -1:].contiguous()
    found = torch.searchsorted(cumulated, coins.double()[:, None] * total, right=True)
    last = torch.searchsorted(cumulated, total)  # the first to reach the total is the last with weight
    token: Ints = torch.minimum(found, last)[:, 0].numpy()
    return token
