"""Compare two servers' answers to the same requests, with what the servers say of their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from sglang_eagle31.tools.shared.requests_file import Request
from sglang_eagle31.tools.shared.same_answers.compare import Difference, Outcome
from sglang_eagle31.tools.shared.same_answers.logprobs import NextToken
from sglang_eagle31.tools.shared.same_answers.tokens import Tokens, counts
from sglang_eagle31.tools.verify.judged import Judged, Key
from sglang_eagle31.tools.verify.replay import Answer, Completion


class Kind(Enum):
    """How the two answers to one request relate."""

    SAME = "same"
    TIE = "tie"
    DIFFERENT = "DIFFERENT"
    SAMPLED = "sampled, not comparable"
    REFUSED = "refused by both"


WORST_FIRST = (Kind.DIFFERENT, Kind.TIE, Kind.SAME)
SAMPLED = "sampled"
"""Why tokens of a request that is not greedy are not checked."""


@dataclass(frozen=True)
class Finding:
    """The comparison of one request."""

    request: Request
    kind: Kind
    tokens: int
    """Of the speculative server's answer."""
    compared: int
    """Tokens found equal, up to the first difference."""
    what: str = ""
    """What differs, in words."""
    choice: int = 0
    """Which of ``n`` answers."""
    difference: Difference | None = None
    """``plain`` is the baseline's token."""
    on_speculative: NextToken | None = None
    on_baseline: NextToken | None = None
    checked: tuple[Tokens, ...] = ()
    """Every token of each of the answers, by the baseline's logits."""
    not_checked: str = ""
    """Why its tokens were not; empty where they were."""

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        where = self.difference
        pairs = {"speculative": self.on_speculative, "baseline": self.on_baseline}
        return {
            "line": self.request.line,
            "route": self.request.route,
            "outcome": self.kind.value,
            "tokens": self.tokens,
            "compared": self.compared,
            **counts(self.checked),
            "not_checked": self.not_checked,
            "unlikely": [
                {"choice": i, **one.to_json()} for i, every in enumerate(self.checked) for one in every.unlikely
            ],
            "what": self.what,
            "choice": self.choice,
            "position": where.index if where else None,
            "speculative_token": where.speculative if where else None,
            "baseline_token": where.plain if where else None,
            "logprobs": {
                server: dict(
                    zip(("best", "speculative_token", "baseline_token", "gap"), self.logprobs(told), strict=True)
                )
                for server, told in pairs.items()
                if told is not None
            },
        }

    def logprobs(self, told: NextToken) -> tuple[float, float, float, float]:
        """At the difference: of the best token, of the tokens with speculation and without, and the gap."""
        assert self.difference and self.difference.speculative is not None and self.difference.plain is not None
        pair = self.difference.speculative, self.difference.plain
        return told.best, told.told[pair[0]], told.told[pair[1]], told.gap(*pair)


def compare(
    found: Sequence[Request], speculative: Sequence[Answer], baseline: Sequence[Answer], judged: Mapping[Key, Judged]
) -> list[Finding]:
    """A finding for each request."""
    return [
        _compare(request, ours, theirs, judged)
        for request, ours, theirs in zip(found, speculative, baseline, strict=True)
    ]


def _compare(request: Request, ours: Answer, theirs: Answer, judged: Mapping[Key, Judged]) -> Finding:
    tokens = sum(len(one.token_ids) for one in ours.sequences)
    if ours.refused or theirs.refused:
        return _refusals(request, ours, theirs)
    if not request.greedy:
        return Finding(request, Kind.SAMPLED, tokens, 0, not_checked=SAMPLED)
    if len(ours.sequences) != len(theirs.sequences) or ours.prompt_ids != theirs.prompt_ids:
        what = "number of answers" if ours.prompt_ids == theirs.prompt_ids else "token ids of the prompt"
        return Finding(request, Kind.DIFFERENT, tokens, 0, what, not_checked=what)
    choices = [judged[request.line, choice] for choice in range(len(ours.sequences))]
    whole = Finding(
        request,
        Kind.SAME,
        tokens,
        sum(one.verdict.compared for one in choices),
        checked=tuple(one.verdict.tokens for one in choices if one.verdict.tokens),
        not_checked=choices[0].not_checked,
    )
    found = [
        _with_outcome(whole, choice, a, b, one)
        for choice, (a, b, one) in enumerate(zip(ours.sequences, theirs.sequences, choices, strict=True))
    ]
    return min(found, key=lambda one: WORST_FIRST.index(one.kind))


def _with_outcome(whole: Finding, choice: int, ours: Completion, theirs: Completion, judged: Judged) -> Finding:
    """The finding, as one of the answers would have it alone."""
    verdict = judged.verdict
    kind, what = Kind.SAME, ""
    if verdict.outcome is Outcome.DIFFERENT:
        kind, what = Kind.DIFFERENT, "token"
    elif verdict.tokens and verdict.tokens.differing:
        kind, what = Kind.DIFFERENT, f"token {verdict.tokens.differing[0].index}, by the logits without speculation"
    elif verdict.outcome is Outcome.TIE:
        kind, what = Kind.TIE, "token"
    elif (other := _other_difference(ours, theirs)) is not None:
        kind, what = Kind.DIFFERENT, other
    return replace(
        whole,
        kind=kind,
        what=what,
        choice=choice,
        difference=verdict.difference,
        on_speculative=judged.on_speculative,
        on_baseline=verdict.candidates,
    )


def _other_difference(a: Completion, b: Completion) -> str | None:
    if a.finish != b.finish:
        return f"finish reason: {a.finish} with speculation, {b.finish} without"
    return "text of the same tokens" if a.text != b.text else None


def _refusals(request: Request, ours: Answer, theirs: Answer) -> Finding:
    if ours.status == theirs.status:
        return Finding(request, Kind.REFUSED, 0, 0, ours.refused)
    sides = [f"{name}: {answer.refused or 'answered'}" for name, answer in (("with", ours), ("without", theirs))]
    return Finding(request, Kind.DIFFERENT, 0, 0, "refused on one side only; speculation " + "; ".join(sides))
