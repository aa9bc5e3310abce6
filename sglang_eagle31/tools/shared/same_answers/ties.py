"""The one rule for ties: which gap between two logits is explained by rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sglang_eagle31.tools.shared.same_answers.logits import BestLogit

TIE_ULPS = 2
"""One rounding of each of the two logits. Measured on the demo's target in bfloat16: 5,031 tokens of its answers,
decoded one by one and again four at a time, gave another best token at 91 places, where the gap was 0.25 at most: 2
ulps at a magnitude of 16."""

LOGIT_MAGNITUDE = 16.0
"""Of the demo's target: 5 to 95 % of the best logits of a typical answer lie in 15 to 34, most of them thus 0.125 apart
from their neighbours in bfloat16."""

SIGNIFICANT_BITS = {"bfloat16": 8, "float16": 11}
"""Of the significand, the hidden bit included (IEEE 754; bfloat16 keeps 8 of float32's 24)."""

LONGEST_SUM, MOST_SUMS = 2**14, 2**8
"""Terms of a sum, and sums one after another, of a large model: an MLP 16,384 wide; 128 layers of attention and MLP."""

DOUBTFUL = 4
"""Times the bound, from which on no rounding is thought of. Wide products of a prefill round otherwise in every layer.
Measured on the demo's target in bfloat16: 61 of 4,868 decoded tokens were not the best ones in a prefill of the answer,
by 2 ulps at most but for one, by 3; with the tokens sent one by one, that gap was 0."""

LOGPROB_ROUNDING = 1e-4
"""Log-probabilities are float32, so the grid of the logits is met up to their rounding."""


def rounding(dtype: str, magnitude: float) -> float:
    """Largest gap between two logits of about ``magnitude`` that the arithmetic of ``dtype`` explains.

    Prefill, decoding and verification multiply matrices of other shapes, so that sums run in another order.

    bfloat16 and float16: what is left of that is the rounding of the logits themselves, each to a neighbour. A number m
    with p significant bits is spaced 2^(floor(log2 m) - p + 1) apart (bfloat16 at 16 to 32: 0.125).

    float32: a sum of n terms in another order is off by about sqrt(n) u of its size, u = 2^-24, since roundings are as
    good as independent (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, SIAM J. Sci. Comput.
    41(5), 2019); k sums one after another by sqrt(k n) u. At 16 this is 2^-8, a 64th of bfloat16's. Measured on the
    demo's target: log-probabilities of 1,981 decoded tokens and of their prefill differ by 0.000043 at most.
    """
    if dtype == "float32":
        return TIE_ULPS * magnitude * math.sqrt(MOST_SUMS * LONGEST_SUM) * 2.0**-24
    return TIE_ULPS * 2.0 ** (math.floor(math.log2(magnitude)) - SIGNIFICANT_BITS[dtype] + 1)


@dataclass(frozen=True)
class TieRule:
    """What a tie is on one server; see `tie_rule`."""

    dtype: str
    magnitude: float
    """Of the logits, where ``best_logit`` is not asked."""
    best_logit: BestLogit | None
    """Asked for the magnitude at the place itself, where the gap is larger than ``magnitude`` explains."""
    exact: bool
    """Whether two answers have to be the same whatever the gap is where they part."""

    @property
    def bound(self) -> float:
        """Largest gap at ``magnitude`` that makes a tie of a token."""
        return rounding(self.dtype, self.magnitude)

    @property
    def answers_bound(self) -> float:
        """Largest gap at ``magnitude`` where two answers may part; 0 if they may not."""
        return 0.0 if self.exact else self.bound

    def doubtful(self, gap: float) -> bool:
        """Whether ``gap`` in a prefill of the answer has to be looked at again, as its tokens are decoded."""
        return self.bound + LOGPROB_ROUNDING < gap <= DOUBTFUL * self.bound

    def explains(self, gap: float, prefix: Sequence[int]) -> bool:
        """Whether ``gap``, from the best logit after ``prefix`` to a lower one, is rounding.

        The spacing is taken at the lower of the two logits.
        """
        if gap <= self.bound + LOGPROB_ROUNDING:
            return True
        if self.best_logit is None:
            return False
        lower = self.best_logit(prefix) - gap
        return lower > self.magnitude and gap <= rounding(self.dtype, lower) + LOGPROB_ROUNDING


def tie_rule(dtype: str | None, magnitude: float = LOGIT_MAGNITUDE, best_logit: BestLogit | None = None) -> TieRule:
    """The rule for logits of ``dtype``; None is unknown: tokens are then judged as in bfloat16, the coarsest.

    Answers in float32, and of an unknown dtype, have to be the same. Raises ValueError for another dtype.
    """
    if dtype not in (None, "float32", *SIGNIFICANT_BITS):
        raise ValueError(f"--dtype {dtype}: no rule for ties; use float32, {' or '.join(SIGNIFICANT_BITS)}")
    return TieRule(dtype or "bfloat16", magnitude, best_logit, dtype in (None, "float32"))
