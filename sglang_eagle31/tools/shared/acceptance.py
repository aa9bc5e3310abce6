"""Acceptance of drafts over several answers, from their histograms; and which answers inflate it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

LOOP_NGRAM = 8
LOOP_REPEATS = 3
"""An answer loops when one sequence of 8 tokens occurs at least 3 times in it."""


def loops(token_ids: Sequence[int]) -> bool:
    """Whether an answer repeats itself (see LOOP_NGRAM); such answers are easy to draft and inflate acceptance."""
    grams = Counter(tuple(token_ids[i : i + LOOP_NGRAM]) for i in range(len(token_ids) - LOOP_NGRAM + 1))
    return max(grams.values(), default=0) >= LOOP_REPEATS


def accept_length(token_counts: Sequence[int], verify_steps: Sequence[int]) -> float:
    """Generated tokens per target verify step, the bonus token included, over all answers (SGLang's definition).

    Raises ValueError when nothing was verified, that is when the server did not speculate.
    """
    steps = sum(verify_steps)
    if steps == 0:
        raise ValueError("no verify step was reported: the server did not speculate")
    return sum(token_counts) / steps


def accept_by_depth(histograms: Sequence[Sequence[int]], depth: int) -> list[float]:
    """P(at least d drafted tokens accepted in a verify step) for d = 1 ... ``depth``, over all answers.

    ``histograms[i][a]`` is the number of verify steps of answer i that accepted exactly a drafted tokens.
    """
    total = sum(map(sum, histograms))
    if total == 0:
        return [0.0] * depth
    return [sum(sum(histogram[d:]) for histogram in histograms) / total for d in range(1, depth + 1)]
