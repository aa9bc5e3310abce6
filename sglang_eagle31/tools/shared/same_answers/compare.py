"""Compare two greedy answers token by token, up to the first difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from sglang_eagle31.tools.shared.same_answers.logprobs import NextToken
from sglang_eagle31.tools.shared.same_answers.ties import TieRule
from sglang_eagle31.tools.shared.same_answers.tokens import Tokens


class Outcome(Enum):
    """How two answers to one prompt relate."""

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
    """Outcome for one answer."""

    outcome: Outcome
    compared: int
    """Tokens found equal."""
    difference: Difference | None = None
    gap: float | None = None
    """In logits, between the best token and the worse of the two candidates; None if nothing was looked up."""
    candidates: NextToken | None = None
    """What the server without speculation says at the difference."""
    tokens: Tokens | None = None
    """Every token of the answer with speculation; None where the target's logits alone do not decide them."""

    @property
    def differs(self) -> bool:
        """Whether the answers differ, or a token is wrong behind the place where they part at a tie."""
        return self.outcome is Outcome.DIFFERENT or bool(self.tokens and self.tokens.differing)


def first_difference(plain: Sequence[int], speculative: Sequence[int]) -> Difference | None:
    """The first index at which the token ids differ, or at which only one answer goes on."""
    for index, (a, b) in enumerate(zip(plain, speculative, strict=False)):
        if a != b:
            return Difference(index, a, b)
    shorter = min(len(plain), len(speculative))
    if len(plain) == len(speculative):
        return None
    return Difference(shorter, next(iter(plain[shorter:]), None), next(iter(speculative[shorter:]), None))


def compare(
    prompt: Sequence[int],
    plain: Sequence[int],
    speculative: Sequence[int],
    look_up: Callable[[int], NextToken],
    rule: TieRule,
) -> Verdict:
    """Compare up to the first difference, and decide whether that one is a tie.

    ``look_up`` gives what the server without speculation says at an index of the answers, of both candidates there. A
    tie needs both of them within rounding of the best token. An answer that ended while the other went on is never a
    tie, since the end-of-turn token is part of the answer.
    """
    difference = first_difference(plain, speculative)
    if difference is None:
        return Verdict(Outcome.SAME, len(plain))
    index = difference.index
    if difference.plain is None or difference.speculative is None:
        return Verdict(Outcome.DIFFERENT, index, difference)
    candidates = look_up(index)
    gap = candidates.gap(difference.plain, difference.speculative)
    tie = not rule.exact and rule.explains(gap, [*prompt, *plain[:index]])
    return Verdict(Outcome.TIE if tie else Outcome.DIFFERENT, index, difference, gap, candidates)
