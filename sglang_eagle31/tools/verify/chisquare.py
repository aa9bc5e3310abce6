"""Chi-square tests of counts over the cells of several contexts, and Holm's correction over many tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

LEAST_EXPECTED = 5.0
"""Cells that expect fewer are pooled within their context (Cochran's rule)."""


@dataclass(frozen=True)
class Test:
    """One chi-square test."""

    against: str
    """``exact`` or ``direct``; ``all cases`` for Fisher's combination."""
    tokens: int
    """Length of the sequences whose joint distribution was tested."""
    statistic: float
    df: int
    p: float
    """0 where a sequence of probability 0 was seen; 1 without degrees of freedom."""
    impossible: int
    """Observations in cells of probability 0."""


def against_exact(observed: torch.Tensor, exact: torch.Tensor) -> Test:
    """Counts ``[C, M]`` against probabilities ``[C, M]``, rows of which sum to 1; the row sums of the counts are given.

    Pearson: the sum of (observed - expected)^2 / expected.
    """
    statistic, df = 0.0, 0
    for counts, probs in zip(observed.double(), exact, strict=True):
        expected = counts.sum() * probs
        cell, cells = pool(expected)
        want, have = _sums(expected, cell, cells), _sums(counts, cell, cells)
        statistic += float(((have - want).square() / want).sum())
        df += max(cells - 1, 0)
    return _test("exact", observed, exact, statistic, df)


def against_sample(observed: torch.Tensor, other: torch.Tensor, exact: torch.Tensor) -> Test:
    """Two samples ``[C, M]``, homogeneous or not; ``exact`` ``[C, M]`` only decides which cells are pooled.

    With n and m the sizes of a context's samples: the sum of (a sqrt(m/n) - b sqrt(n/m))^2 / (a + b).
    """
    statistic, df = 0.0, 0
    for a, b, probs in zip(observed.double(), other.double(), exact, strict=True):
        n, m = a.sum(), b.sum()
        cell, cells = pool(torch.minimum(n, m) * probs)
        left, right = _sums(a, cell, cells), _sums(b, cell, cells)
        terms = (left * (m / n).sqrt() - right * (n / m).sqrt()).square() / (left + right).clamp(min=1)
        statistic += float(terms.sum())
        df += max(cells - 1, 0)
    return _test("direct", observed + other, exact, statistic, df)


def pool(expected: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Pooled cell of each cell ``[M]`` (-1: expects nothing), and how many there are, by expected counts ``[M]``.

    Cells that expect fewer than LEAST_EXPECTED are one cell; with so little in all of them, the smallest of the others
    joins them.
    """
    order = expected.argsort()
    order = order[expected[order] > 0]
    small = int((expected[order] < LEAST_EXPECTED).sum())
    if small and float(expected[order[:small]].sum()) < LEAST_EXPECTED:
        small += 1
    small = min(small, len(order))
    cell = torch.full(expected.shape, -1, dtype=torch.long)
    first = 1 if small else 0
    cell[order[:small]] = 0
    cell[order[small:]] = torch.arange(first, first + len(order) - small)
    return cell, first + len(order) - small


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given: below 0.05 is significant at 95 % over all of them."""
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


def fisher(tokens: int, p_values: Sequence[float]) -> Test:
    """Fisher's combination of independent p-values: -2 times the sum of their logarithms, 2 degrees of freedom each.

    It finds an error that is too small for each test alone but is in all of them.
    """
    statistic = -2 * sum(math.log(max(p, 1e-300)) for p in p_values)
    return Test("all cases", tokens, statistic, 2 * len(p_values), survival(statistic, 2 * len(p_values)), 0)


def survival(statistic: float, df: int) -> float:
    """P(chi-square with ``df`` degrees of freedom exceeds ``statistic``); 1 for no degree of freedom."""
    if df == 0:
        return 1.0
    half = torch.tensor([df, statistic], dtype=torch.float64) / 2
    return float(torch.special.gammaincc(half[0], half[1]))


def _test(against: str, counts: torch.Tensor, exact: torch.Tensor, statistic: float, df: int) -> Test:
    impossible = int(counts[exact == 0].sum())
    return Test(against, 0, statistic, df, 0.0 if impossible else survival(statistic, df), impossible)


def _sums(values: torch.Tensor, cell: torch.Tensor, cells: int) -> torch.Tensor:
    used = cell >= 0
    return torch.zeros(cells, dtype=torch.float64).index_add_(0, cell[used], values[used].double())
