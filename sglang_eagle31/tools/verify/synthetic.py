"""A target and drafters as tables: the next token's logits after every possible continuation, random but fixed.

C start contexts; V tokens, DEAD of which the target never emits (logit -inf); continuations of up to DEPTH tokens are
rows of a table, numbered like a V-ary heap: the root is row 0, and the child of row r by token t is r * V + 1 + t.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

VOCAB = 10
DEAD = (1, 4, 6, 9)
"""Tokens of probability 0; the adversarial drafter proposes exactly these, so it is never right."""
REDUCED = (0, 1, 2, 3, 5, 7, 9)
"""The reduced draft vocabulary: token of each draft id, two of them dead; one that the target emits is not in it."""
CONTEXTS = 2
STATISTIC_TOKENS = 3
"""Tokens whose joint distribution is tested."""
DRAFT_STEPS = 3
DEPTH = STATISTIC_TOKENS - 1 + DRAFT_STEPS
"""Longest continuation that is looked up: the deepest draft after all but the last token of the statistic."""
ROWS = (VOCAB ** (DEPTH + 1) - 1) // (VOCAB - 1)
DRAFTERS = ("perfect", "good", "poor", "adversarial")


@dataclass(frozen=True)
class Table:
    """Logits of the next token ``[C, ROWS, V]``, float32."""

    logits: torch.Tensor

    def after(self, context: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        """Logits ``[..., V]`` after the continuations ``row`` ``[...]`` of ``context`` (broadcast)."""
        return self.logits[context, row]


def child(row: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    """The row of a continuation with one more token; shapes broadcast."""
    return row * VOCAB + 1 + token


@cache
def target(seed: int) -> Table:
    """Another random distribution after every continuation: of ten tokens six are possible, one or two likely."""
    logits = 1.5 * _noise(seed)
    logits[..., list(DEAD)] = float("-inf")
    return Table(logits)


@cache
def drafter(kind: str, seed: int) -> Table:
    """Logits of a drafter of DRAFTERS that drafts for ``target(seed)``.

    ``perfect`` is the target; ``good`` is it with noise; ``poor`` knows nothing of it; ``adversarial`` proposes dead
    tokens only. Raises KeyError for another name.
    """
    truth = target(seed).logits
    if kind == "perfect":
        return Table(truth)
    noise = _noise(seed + 1)
    alive = truth.clamp(min=-6.0)
    wrong = torch.full_like(truth, -20.0)
    wrong[..., list(DEAD)] = noise[..., list(DEAD)]
    return Table({"good": alive + 0.7 * noise, "poor": 1.5 * noise, "adversarial": wrong}[kind])


def _noise(seed: int) -> torch.Tensor:
    return torch.randn(CONTEXTS, ROWS, VOCAB, generator=torch.Generator().manual_seed(seed))
