"""Least squares that outliers do not carry away, with coefficients of at least 0."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
HUBER = 1.345
"""Residuals beyond so many standard deviations count linearly: 95 % as exact as least squares on normal noise (Huber,
Robust Estimation of a Location Parameter, 1964)."""
ROUNDS = 30


def robust(features: Floats, values: Floats, order: Sequence[int]) -> Floats:
    """Coefficients of a linear function, all at least 0, by Huber's loss on *relative* residuals.

    Args:
        features: ``[n, k]``, at least 0.
        values: ``[n]``, above 0.
        order: the features, most trusted first. One that the others before it already explain gets 0.
    """
    scaled = features / values[:, None]
    used = _independent(scaled, order)
    found = np.zeros(features.shape[1])
    while used:
        part = scaled[:, used]
        solved = _huber(part)
        if (solved >= 0).all():
            found[used] = solved
            break
        used.pop(int(np.argmin(solved * np.linalg.norm(part, axis=0))))
    return found


def _huber(features: Floats) -> Floats:
    """``[k]`` of the best fit to ones, by iteratively reweighted least squares."""
    weights = np.ones(len(features))
    solved = np.zeros(features.shape[1])
    for _ in range(ROUNDS):
        root = np.sqrt(weights)
        before, solved = solved, np.linalg.lstsq(features * root[:, None], root, rcond=None)[0]
        off = np.abs(features @ solved - 1)
        spread = np.median(off) / 0.6745
        if spread < 1e-9 or np.allclose(before, solved, rtol=1e-6, atol=0):
            break
        weights = np.minimum(1.0, HUBER * spread / np.maximum(off, 1e-300))
    return solved


def _independent(features: Floats, order: Sequence[int]) -> list[int]:
    used: list[int] = []
    for feature in order:
        tried = features[:, [*used, feature]]
        norms = np.linalg.norm(tried, axis=0)
        if norms.all() and np.linalg.matrix_rank(tried / norms, tol=1e-6) == len(used) + 1:
            used.append(feature)
    return used
