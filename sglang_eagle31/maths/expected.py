"""Expected tokens of a round: drafts accepted on average, and the bonus token.

Dimensions: D depths, K ranks (rank 0 is the draft's first choice). ``table[d, r]`` is the probability that, the drafts
up to depth d being accepted, the next token is the candidate of rank r at depth d + 1. What happens at one depth is
taken as independent of the path that led there; the root is at depth 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sglang_eagle31.maths.shape import Shape

Floats = NDArray[np.float64]


def constant(acceptance: float, steps: int) -> float:
    """Tokens of a round of a chain whose every draft is accepted with the same probability, bonus token included.

    E = 1 + a + ... + a^N = (1 - a^(N+1)) / (1 - a): Leviathan, Kalman and Matias, Fast Inference from Transformers
    via Speculative Decoding (2023), equation 1.
    """
    return float(steps + 1) if acceptance == 1 else (1 - acceptance ** (steps + 1)) / (1 - acceptance)


def chain(conditional: ArrayLike, steps: int) -> float:
    """Tokens of a round of a chain, 1 + a1 + a1 a2 + ... .

    Args:
        conditional: ``[D]`` probability that draft d + 1 is accepted when those before it are; depths past the last
            repeat it.
        steps: length of the chain.
    """
    return 1.0 + float(np.cumprod(deepen(conditional, steps)).sum())


def deepen(values: ArrayLike, depths: int) -> Floats:
    """``[depths, ...]``: cut, or the last depth repeated. Raises ValueError where there is no depth."""
    known = np.atleast_1d(np.asarray(values, np.float64))
    if not len(known):
        raise ValueError("acceptance: expected at least one depth, found none; fix: for example 0.8,0.7,0.6")
    deep: Floats = known[np.minimum(np.arange(depths), len(known) - 1)]
    return deep


def ranks(conditional: ArrayLike, recovery: Sequence[float] = ()) -> Floats:
    """``[D, 1 + R]`` table from the acceptance of first choices and what the next ones catch.

    Args:
        conditional: ``[D]`` acceptance of rank 0.
        recovery: ``[R]`` probability that rank r + 1 is right when ranks 0 to r are not.
    """
    first = np.atleast_1d(np.asarray(conditional, np.float64))[:, None]
    caught = np.concatenate([first, np.broadcast_to(np.asarray(recovery, np.float64), (len(first), len(recovery)))], 1)
    missed = np.cumprod(1 - caught, 1)
    caught[:, 1:] *= missed[:, :-1]
    return caught


@dataclass(frozen=True)
class Tree:
    """The tokens of one draft that are verified, root left out, parents before children.

    Attributes:
        depth: ``[n]`` of each node, from 1.
        parent: ``[n]`` index of its parent, -1 for the root.
        rank: ``[n]`` among its siblings, by the draft's probability.
        probability: ``[n]`` that the node is accepted.
    """

    depth: NDArray[np.int64]
    parent: NDArray[np.int64]
    rank: NDArray[np.int64]
    probability: Floats

    @property
    def expected(self) -> float:
        """Tokens of a round: of the nodes at one depth at most one is accepted, so probabilities add up."""
        return 1.0 + float(self.probability.sum())

    @property
    def reach(self) -> Floats:
        """``[D]`` probability that at least 1 ... D drafts are accepted."""
        return np.bincount(self.depth, self.probability)[1:].astype(np.float64)


def tree(shape: Shape, table: ArrayLike, draft: ArrayLike | None = None) -> Tree:
    """The tree that SGLang builds, level by level, and how far it is accepted.

    Each step expands the topk branches of highest joint probability by topk candidates; of all candidates the
    ``draft_tokens - 1`` of highest joint probability are verified (EAGLE-2, section 4: expansion and reranking).
    Joint probability falls from parent to child, so a chosen node's parent is chosen too; ties go to the earlier.

    A real tree follows each round's own probabilities; one table for all rounds usually gives somewhat less.

    Args:
        shape: with at least one step.
        table: ``[D, K']`` as in the module's docstring, or ``[D]`` of rank 0 alone; depths past the last repeat it,
            ranks past the last are 0.
        draft: the same of what the draft believes, by which nodes are chosen; None: as good as ``table``.
    """
    truth = _by_rank(table, shape)
    belief = truth if draft is None else _by_rank(draft, shape)
    score, value = belief[0], truth[0]
    scores, values, parents = [score], [value], [np.full(shape.topk, -1)]
    beams = np.arange(shape.topk)
    count = shape.topk
    for depth in range(1, shape.steps):
        scored = np.outer(score, belief[depth]).ravel()
        valued = np.outer(value, truth[depth]).ravel()
        scores.append(scored)
        values.append(valued)
        parents.append(np.repeat(beams, shape.topk))
        kept = np.argsort(-scored, kind="stable")[: shape.topk]
        score, value, beams = scored[kept], valued[kept], count + kept
        count += len(scored)
    chosen = np.sort(np.argsort(-np.concatenate(scores), kind="stable")[: shape.draft_tokens - 1])
    place = np.full(count + 1, -1)
    place[chosen] = np.arange(len(chosen))
    depths = np.repeat(np.arange(1, shape.steps + 1), [len(level) for level in scores])
    return Tree(
        depths[chosen],
        place[np.concatenate(parents)[chosen]],
        chosen % shape.topk,
        np.concatenate(values)[chosen],
    )


def tokens(shape: Shape, table: ArrayLike, draft: ArrayLike | None = None) -> float:
    """Expected tokens of a round of any shape; 1 without speculation. Arguments as of `tree`."""
    if not shape.steps:
        return 1.0
    if shape.topk == 1:
        return chain(_table(table)[:, 0], shape.steps)
    return tree(shape, table, draft).expected


def _table(values: ArrayLike) -> Floats:
    known = np.asarray(values, np.float64)
    return known if known.ndim == 2 else known.reshape(-1, 1)


def _by_rank(table: ArrayLike, shape: Shape) -> Floats:
    known = _table(table)
    wide: NDArray[Any] = np.zeros((shape.steps, shape.topk))
    width = min(shape.topk, known.shape[1])
    wide[:, :width] = deepen(known[:, :width], shape.steps)
    return wide
