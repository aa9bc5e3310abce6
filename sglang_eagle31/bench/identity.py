"""Are an arm's greedy answers those of the arm without speculation? And how many drafted tokens went into them?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sglang_eagle31.bench.prompts import PromptSet
from sglang_eagle31.demo.client import Run, chat_all
from sglang_eagle31.demo.compare import Outcome, Verdict, accept_by_depth
from sglang_eagle31.demo.run import judge_all

Settle = Callable[[Run, Sequence[Verdict]], Sequence[Verdict]]
EXAMPLES = 5
"""First differences that are written down, those that are no tie before the others."""


def answers(url: str, prompts: PromptSet, count: int, tokens: int, advance: Callable[[], object]) -> Run:
    """The greedy answers to the first ``count`` prompts, one by one."""
    return chat_all(url, prompts.chats[:count], tokens, 1, advance)


def compare(url: str, plain: Run, other: Run, bound: float, settle: Settle | None = None) -> dict[str, Any]:
    """The record of one arm; ``url`` is of the server that gave ``plain``, and ``bound`` the largest gap of a tie.

    ``settle`` looks at the differences once more, with the target's logits at their place.
    """
    verdicts = judge_all(url, plain, other, bound)
    return record(other, settle(plain, verdicts) if settle else verdicts)


def record(run: Run, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """How many prompts are answered with the same tokens, end in a tie, or differ; and acceptance over them."""
    outcomes = [verdict.outcome for verdict in verdicts]
    ordered = sorted(enumerate(verdicts), key=lambda item: item[1].outcome is Outcome.TIE)
    places = [item for item in ordered if item[1].outcome is not Outcome.SAME]
    depth = max((len(answer.accepted_histogram) for answer in run.answers), default=1) - 1
    speculated = any(answer.verify_steps for answer in run.answers)
    return {
        "prompts": len(verdicts),
        **{outcome.value: outcomes.count(outcome) for outcome in Outcome},
        "tokens": sum(len(answer.token_ids) for answer in run.answers),
        "tokens_compared": sum(verdict.compared for verdict in verdicts),
        "first_differences": [_where(i, verdict) for i, verdict in places[:EXAMPLES]],
        **(acceptance(run, depth) if speculated else {}),
    }


def acceptance(run: Run, depth: int) -> dict[str, Any]:
    """Share of rounds that accepted at least 1 ... ``depth`` drafts, and 1 + their sum, as counters have it."""
    shares = accept_by_depth([answer.accepted_histogram for answer in run.answers], depth)
    return {"accept_length": 1 + sum(shares), "accept_by_depth": shares}


def _where(prompt: int, verdict: Verdict) -> dict[str, Any]:
    index = verdict.difference.index if verdict.difference else None
    return {"prompt": prompt, "outcome": verdict.outcome.value, "token": index, "gap": verdict.gap}
