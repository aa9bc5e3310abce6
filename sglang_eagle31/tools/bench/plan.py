"""The order of a run: which arm does what when, so that each round is one comparison."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

Key = tuple[str, str, int]
"""Arm, prompt set, concurrency; concurrency 0 is recorded traffic at its own pace."""


@dataclass(frozen=True)
class Cell:
    """One measurement."""

    arm: str
    prompts: str
    concurrency: int
    round: int

    @property
    def key(self) -> Key:
        """The cell over all rounds."""
        return self.arm, self.prompts, self.concurrency


@dataclass(frozen=True)
class Ask:
    """Every answer of a prompt set, one by one and untimed, to be compared with the first arm's."""

    arm: str
    prompts: str


Visit = tuple[Cell | Ask, ...]
"""What one arm does before the next one has its turn."""


def order(arms: Sequence[str], turn: int) -> list[str]:
    """The arms of a round, each round beginning with another; the first arm is the last one of round 1."""
    shift = turn % len(arms)
    return [*arms[shift:], *arms[:shift]]


def plan(
    arms: Sequence[str],
    prompts: Sequence[str],
    concurrency: Sequence[int],
    rounds: int,
    *,
    kept: bool,
    ask: bool,
    done: Collection[Cell | Ask] = (),
) -> Iterator[Visit]:
    """Visits in order; what is in ``done`` is left out.

    With servers that are ``kept``, arms change with every cell. Else each has one turn a round, for all its cells, so
    that servers start ``rounds`` times. With ``ask``, answers come first; the first arm answers last of all, when the
    others' answers are there to be compared.
    """
    turns = range(1, rounds + 1)
    asks = {arm: [Ask(arm, name) for name in prompts] if ask else [] for arm in arms}
    visits: list[Sequence[Cell | Ask]] = []
    if kept:
        visits += [asks[arm] for arm in order(arms, 1)]
        cells = ((turn, name, n) for turn in turns for name in prompts for n in concurrency)
        visits += [[Cell(arm, name, n, turn)] for turn, name, n in cells for arm in order(arms, turn)]
    else:
        for turn in turns:
            for arm in order(arms, turn):
                visit: list[Cell | Ask] = list(asks[arm]) if turn == 1 else []
                visits.append(visit + [Cell(arm, name, n, turn) for name in prompts for n in concurrency])
    for each in visits:
        left = tuple(item for item in each if item not in done)
        if left:
            yield left
