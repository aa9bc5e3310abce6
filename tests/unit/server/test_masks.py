"""Which keys a query sees, against plain Python loops on random trees."""

from __future__ import annotations

import random

import pytest
import torch

from sglang_eagle31.server.cpu import masks

SEEDS = range(40)


def random_case(seed: int) -> tuple[random.Random, int, int, list[int]]:
    """Depth 1-8, topk 1-8, batch 1-16, ragged committed lengths."""
    rng = random.Random(seed)
    return rng, rng.randint(1, 8), rng.randint(1, 8), [rng.randint(1, 40) for _ in range(rng.randint(1, 16))]


def random_parents(rng: random.Random, depth: int, topk: int) -> list[int]:
    """Parent of each node, -1 for the root's; parents come first and no node is deeper than ``depth``."""
    parents, level = [-1], [0]
    for _ in range(rng.randint(0, depth * topk)):
        parent = rng.choice([node for node in range(len(parents)) if level[node] < depth])
        parents.append(parent)
        level.append(level[parent] + 1)
    return parents


def path_to_root(parents: list[int], node: int) -> set[int]:
    path = set()
    while node >= 0:
        path.add(node)
        node = parents[node]
    return path


@pytest.mark.parametrize("seed", SEEDS)
def test_chain(seed: int) -> None:
    _, rows, _, base = random_case(seed)
    length = max(base) + rows
    expected = [[[column <= start + row for column in range(length)] for row in range(rows)] for start in base]
    assert masks.chain(torch.tensor(base), rows, length).tolist() == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_tree(seed: int) -> None:
    rng, depth, topk, base = random_case(seed)
    trees = [random_parents(rng, depth, topk) for _ in base]
    rows = max(len(tree) for tree in trees)
    trees = [tree + [0] * (rows - len(tree)) for tree in trees]
    length = max(base) + rows
    ancestors = torch.zeros(len(base), rows, rows, dtype=torch.bool)
    expected = []
    for request, (start, tree) in enumerate(zip(base, trees, strict=True)):
        seen = []
        for row in range(rows):
            path = path_to_root(tree, row)
            for node in path:
                ancestors[request, row, node] = True
            seen.append([column < start or column - start in path for column in range(length)])
        expected.append(seen)
    assert masks.tree(torch.tensor(base), ancestors, length).tolist() == expected


def test_a_chain_is_a_tree_without_branches() -> None:
    base = torch.tensor([3, 7, 1])
    ancestors = torch.ones(4, 4, dtype=torch.bool).tril().expand(3, -1, -1)
    assert torch.equal(masks.tree(base, ancestors, 12), masks.chain(base, 4, 12))


@pytest.mark.parametrize("seed", SEEDS)
def test_branches(seed: int) -> None:
    _, steps, topk, base = random_case(seed)
    length = max(base) + topk * steps
    for step in range(steps):
        expected = []
        for start in base:
            rows = []
            for branch in range(topk):
                own = {start + branch * steps + at for at in range(step + 1)}
                rows.append([column < start or column in own for column in range(length)])
            expected.append(rows)
        assert masks.branches(torch.tensor(base), topk, steps, step, length).tolist() == expected


@pytest.mark.parametrize("window", [0, 1, 3, 1000])
@pytest.mark.parametrize("seed", SEEDS[:10])
def test_within(seed: int, window: int) -> None:
    rng, rows, _, base = random_case(seed)
    length = max(base) + rows
    query = [[start + rng.randint(0, rows) for _ in range(rows)] for start in base]
    key = [[rng.randint(0, length) for _ in range(length)] for _ in base]
    visible = [[[rng.random() < 0.7 for _ in range(length)] for _ in range(rows)] for _ in base]
    expected = [
        [
            [visible[b][row][column] and key[b][column] >= query[b][row] - window for column in range(length)]
            for row in range(rows)
        ]
        for b in range(len(base))
    ]
    found = masks.within(torch.tensor(visible), torch.tensor(query), torch.tensor(key), window)
    assert found.tolist() == expected


def test_a_window_keeps_that_many_keys_before_the_query() -> None:
    base = torch.tensor([10])
    position = base.view(-1, 1) + torch.arange(4)
    found = masks.within(masks.chain(base, 4, 14), position, torch.arange(14).view(1, -1), 2)
    assert found.sum(-1).tolist() == [[3, 3, 3, 3]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("seed", SEEDS[:5])
def test_bias(seed: int, groups: int, dtype: torch.dtype) -> None:
    rng, rows, _, base = random_case(seed)
    length = max(base) + rows
    visible = [[[rng.random() < 0.5 for _ in range(length)] for _ in range(rows)] for _ in base]
    expected = [
        [[0.0 if sees else -float("inf") for sees in request[index % rows]] for index in range(groups * rows)]
        for request in visible
    ]
    found = masks.bias(torch.tensor(visible), groups, dtype)
    assert found.dtype == dtype and found.shape == (len(base), 1, groups * rows, length)
    assert found[:, 0].tolist() == expected
