"""What a server's counters say about one cell: the difference between two answers of ``/server_info``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from sglang_eagle31.tools.shared.acceptance_of_server import collect
from sglang_eagle31.tools.shared.server_info import schedulers


@dataclass(frozen=True)
class Counts:
    """Sums since the server's start, over its schedulers.

    Attributes:
        drafts: verify rounds of requests that had a draft.
        accepted: ``[S]`` of them, those that accepted at least 1 ... S drafted tokens.
        plain: rounds of a batch that the guard ran without a draft.
        drafted: rounds of a batch that it ran with one.
        guarded: whether there is a guard.
        counted: whether drafts are counted at all, which only EAGLE31 does.
    """

    drafts: int = 0
    accepted: tuple[int, ...] = ()
    plain: int = 0
    drafted: int = 0
    guarded: bool = False
    counted: bool = False

    def __sub__(self, other: Counts) -> Counts:
        """What came after ``other``."""
        accepted = tuple(a - b for a, b in zip_longest(self.accepted, other.accepted, fillvalue=0))
        return Counts(
            self.drafts - other.drafts,
            accepted,
            self.plain - other.plain,
            self.drafted - other.drafted,
            self.guarded,
            self.counted,
        )

    @property
    def accept_length(self) -> float | None:
        """Tokens of a drafted round, bonus included; None without one."""
        return 1 + sum(self.accepted) / self.drafts if self.drafts else None

    @property
    def by_depth(self) -> list[float]:
        """Share of drafted rounds that accepted at least 1 ... S tokens."""
        return [count / self.drafts for count in self.accepted] if self.drafts else []

    @property
    def fallback_ratio(self) -> float | None:
        """Rounds without a draft by all; None without a guard, and without a round."""
        rounds = self.plain + self.drafted
        return self.plain / rounds if self.guarded and rounds else None

    def to_json(self) -> dict[str, Any]:
        """As it goes to the raw record of a cell."""
        found: dict[str, Any] = {}
        if self.counted:
            found |= {"drafts": self.drafts, "accepted_by_depth": list(self.accepted)}
        if self.guarded:
            found |= {"plain_rounds": self.plain, "drafted_rounds": self.drafted}
        return found


def guards(info: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the guard of each scheduler says; empty without one."""
    return [one["guard"] for one in schedulers(info) if one.get("guard")]


def read(info: Mapping[str, Any]) -> Counts:
    """The counters in an answer of ``/server_info``; all zero on servers without them."""
    acceptance = collect(info)
    total: Mapping[str, Any] = acceptance["total"] if acceptance else {"drafts": 0, "accepted_by_depth": []}
    rounds = [one["rounds"] for one in guards(info)]
    return Counts(
        drafts=total["drafts"],
        accepted=tuple(total["accepted_by_depth"]),
        plain=sum(one["plain"] for one in rounds),
        drafted=sum(one["drafted"] for one in rounds),
        guarded=bool(rounds),
        counted=acceptance is not None or any(schedulers(info)),
    )


def pooled(raws: Sequence[Mapping[str, Any]]) -> Counts:
    """Counts of several cells, from their raw records."""
    depth = [list(raw.get("accepted_by_depth", ())) for raw in raws]
    return Counts(
        drafts=sum(raw.get("drafts", 0) for raw in raws),
        accepted=tuple(sum(counts) for counts in zip_longest(*depth, fillvalue=0)),
        plain=sum(raw.get("plain_rounds", 0) for raw in raws),
        drafted=sum(raw.get("drafted_rounds", 0) for raw in raws),
        guarded=any("plain_rounds" in raw for raw in raws),
        counted=any("drafts" in raw for raw in raws),
    )
