"""Compare greedy answers token by token, and turn acceptance histograms into acceptance by depth."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

TIE_ULPS = 2
"""One rounding of each of the two candidates' logits. Measured on the demo's target in bfloat16: 5,031 tokens of its
answers, decoded one by one and again four at a time, gave another best token at 91 places, where the gap was 0.25 at
most: 2 ulps at a magnitude of 16."""

LOGIT_MAGNITUDE = 16.0
"""Of the demo's target: 5 to 95 % of the best logits of a typical answer lie in 15 to 34, most of them thus 0.125 apart
from their neighbours in bfloat16."""

SIGNIFICANT_BITS = {"bfloat16": 8, "float16": 11}
"""Of the significand, the hidden bit included (IEEE 754; bfloat16 keeps 8 of float32's 24)."""

LOOP_NGRAM = 8
LOOP_REPEATS = 3
"""An answer loops when one sequence of 8 tokens occurs at least 3 times in it."""


class Outcome(Enum):
    """How a prompt's two answers relate."""

    SAME = "same"
    TIE = "tie"
    DIFFERENT = "different"


@dataclass(frozen=True)
class Difference:
    """The first place at which two answers differ; a token is None where that answer has already ended."""

    index: int
    plain: int | None
    speculative: int | None


@dataclass(frozen=True)
class Verdict:
    """Outcome for one prompt."""

    outcome: Outcome
    compared: int
    """Tokens found equal."""
    difference: Difference | None = None
    gap: float | None = None
    """In logits, between the best token and the worse of the two candidates; None if nothing was looked up."""


def tie_bound(dtype: str, magnitude: float = LOGIT_MAGNITUDE) -> float:
    """Largest gap between logits of about ``magnitude`` that rounding to ``dtype`` explains; 0 in float32.

    A number m with p significant bits is spaced 2^(floor(log2 m) - p + 1) apart (bfloat16 at 16 to 32: 0.125). Verify
    and decode multiply matrices of other shapes, so each logit may round to a neighbour: TIE_ULPS spacings.
    Raises ValueError for a dtype whose rounding is not known.
    """
    if dtype == "float32":
        return 0.0
    if dtype not in SIGNIFICANT_BITS:
        raise ValueError(f"--dtype {dtype}: no rule for ties; use float32, {' or '.join(SIGNIFICANT_BITS)}")
    spacing = 2.0 ** (math.floor(math.log2(magnitude)) - SIGNIFICANT_BITS[dtype] + 1)
    return TIE_ULPS * spacing


def first_difference(plain: Sequence[int], speculative: Sequence[int]) -> Difference | None:
    """The first index at which the token ids differ, or at which only one answer goes on."""
    for index, (a, b) in enumerate(zip(plain, speculative, strict=False)):
        if a != b:
            return Difference(index, a, b)
    shorter = min(len(plain), len(speculative))
    if len(plain) == len(speculative):
        return None
    return Difference(shorter, next(iter(plain[shorter:]), None), next(iter(speculative[shorter:]), None))


def judge(
    plain: Sequence[int],
    speculative: Sequence[int],
    look_up: Callable[[Difference], tuple[float, float, float]],
    bound: float,
) -> Verdict:
    """Compare up to the first difference, and decide whether that one is a tie.

    ``look_up`` gives the log-probabilities without speculation, after the common prefix, of the best token, of the
    plain and of the speculative candidate; their differences are differences of logits. A tie needs both candidates
    within ``bound`` of the best token. An answer that ended while the other went on is never a tie, since the
    end-of-turn token is part of the answer.
    """
    difference = first_difference(plain, speculative)
    if difference is None:
        return Verdict(Outcome.SAME, len(plain))
    if bound == 0.0 or difference.plain is None or difference.speculative is None:
        return Verdict(Outcome.DIFFERENT, difference.index, difference)
    best, *candidates = look_up(difference)
    gap = best - min(candidates)
    # Log-probabilities are float32, so the grid of the logits is met up to their rounding.
    outcome = Outcome.TIE if gap <= bound + 1e-4 else Outcome.DIFFERENT
    return Verdict(outcome, difference.index, difference, gap)


def settle(verdict: Verdict, dtype: str, best: Callable[[int], float]) -> Verdict:
    """A difference that is a tie after all, as the logits at that place are larger than LOGIT_MAGNITUDE.

    ``best`` gives the largest logit at an index of the answer. The spacing is taken at the lower of the two candidates.
    """
    if verdict.outcome is not Outcome.DIFFERENT or verdict.gap is None or verdict.difference is None:
        return verdict
    lower = best(verdict.difference.index) - verdict.gap
    if lower <= LOGIT_MAGNITUDE or verdict.gap > tie_bound(dtype, lower) + 1e-4:
        return verdict
    return replace(verdict, outcome=Outcome.TIE)


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
