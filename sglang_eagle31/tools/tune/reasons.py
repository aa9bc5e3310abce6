"""Why the answer is what it is: rules for when speculation pays, each with the number that was measured."""

from __future__ import annotations

from sglang_eagle31.maths.cost import break_even_acceptance
from sglang_eagle31.tools.tune.answer import Answer

EASY, HARD = 0.85, 0.45
"""Acceptance of the first draft: structured output and code lie above, prompts unlike the head's training below."""
DEAR = 0.25
"""Cost of a draft step, in plain steps, above which deep drafts do not pay."""
WIDE = 0.05
"""Cost of a further verified token, in plain steps, from which width is not free."""
BUSY = 32
"""Concurrency from which the target's compute is busy without speculation on most GPUs."""
HOT = 1.0
"""Temperature from which acceptance falls fast."""
SHORT = 32
"""Tokens of an answer below which prefill matters more than decoding."""


def reasons(answer: Answer, device: str | None = None) -> list[str]:
    """Sentences, most important first."""
    return [*_costs(answer, device), *_acceptance(answer), *_workload(answer)]


def _costs(answer: Answer, device: str | None) -> list[str]:
    learnt = answer.learnt
    c, slope = learnt.draft_cost, learnt.verify_slope
    said = [f"a draft step costs {c:.2f} plain steps"]
    if c > DEAR:
        said[0] += (
            ", so only short drafts can pay; a step of the target is little dearer than its head's, as with targets "
            "of less than about 3 B parameters"
        )
    width = f"each further verified token of a request costs {slope:.3f} plain steps"
    if slope <= WIDE:
        said.append(f"{width}: width is almost free, which favours trees and long drafts")
    elif device == "cpu":
        said.append(f"{width}: on a CPU each token is computed at full price, which favours few draft tokens")
    else:
        said.append(f"{width}: the target is busy at this batch size, which favours few draft tokens")
    return said


def _acceptance(answer: Answer) -> list[str]:
    learnt = answer.learnt
    by_depth = [float(one) for one in learnt.chains[:, 0]]
    first = by_depth[0]
    said = [f"acceptance by depth, of chains: {' '.join(f'{one:.2f}' for one in by_depth)}"]
    if first >= EASY:
        said.append("drafts are accepted this often on code, structured output and quotes: a good fit for speculation")
    elif first < HARD:
        said.append(
            f"only {first:.0%} of first drafts are right: the head was trained on other prompts or another chat "
            "template (`robust` tells which), or its files are wrong (`audit`)"
        )
    best = answer.best.shape
    if best.is_chain:
        needed = break_even_acceptance(learnt.cost, learnt.batch, best.steps)
        never = f"{best} does not pay here even if every draft is accepted"
        said.append(never if needed is None else f"{best} breaks even at a constant acceptance of {needed:.2f}")
    return said


def _workload(answer: Answer) -> list[str]:
    said = []
    if answer.temperature >= HOT:
        said.append(
            f"at temperature {answer.temperature:g} the target's own choice varies, so fewer drafts are accepted"
        )
    if answer.concurrency >= BUSY:
        said.append(
            f"at concurrency {answer.concurrency} a batch fills the machine by itself: verifying competes with other "
            "users' tokens, and gains of one user do not carry over"
        )
    if answer.tokens_per_answer < SHORT:
        said.append(
            f"answers are short ({answer.tokens_per_answer:.0f} tokens): users wait for the prompt more than for "
            "tokens, which speculation does not change"
        )
    return said
