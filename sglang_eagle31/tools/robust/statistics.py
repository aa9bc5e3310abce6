"""Acceptance by depth from histograms of accepted drafts, with bootstrap intervals over prompts.

P prompts, K the deepest position, B resamples. A histogram ``[K + 1]`` counts verify rounds by the number of accepted
drafts, which on a tree is the depth of the accepted path. With N(k) the rounds that accepted at least k drafts:

    reach(k) = N(k) / N(0)        conditional(k) = N(k) / N(k - 1)        length = 1 + sum over k >= 1 of reach(k)

``length`` is tokens per verify round, the bonus token included. All are ratios of sums over prompts, so a prompt counts
by its rounds; an interval resamples prompts, for rounds of one answer are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value with its interval; None where it is not defined (no round came that far; no interval of one prompt)."""

    value: float | None
    low: float | None
    high: float | None

    def to_json(self) -> dict[str, object]:
        """``value`` and ``ci95``."""
        return {"value": self.value, "ci95": None if self.low is None else [self.low, self.high]}

    def __str__(self) -> str:
        if self.value is None:
            return "-"
        return f"{self.value:.2f}" + ("" if self.low is None else f" [{self.low:.2f}, {self.high:.2f}]")


@dataclass(frozen=True)
class Acceptance:
    """Acceptance over some prompts."""

    prompts: int
    rounds: int
    length: Estimate
    reach: tuple[Estimate, ...]
    """``[K]``: at least 1 ... K drafts accepted."""
    conditional: tuple[Estimate, ...]
    """``[K]``: draft k accepted where those before it were."""
    counts: tuple[int, ...]
    """``[K + 1]`` N(0) ... N(K)."""


def table(histograms: Sequence[Sequence[int]], depth: int) -> Array:
    """Histograms of any lengths as ``[P, depth + 1]``. Raises ValueError where one is deeper than ``depth``."""
    out = np.zeros((len(histograms), depth + 1))
    for row, histogram in zip(out, histograms, strict=True):
        if any(histogram[depth + 1 :]):
            raise ValueError(f"a round accepted {len(histogram) - 1} drafts, more than the depth of {depth}")
        used = histogram[: depth + 1]
        row[: len(used)] = used
    return out


def at_least(histograms: Array) -> Array:
    """N(0) ... N(K) of histograms, ``[..., K + 1]`` both."""
    return np.flip(np.cumsum(np.flip(histograms, -1), -1), -1)


def length(histograms: Array) -> Array:
    """Tokens per round of ``[..., K + 1]``; nan without rounds."""
    counts = at_least(histograms)
    return 1 + divide(counts[..., 1:].sum(-1), counts[..., 0])


def first(histograms: Array) -> Array:
    """Acceptance at depth 1 of ``[..., K + 1]``: N(1) / N(0)."""
    counts = at_least(histograms)
    return divide(counts[..., 1], counts[..., 0])


def deep(histograms: Array) -> Array:
    """Conditional acceptance pooled over depths 2 ... K: sum of N(2 ... K) / sum of N(1 ... K - 1)."""
    counts = at_least(histograms)
    return divide(counts[..., 2:].sum(-1), counts[..., 1:-1].sum(-1))


def resamples(prompts: int, seed: int, times: int = RESAMPLES) -> Array:
    """How often each prompt is drawn, ``[B, P]``; the same for the same seed and number of prompts."""
    draws = np.random.default_rng(seed).multinomial(prompts, np.full(prompts, 1 / max(prompts, 1)), size=times)
    return draws.astype(np.float64)


def estimate(statistic: Callable[[Array], Array], histograms: Array, seed: int) -> Estimate:
    """A statistic of ``[P, K + 1]`` with its percentile interval over prompts."""
    drawn = statistic(resamples(len(histograms), seed) @ histograms)
    return _interval(statistic(histograms.sum(0)), drawn, len(histograms))


def ratio(statistic: Callable[[Array], Array], upper: Array, lower: Array, seed: int) -> Estimate:
    """``statistic(upper) / statistic(lower)`` with a paired interval: row i of both is the same prompt, drawn together.

    Both are ``[P, K + 1]``; K may differ.
    """
    if len(upper) != len(lower):
        raise ValueError(f"{len(upper)} and {len(lower)} prompts cannot be paired")
    weights = resamples(len(upper), seed)
    value = divide(statistic(upper.sum(0)), statistic(lower.sum(0)))
    return _interval(value, divide(statistic(weights @ upper), statistic(weights @ lower)), len(upper))


def acceptance(histograms: Array, seed: int) -> Acceptance:
    """Everything about one condition from ``[P, K + 1]``."""
    depth = histograms.shape[1] - 1
    prompts = len(histograms)
    counts = at_least(histograms.sum(0))
    drawn = at_least(resamples(prompts, seed) @ histograms)
    each = range(1, depth + 1)
    return Acceptance(
        prompts=prompts,
        rounds=int(counts[0]),
        length=estimate(length, histograms, seed),
        reach=tuple(_interval(divide(counts[k], counts[0]), divide(drawn[:, k], drawn[:, 0]), prompts) for k in each),
        conditional=tuple(
            _interval(divide(counts[k], counts[k - 1]), divide(drawn[:, k], drawn[:, k - 1]), prompts) for k in each
        ),
        counts=tuple(int(count) for count in counts),
    )


def divide(upper: Array, lower: Array) -> Array:
    """Quotient; nan where ``lower`` is 0."""
    upper, lower = np.asarray(upper, np.float64), np.asarray(lower, np.float64)
    out: Array = np.full(np.broadcast(upper, lower).shape, np.nan)
    np.divide(upper, lower, out=out, where=lower != 0)
    return out


def _interval(value: Array, drawn: Array, prompts: int) -> Estimate:
    drawn = drawn[np.isfinite(drawn)]
    if not np.isfinite(value):
        return Estimate(None, None, None)
    if prompts < 2 or not drawn.size:
        return Estimate(float(value), None, None)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(value), float(low), float(high))
