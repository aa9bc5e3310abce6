"""Judge every token of an answer by what the server without speculation says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_eagle31.tools.shared.same_answers.logprobs import NextToken
from sglang_eagle31.tools.shared.same_answers.ties import TieRule


@dataclass(frozen=True)
class Unlikely:
    """A token that is not the most probable one at its place."""

    index: int
    token: int
    gap: float
    """In logits, from the best token."""
    tie: bool
    """Whether rounding explains the gap; else the token is wrong."""

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "index": self.index,
            "token": self.token,
            "gap": self.gap,
            "outcome": "tie" if self.tie else "different",
        }


@dataclass(frozen=True)
class Tokens:
    """Every token of one answer."""

    checked: int
    unlikely: tuple[Unlikely, ...] = ()

    @property
    def ties(self) -> tuple[Unlikely, ...]:
        """Those within rounding of the best."""
        return tuple(one for one in self.unlikely if one.tie)

    @property
    def differing(self) -> tuple[Unlikely, ...]:
        """Those that are wrong."""
        return tuple(one for one in self.unlikely if not one.tie)


def check(
    prompt: Sequence[int],
    answer: Sequence[int],
    told: Sequence[NextToken],
    one_by_one: Callable[[int], NextToken],
    rule: TieRule,
) -> Tokens:
    """Of what the server said at each place of ``answer``. The end-of-turn token is one of the tokens.

    ``one_by_one`` is asked at an index where that is doubtful, up to the first wrong token of the answer.
    """
    found: list[Unlikely] = []
    right = True
    for index, (token, place) in enumerate(zip(answer, told, strict=True)):
        gap = place.gap(token)
        if right and rule.doubtful(gap):
            gap = one_by_one(index).gap(token)
        if gap > 0:
            found.append(Unlikely(index, token, gap, rule.explains(gap, [*prompt, *answer[:index]])))
            right = right and found[-1].tie
    return Tokens(len(answer), tuple(found))


def counts(every: Iterable[Tokens]) -> dict[str, int]:
    """Over several answers, as all records have them."""
    found = list(every)
    return {
        "tokens_checked": sum(one.checked for one in found),
        "tokens_tied": sum(len(one.ties) for one in found),
        "tokens_differing": sum(len(one.differing) for one in found),
    }


def say(record: Mapping[str, Any]) -> str:
    """One sentence on a record with `counts` and all its ``tokens``."""
    return (
        f"{record['tokens_checked']} of {record['tokens']} tokens checked by the logits without speculation: "
        f"{record['tokens_tied']} ties, {record['tokens_differing']} differ"
    )
