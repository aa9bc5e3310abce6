"""Ask both servers about the answers: the one without speculation about every token, the other where answers differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import requests

from sglang_eagle31.tools.shared.requests_file import Request
from sglang_eagle31.tools.shared.same_answers.compare import Outcome, Verdict
from sglang_eagle31.tools.shared.same_answers.judge import at_place, judge, judge_difference
from sglang_eagle31.tools.shared.same_answers.logprobs import NextToken, NotTold
from sglang_eagle31.tools.shared.same_answers.ties import TieRule
from sglang_eagle31.tools.verify.raw_logits import bias, what_else
from sglang_eagle31.tools.verify.replay import Answer, prompt_ids


@dataclass(frozen=True)
class Judged:
    """What the servers say of one answer."""

    verdict: Verdict
    prefix: tuple[int, ...] = ()
    """Prompt and tokens before the first difference; empty without one."""
    not_checked: str = ""
    """What else than logits decides the tokens; empty where every token was checked."""
    on_speculative: NextToken | None = None
    """What the server with speculation says at the difference."""

    @property
    def candidates(self) -> tuple[int, int] | None:
        """The two tokens of a difference, with speculation and without; None if an answer has ended there."""
        where = self.verdict.difference
        if where is None or where.speculative is None or where.plain is None:
            return None
        return where.speculative, where.plain

    def confirmed(self, told: NextToken, rule: TieRule) -> Judged:
        """With what the server with speculation says: a tie has to be one on both servers."""
        assert self.candidates is not None
        verdict = self.verdict
        if verdict.outcome is Outcome.TIE and not rule.explains(told.gap(*self.candidates), self.prefix):
            verdict = replace(verdict, outcome=Outcome.DIFFERENT)
        return replace(self, verdict=verdict, on_speculative=told)

    def unconfirmed(self) -> Judged:
        """Without what the server with speculation says: a difference is no tie."""
        tie = self.verdict.outcome is Outcome.TIE
        return replace(self, verdict=replace(self.verdict, outcome=Outcome.DIFFERENT)) if tie else self


Key = tuple[int, int]
"""Line of the request, and which of its answers."""
Pair = tuple[Request, Answer, Answer]
"""A request and its answers with speculation and without."""


def comparable(found: Sequence[Request], ours: Sequence[Answer], theirs: Sequence[Answer]) -> list[Pair]:
    """Greedy requests that both servers answered as many times, to the same tokens."""
    return [
        (request, a, b)
        for request, a, b in zip(found, ours, theirs, strict=True)
        if request.greedy and len(a.sequences) == len(b.sequences) > 0 and a.prompt_ids == b.prompt_ids
    ]


def ask_baseline(
    url: str,
    pairs: Sequence[Pair],
    rule: TieRule,
    defaults: Mapping[str, Mapping[str, Any]],
    timeout: float,
    advance: Callable[[], object],
) -> dict[Key, Judged]:
    """The judgement of every answer; ``advance`` is called after each request.

    Penalties, grammars and processors are not applied to what the server says at a difference. Raises NotTold where it
    does not say it, ValueError where it is gone.
    """
    judged: dict[Key, Judged] = {}
    for request, ours, theirs in pairs:
        with _reachable(url, request):
            judged.update(_judged(url, request, ours, theirs, rule, what_else(request, defaults), timeout))
        advance()
    return judged


def _judged(
    url: str, request: Request, ours: Answer, theirs: Answer, rule: TieRule, other: str, timeout: float
) -> Iterator[tuple[Key, Judged]]:
    """Of each answer to one request; ``other`` is what else than logits decides its tokens."""
    answers = [(a.token_ids, b.token_ids) for a, b in zip(ours.sequences, theirs.sequences, strict=True)]
    asked = not other or any(one != another for one, another in answers)
    prompt = prompt_ids(url, request, theirs, timeout) if asked else ()
    for choice, (speculative, plain) in enumerate(answers):
        if other:
            verdict = judge_difference(url, prompt, plain, speculative, rule, bias(request), timeout)
        else:
            verdict = judge(url, prompt, plain, speculative, rule, bias(request), timeout)
        prefix = prompt + plain[: verdict.difference.index] if verdict.difference else ()
        yield (request.line, choice), Judged(verdict, prefix, other)


def ask_speculative(
    url: str, found: Sequence[Request], judged: Mapping[Key, Judged], rule: TieRule, timeout: float
) -> tuple[dict[Key, Judged], list[str]]:
    """``judged``, confirmed where two tokens differ, and notes on what the server with speculation does not say.

    Raises ValueError where it is gone.
    """
    by_line = {request.line: request for request in found}
    confirmed, notes = dict(judged), []
    for key, one in judged.items():
        if one.candidates is None:
            continue
        request = by_line[key[0]]
        try:
            with _reachable(url, request):
                told = at_place(url, one.prefix, one.candidates, bias(request), timeout)
            confirmed[key] = one.confirmed(told, rule)
        except NotTold as error:
            confirmed[key] = one.unconfirmed()
            notes.append(str(error))
    return confirmed, notes


@contextmanager
def _reachable(url: str, request: Request) -> Iterator[None]:
    try:
        yield
    except NotTold as error:
        raise NotTold(f"request {request.line}: {error}") from error
    except requests.RequestException as error:
        raise ValueError(f"{url}: is gone ({error}), at request {request.line}; fix: see its log") from error
