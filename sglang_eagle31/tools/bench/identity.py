"""Are an arm's greedy answers those of the arm without speculation? And how many drafted tokens went into them?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sglang_eagle31.tools.bench.prompts import PromptSet
from sglang_eagle31.tools.shared.acceptance import accept_by_depth
from sglang_eagle31.tools.shared.client import Run, chat_all
from sglang_eagle31.tools.shared.same_answers import tokens
from sglang_eagle31.tools.shared.same_answers.compare import Outcome, Verdict
from sglang_eagle31.tools.shared.same_answers.judge import judge_all
from sglang_eagle31.tools.shared.same_answers.ties import TieRule

EXAMPLES = 5
"""First differences that are written down, those that are no tie before the others; and wrong tokens."""


def answers(url: str, prompts: PromptSet, count: int, longest: int, advance: Callable[[], object]) -> Run:
    """The greedy answers to the first ``count`` prompts, of at most ``longest`` tokens, one by one."""
    return chat_all(url, prompts.chats[:count], longest, 1, advance)


def compare(url: str, plain: Run, other: Run, rule: TieRule, advance: Callable[[], object]) -> dict[str, Any]:
    """The record of one arm; ``url`` is of the server that gave ``plain``, which must be the one that is awake."""
    return record(other, judge_all(url, plain.answers, other.answers, rule, advance))


def record(run: Run, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """How many prompts are answered with the same tokens, end in a tie, or differ; and acceptance over them."""
    outcomes = [verdict.outcome for verdict in verdicts]
    ordered = sorted(enumerate(verdicts), key=lambda item: item[1].outcome is Outcome.TIE)
    places = [item for item in ordered if item[1].outcome is not Outcome.SAME]
    wrong = [(i, one) for i, verdict in enumerate(verdicts) if verdict.tokens for one in verdict.tokens.differing]
    depth = max((len(answer.accepted_histogram) for answer in run.answers), default=1) - 1
    speculated = any(answer.verify_steps for answer in run.answers)
    return {
        "prompts": len(verdicts),
        **{outcome.value: outcomes.count(outcome) for outcome in Outcome},
        "tokens": sum(len(answer.token_ids) for answer in run.answers),
        "tokens_compared": sum(verdict.compared for verdict in verdicts),
        **tokens.counts(verdict.tokens for verdict in verdicts if verdict.tokens),
        "first_differences": [_where(i, verdict) for i, verdict in places[:EXAMPLES]],
        "wrong_tokens": [{"prompt": i, **one.to_json()} for i, one in wrong[:EXAMPLES]],
        **(acceptance(run, depth) if speculated else {}),
    }


def acceptance(run: Run, depth: int) -> dict[str, Any]:
    """Share of rounds that accepted at least 1 ... ``depth`` drafts, and 1 + their sum, as counters have it."""
    shares = accept_by_depth([answer.accepted_histogram for answer in run.answers], depth)
    return {"accept_length": 1 + sum(shares), "accept_by_depth": shares}


def _where(prompt: int, verdict: Verdict) -> dict[str, Any]:
    index = verdict.difference.index if verdict.difference else None
    return {"prompt": prompt, "outcome": verdict.outcome.value, "token": index, "gap": verdict.gap}
