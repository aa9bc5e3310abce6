"""Drafts as SGLang's EAGLE worker makes them, from a table: the best candidates of a beam, or a sampled chain.

B sequences, each at a row of the tables; N nodes (node 0 the last committed token); K topk; D draft steps; V tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang_eagle31.server.cpu.filters import spread_draft_probs
from sglang_eagle31.server.cpu.tree import QLEN_ONLY, build_tree_kernel_efficient_cpu
from sglang_eagle31.tools.verify.synthetic import REDUCED, VOCAB, Table, child


@dataclass(frozen=True)
class Shape:
    """A draft tree, as SGLang's three flags give it."""

    steps: int
    topk: int
    nodes: int


@dataclass(frozen=True)
class Proposal:
    """Drafted trees with the links that verification walks, and what was drafted from."""

    candidates: torch.Tensor
    """``[B, N]`` token of each node."""
    index: torch.Tensor
    next_token: torch.Tensor
    next_sibling: torch.Tensor
    """``[B, N]`` each, as the tree builder writes them."""
    rows: torch.Tensor
    """``[B, N]`` row of the tables at each node: the continuation that the node sees under the tree's mask."""
    draft_probs: torch.Tensor | None = None
    """``[B, D, V]`` the distribution that each token of a sampled chain was drawn from."""


@dataclass(frozen=True)
class Drafter:
    """A table to draft with, on the whole vocabulary or on REDUCED."""

    table: Table
    reduced: bool = False

    def logits(self, context: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        """``[..., V]`` or, reduced, ``[..., len(REDUCED)]`` of rows ``[...]``."""
        logits = self.table.after(context, row)
        return logits[..., list(REDUCED)] if self.reduced else logits

    def tokens(self, draft_ids: torch.Tensor) -> torch.Tensor:
        """Target ids of draft ids, any shape."""
        return torch.tensor(REDUCED)[draft_ids] if self.reduced else draft_ids


def draft_tree(drafter: Drafter, context: torch.Tensor, row: torch.Tensor, shape: Shape) -> Proposal:
    """The N - 1 most probable candidates of a beam of K over D steps (a chain where K is 1), without any chance.

    ``context`` and ``row`` ``[B]``. The numbering of candidates is that of `sglang_eagle31.server.cpu.tree`.
    """
    batch, topk = len(row), shape.topk
    beams, scores = row[:, None], torch.ones(batch, 1)
    found: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    parents = torch.arange(-1, topk).expand(batch, -1)
    for step in range(shape.steps):
        probs = drafter.logits(context[:, None], beams).softmax(-1)
        best, ids = probs.topk(topk, dim=-1)
        tokens = drafter.tokens(ids).flatten(1)
        expanded = (scores[..., None] * best).flatten(1)
        if step == 0:
            scores, kept = expanded, torch.arange(topk).expand(batch, -1)
        else:
            scores, kept = expanded.topk(topk, dim=-1)
            parents = kept + topk * topk * (step - 1) + topk
        found.append((expanded, tokens, parents))
        beams = child(beams.gather(1, kept // topk), tokens.gather(1, kept))
    all_scores, all_tokens = (torch.cat([entry[part] for entry in found], dim=1) for part in (0, 1))
    selected = all_scores.topk(shape.nodes - 1, dim=-1).indices.sort(dim=-1).values
    drafts = all_tokens.gather(1, selected)
    links = [entry[2] for entry in found[:-1]]
    parent_list = torch.cat(links, dim=1) if links else torch.empty(batch, 0, dtype=torch.long)
    return build(parent_list, selected, drafts, row, shape)


def draft_chain(
    drafter: Drafter,
    context: torch.Tensor,
    row: torch.Tensor,
    shape: Shape,
    temperature: float,
    random: torch.Generator,
) -> Proposal:
    """A chain whose tokens are drawn from the drafter at the request's temperature, with the distributions.

    On a reduced vocabulary the probabilities are put at the target's ids.
    """
    at, tokens, probs = row, [], []
    for _ in range(shape.steps):
        drawn = (drafter.logits(context, at) / temperature).softmax(-1)
        ids = torch.multinomial(drawn, 1, generator=random)
        tokens.append(drafter.tokens(ids))
        probs.append(spread_draft_probs(drawn, torch.tensor(REDUCED), VOCAB) if drafter.reduced else drawn)
        at = child(at, tokens[-1][:, 0])
    parents = torch.arange(-1, shape.steps - 1).expand(len(row), -1)
    selected = torch.arange(shape.steps).expand(len(row), -1)
    proposal = build(parents, selected, torch.cat(tokens, dim=1), row, shape)
    return Proposal(**{**proposal.__dict__, "draft_probs": torch.stack(probs, dim=1)})


def build(
    parent_list: torch.Tensor, selected: torch.Tensor, drafts: torch.Tensor, row: torch.Tensor, shape: Shape
) -> Proposal:
    """The trees that our builder makes of candidates, read back through its mask."""
    batch, nodes = len(row), shape.nodes
    mask = torch.empty(batch * nodes * nodes, dtype=torch.bool)
    positions = torch.empty(batch * nodes, dtype=torch.long)
    index, next_token, next_sibling = torch.full((3, batch, nodes), -1).unbind(0)
    build_tree_kernel_efficient_cpu(
        parent_list.contiguous(),
        selected.contiguous(),
        torch.full((batch,), 100),
        mask,
        positions,
        index,
        next_token,
        next_sibling,
        shape.topk,
        shape.steps,
        nodes,
        QLEN_ONLY,
    )
    last = (row - 1) % VOCAB
    candidates = torch.cat([last[:, None], drafts], dim=1)
    rows = row[:, None].expand(-1, nodes)
    seen = mask.view(batch, nodes, nodes)
    for node in range(1, nodes):  # an ancestor has a smaller number
        rows = torch.where(seen[:, :, node], child(rows, candidates[:, node, None]), rows)
    return Proposal(candidates, index, next_token, next_sibling, rows)
