"""What of the target's answers is worth training on: no loops, no two alike, nothing that is held out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sglang_eagle31.tools.train.data import Sample

SHINGLE = 8
"""Tokens of an n-gram by which answers are compared."""
ALIKE = 0.7
"""An answer is dropped when it shares this part of its n-grams with one earlier answer."""


def loop_start(ids: Sequence[int], size: int = 8, times: int = 3) -> int:
    """Index where the text starts to repeat itself (an n-gram's second occurrence, once it occurs ``times`` times).

    Returns ``len(ids)`` when it does not.
    """
    seen: dict[tuple[int, ...], list[int]] = {}
    for start in range(len(ids) - size + 1):
        places = seen.setdefault(tuple(ids[start : start + size]), [])
        places.append(start)
        if len(places) == times:
            return places[1]
    return len(ids)


@dataclass
class Answers:
    """The answers kept so far, by their n-grams."""

    owner: dict[tuple[int, ...], int] = field(default_factory=dict)
    count: int = 0

    def add(self, ids: Sequence[int]) -> bool:
        """Whether the answer is new; if it is, it is kept. Short answers count as one n-gram."""
        size = min(SHINGLE, len(ids))
        grams = {tuple(ids[i : i + size]) for i in range(len(ids) - size + 1)}
        owners = Counter(self.owner[gram] for gram in grams if gram in self.owner)
        if owners and owners.most_common(1)[0][1] >= ALIKE * len(grams):
            return False
        for gram in grams:
            self.owner.setdefault(gram, self.count)
        self.count += 1
        return True


def without_held_out(samples: Iterable[Sample], held_out: Iterable[Sample]) -> list[Sample]:
    """The samples of ``samples`` whose id and whose first prompt (its tokens) are not held out.

    A follow-up question ``ID-2`` has the id of its first turn.
    """
    held = list(held_out)
    ids, prompts = {first_id(s) for s in held}, {s.prompt for s in held}
    return [s for s in samples if first_id(s) not in ids and not _starts_with(s, prompts)]


def first_id(sample: Sample) -> str:
    """The id of the conversation's first prompt."""
    return str(sample.info["id"]).removesuffix("-2")


def _starts_with(sample: Sample, prompts: set[tuple[int, ...]]) -> bool:
    prompt = sample.prompt
    lengths = {len(p) for p in prompts if len(p) <= len(prompt)}
    return any(prompt[:length] in prompts for length in lengths)
