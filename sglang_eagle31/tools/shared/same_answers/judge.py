"""Both comparisons of an answer with speculation, on the server without."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from sglang_eagle31.tools.shared.same_answers.compare import Verdict, compare
from sglang_eagle31.tools.shared.same_answers.logprobs import TIMEOUT, NextToken, OneByOne, teacher_forced
from sglang_eagle31.tools.shared.same_answers.ties import TieRule
from sglang_eagle31.tools.shared.same_answers.tokens import check


class Answered(Protocol):
    """A prompt and its answer, as token ids."""

    @property
    def prompt_ids(self) -> tuple[int, ...]: ...
    @property
    def token_ids(self) -> tuple[int, ...]: ...


def judge(
    url: str,
    prompt: Sequence[int],
    plain: Sequence[int],
    speculative: Sequence[int],
    rule: TieRule,
    bias: Mapping[int, float] | None = None,
    timeout: float = TIMEOUT,
) -> Verdict:
    """Compare the two answers, and check every token of the speculative one.

    ``url`` is of the server without speculation. Raises as `teacher_forced` does.
    """
    verdict = judge_difference(url, prompt, plain, speculative, rule, bias, timeout)
    told = teacher_forced(url, prompt, speculative, (), bias, timeout)
    one_by_one = OneByOne(url, prompt, speculative, bias, timeout)
    return replace(verdict, tokens=check(prompt, speculative, told, one_by_one, rule))


def judge_difference(
    url: str,
    prompt: Sequence[int],
    plain: Sequence[int],
    speculative: Sequence[int],
    rule: TieRule,
    bias: Mapping[int, float] | None = None,
    timeout: float = TIMEOUT,
) -> Verdict:
    """Compare the two answers only, which is all where a request's tokens are not decided by the logits alone."""

    def look_up(index: int) -> NextToken:
        return at_place(url, [*prompt, *plain[:index]], (speculative[index], plain[index]), bias, timeout)

    return compare(prompt, plain, speculative, look_up, rule)


def at_place(
    url: str,
    prefix: Sequence[int],
    candidates: Sequence[int],
    bias: Mapping[int, float] | None = None,
    timeout: float = TIMEOUT,
) -> NextToken:
    """What a server says of ``candidates`` after ``prefix``. Raises as `teacher_forced` does.

    Where the server has answered with this very prefix before, all but its last token come from the prefix cache, so
    these are the logits of that answer.
    """
    first, *others = candidates
    return teacher_forced(url, prefix, [first], others, bias, timeout)[0]


def judge_all(
    url: str,
    plain: Sequence[Answered],
    speculative: Sequence[Answered],
    rule: TieRule,
    advance: Callable[[], object] = lambda: None,
) -> list[Verdict]:
    """`judge` for each prompt; ``advance`` is called after each.

    Raises RuntimeError where the prompts of the two are not the same tokens, and as `teacher_forced` does.
    """
    verdicts = []
    for number, (a, b) in enumerate(zip(plain, speculative, strict=True), start=1):
        if a.prompt_ids != b.prompt_ids:
            raise RuntimeError(f"the servers tokenised prompt {number} differently")
        verdicts.append(judge(url, b.prompt_ids, a.token_ids, b.token_ids, rule))
        advance()
    return verdicts
