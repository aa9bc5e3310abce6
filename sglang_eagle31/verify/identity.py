"""Compare two servers' answers to the same requests, and say of a first differing token whether it is a tie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sglang_eagle31.demo.client import NextToken
from sglang_eagle31.demo.compare import Difference, first_difference
from sglang_eagle31.verify.replay import Answer, Completion
from sglang_eagle31.verify.requests_file import Request


class Kind(Enum):
    """How the two answers to one request relate."""

    SAME = "same"
    TIE = "tie"
    DIFFERENT = "DIFFERENT"
    SAMPLED = "sampled, not comparable"
    REFUSED = "refused by both"


@dataclass(frozen=True)
class Candidates:
    """Log-probabilities on one server of what both servers chose; their differences are those of the logits."""

    best: float
    """Of the most probable token."""
    speculative: float
    """Of the token that the server with speculation gave."""
    baseline: float
    """Of the token that the other gave."""

    @property
    def gap(self) -> float:
        """From the best token to the worse of the two."""
        return self.best - min(self.speculative, self.baseline)


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
    on_speculative: Candidates | None = None
    on_baseline: Candidates | None = None

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
            "what": self.what,
            "choice": self.choice,
            "position": where.index if where else None,
            "speculative_token": where.speculative if where else None,
            "baseline_token": where.plain if where else None,
            "logprobs": {
                server: {"best": c.best, "speculative_token": c.speculative, "baseline_token": c.baseline, "gap": c.gap}
                for server, c in pairs.items()
                if c is not None
            },
        }


LookUp = Callable[[Request, Answer, Answer, int, Difference], tuple[Candidates, Candidates] | None]
"""Of a difference in one choice: the candidates on the speculative server and on the baseline; None if not told."""


def compare(
    found: Sequence[Request], speculative: Sequence[Answer], baseline: Sequence[Answer], bound: float, look_up: LookUp
) -> list[Finding]:
    """A finding for each request; a difference up to ``bound`` between logits, on both servers, is a tie."""
    return [
        _compare(request, ours, theirs, bound, look_up)
        for request, ours, theirs in zip(found, speculative, baseline, strict=True)
    ]


def _compare(request: Request, ours: Answer, theirs: Answer, bound: float, look_up: LookUp) -> Finding:
    tokens = sum(len(one.token_ids) for one in ours.sequences)
    if ours.refused or theirs.refused:
        return _refusals(request, ours, theirs)
    if not request.greedy:
        return Finding(request, Kind.SAMPLED, tokens, 0)
    if len(ours.sequences) != len(theirs.sequences) or ours.prompt_ids != theirs.prompt_ids:
        what = "number of answers" if ours.prompt_ids == theirs.prompt_ids else "token ids of the prompt"
        return Finding(request, Kind.DIFFERENT, tokens, 0, what)
    worst = None
    compared = 0
    for choice, (a, b) in enumerate(zip(ours.sequences, theirs.sequences, strict=True)):
        difference = first_difference(b.token_ids, a.token_ids)
        compared += difference.index if difference else len(a.token_ids)
        kind, what, candidates = Kind.SAME, "", None
        if difference is not None:
            kind, what = Kind.DIFFERENT, "token"
            candidates = look_up(request, ours, theirs, choice, difference)
            if candidates and _is_tie(difference, candidates, bound):
                kind = Kind.TIE
        elif (other := _other_difference(a, b)) is not None:
            kind, what = Kind.DIFFERENT, other
        if kind is not Kind.SAME and (worst is None or (worst.kind, kind) == (Kind.TIE, Kind.DIFFERENT)):
            worst = Finding(request, kind, tokens, 0, what, choice, difference, *(candidates or ()))
    if worst is None:
        return Finding(request, Kind.SAME, tokens, compared)
    return Finding(**{**worst.__dict__, "compared": compared})


def _is_tie(difference: Difference, candidates: tuple[Candidates, Candidates], bound: float) -> bool:
    """An answer that ended while the other went on is never a tie: its end-of-turn token is among its tokens."""
    if bound == 0.0 or None in (difference.plain, difference.speculative):
        return False
    # Log-probabilities are float32, so the grid of the logits is met up to their rounding.
    return max(one.gap for one in candidates) <= bound + 1e-4


def _other_difference(a: Completion, b: Completion) -> str | None:
    if a.finish != b.finish:
        return f"finish reason: {a.finish} with speculation, {b.finish} without"
    return "text of the same tokens" if a.text != b.text else None


def _refusals(request: Request, ours: Answer, theirs: Answer) -> Finding:
    if ours.status == theirs.status:
        return Finding(request, Kind.REFUSED, 0, 0, ours.refused)
    sides = [f"{name}: {answer.refused or 'answered'}" for name, answer in (("with", ours), ("without", theirs))]
    return Finding(request, Kind.DIFFERENT, 0, 0, "refused on one side only; speculation " + "; ".join(sides))


def candidates_of(token: NextToken, difference: Difference) -> Candidates:
    """The candidates of a difference between two tokens, of what a server says of the next token."""
    assert difference.plain is not None and difference.speculative is not None
    return Candidates(token.top[0], token.wanted[difference.speculative], token.wanted[difference.plain])
