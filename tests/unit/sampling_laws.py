"""How the laws of sampled verification are tested: a tree, targets, coins, what an op wrote, and a chi-square test."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

import torch
from scipy.stats import chisquare

DRAWS = 40_000
LIMIT = 1e-4
"""p-value below which a law is wrong; the seeds are fixed, so the tests' own draws never reach it by chance."""

# Node: parent. Two children of the root, two of node 1, one of node 2 and one of node 3; and a node without a parent.
PARENTS = (None, 0, 0, 1, 1, 2, 3, None)
TOKENS = (0, 2, 4, 1, 3, 0, 2, 1)
VOCAB = 5
Path = tuple[int, ...]


@dataclass(frozen=True)
class Verdict:
    """What an op wrote: of each request its tokens ``[accepted + 1]`` and the accepted slots, root first."""

    tokens: list[Path]
    slots: list[Path]


def target(seed: int, rows: int = len(PARENTS), vocab: int = VOCAB, sharp: float = 1.0) -> torch.Tensor:
    """``[rows, V]`` probabilities."""
    return (sharp * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))).softmax(-1)


def links(parents: tuple[int | None, ...], batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """First child and next sibling ``[B, N]`` of one tree, repeated."""
    first, sibling = [-1] * len(parents), [-1] * len(parents)
    for node in range(len(parents)):
        children = [child for child, parent in enumerate(parents) if parent == node]
        if children:
            first[node] = children[0]
        for elder, younger in itertools.pairwise(children):
            sibling[elder] = younger
    return torch.tensor(first).repeat(batch, 1), torch.tensor(sibling).repeat(batch, 1)


def read(predicts: torch.Tensor, accept_index: torch.Tensor, count: torch.Tensor) -> Verdict:
    slots = [tuple(row[: n + 1]) for row, n in zip(accept_index.tolist(), count.tolist(), strict=True)]
    written = predicts.tolist()
    return Verdict([tuple(written[slot] for slot in row) for row in slots], slots)


def coins_of(seed: int, batch: int, nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(batch, nodes, generator=generator), torch.rand(batch, generator=generator)


def p_value(seen: Counter[Path], law: dict[Path, float]) -> float:
    """Chi-square of outcomes against their probabilities; outcomes expected fewer than 5 times are one cell."""
    assert set(seen) <= {path for path, chance in law.items() if chance > 0}, "an outcome of probability 0"
    draws = sum(seen.values())
    often = [path for path, chance in law.items() if chance * draws >= 5]
    observed = [seen[path] for path in often]
    expected = [law[path] * draws for path in often]
    rest = draws - sum(expected)
    if rest > 1e-6 * draws:
        observed.append(draws - sum(observed))
        expected.append(rest)
    return float(chisquare(observed, expected).pvalue)
