"""Slow, obvious counterparts of the CPU ops, and random draft trees laid out as SGLang lays them out.

Everything here is plain Python over lists, written from what an op means.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

ROOT = -1
"""Parent of the candidates of draft step 0."""


@dataclass(frozen=True)
class DraftTree:
    """One request's selected candidates and, apart from the layout, who hangs on whom."""

    parent_list: list[int]  # what SGLang passes: -1, then the beams of each step but the last
    selected: list[int]  # selected candidates, ascending
    parent_of: dict[int, int]  # candidate -> candidate or ROOT, for every candidate proposed


def candidate_count(topk: int, depth: int) -> int:
    """Candidates proposed in `depth` draft steps."""
    return topk + (depth - 1) * topk * topk


def draft_tree(rng: random.Random, topk: int, depth: int, nodes: int, certain: float = 0.0) -> DraftTree:
    """Beam search over random probabilities, then the best `nodes - 1` candidates by score, ascending.

    `certain` is the share of probabilities equal to 1.0, with which a child ties with its parent.
    """

    def probabilities() -> list[float]:
        return sorted((1.0 if rng.random() < certain else rng.uniform(0.05, 0.95) for _ in range(topk)), reverse=True)

    scores: dict[int, float] = dict(enumerate(probabilities()))
    parent_of = dict.fromkeys(scores, ROOT)
    beams = list(scores)
    kept = [ROOT, *beams]
    for _ in range(1, depth):
        children: dict[int, float] = {}
        number = len(scores)
        for beam in beams:
            for probability in probabilities():
                children[number] = scores[beam] * probability
                parent_of[number] = beam
                number += 1
        scores |= children
        beams = best(children, topk, rng)
        kept += beams
    parent_list = kept[:-topk] if depth > 1 else []
    return DraftTree(parent_list, sorted(best(scores, nodes - 1, rng)), parent_of)


def best(scores: dict[int, float], count: int, rng: random.Random) -> list[int]:
    """The candidates with the highest scores, best first, ties in random order."""
    return sorted(scores, key=lambda candidate: (-scores[candidate], rng.random()))[:count]


def links(tree: DraftTree) -> tuple[list[int | None], list[int], list[int]]:
    """Per node: its parent node, first child, next sibling. No parent: the root, or the parent is not selected."""
    node_of = {ROOT: 0} | {candidate: node for node, candidate in enumerate(tree.selected, start=1)}
    parents: list[int | None] = [None] + [node_of.get(tree.parent_of[candidate]) for candidate in tree.selected]
    first_child = [-1] * len(parents)
    next_sibling = [-1] * len(parents)
    for node in range(len(parents)):
        children = [child for child, parent in enumerate(parents) if parent == node]
        if children:
            first_child[node] = children[0]
        for elder, younger in zip(children, children[1:], strict=False):
            next_sibling[elder] = younger
    return parents, first_child, next_sibling


def ancestry(parents: list[int | None], node: int) -> list[int]:
    """The node, its parent, and so on, without the root."""
    path = []
    current: int | None = node
    while current is not None and current != 0:
        path.append(current)
        current = parents[current]
    return path


def tree_mask_rows(parents: list[int | None]) -> list[list[bool]]:
    """Which nodes each node sees: the root, itself and its ancestors."""
    nodes = range(len(parents))
    return [[seen in visible for seen in nodes] for visible in ({0, *ancestry(parents, node)} for node in nodes)]


def verify_walk(
    tokens: list[int], first_child: list[int], next_sibling: list[int], choice: list[int], longest: int
) -> list[int]:
    """Nodes accepted, root first: at each node go to the first child that holds the target's choice."""
    path = [0]
    while len(path) < longest:
        child = first_child[path[-1]]
        while child != -1 and tokens[child] != choice[path[-1]]:
            child = next_sibling[child]
        if child == -1:
            break
        path.append(child)
    return path


def move_rows(buffer: torch.Tensor, targets: list[int], sources: list[int]) -> torch.Tensor:
    """A copy of the buffer in which each target row holds what its source row held before."""
    moved = buffer.clone()
    for target, source in zip(targets, sources, strict=True):
        moved[target] = buffer[source]
    return moved


def read_slots(table: list[list[int]], rows: list[int], starts: list[int], ends: list[int]) -> list[int]:
    """Slots of positions [start, end) of each row, one row after the other."""
    return [
        table[row][position]
        for row, start, end in zip(rows, starts, ends, strict=True)
        for position in range(start, end)
    ]


def rotate(
    ids: list[int], starts: list[int], lens: list[int], tokens: list[int], places: list[int] | None
) -> list[int]:
    """Each segment shifted left by one; the new token goes to the segment's end or to the place given."""
    out = list(ids)
    for request, (start, length) in enumerate(zip(starts, lens, strict=True)):
        if length == 0:
            continue
        for position in range(start, start + length - 1):
            out[position] = ids[position + 1]
        out[start + length - 1 if places is None else places[request]] = tokens[request]
    return out
