"""Which chat template made a prompt, told by its special tokens alone.

The pattern of a prompt is its special tokens in order, with a mark where text stands between them, up to the first
special token that occurs again: so it is the same for any number of turns, and differs where the template, the BOS
token (missing, doubled) or the order of the parts does. No text of a prompt is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2s

import numpy as np

TEXT = -1
"""In a pattern: any text."""
OTHER = 0
"""Index of the templates that came when the table was full."""
LIMIT = 16
"""Size of the table, `OTHER` included; labels in Prometheus must be few."""
LONGEST = 32
"""Tokens and marks of a pattern that are looked at."""


def pattern(ids: Sequence[int], special: Iterable[int]) -> tuple[int, ...]:
    """The pattern of a prompt; `TEXT` for text."""
    tokens = np.asarray(ids, np.int64)
    found: list[int] = []
    end = 0
    for place in np.flatnonzero(np.isin(tokens, list(special))):
        if place > end:
            found.append(TEXT)
        token, end = int(tokens[place]), int(place) + 1
        again = token in found
        found.append(token)
        if again or len(found) >= LONGEST:
            return tuple(found)
    return (*found, TEXT) if end < len(tokens) else tuple(found)


def digest(found: Sequence[int]) -> str:
    """The fingerprint of a pattern: eight hexadecimal digits, the same in every process."""
    return blake2s(",".join(map(str, found)).encode(), digest_size=4).hexdigest()


class Templates:
    """Templates seen, in the order of their first prompt; at most `LIMIT`."""

    def __init__(self, special: Iterable[int], name: Callable[[int], str] = str) -> None:
        """``special`` are the ids of special tokens, ``name`` writes one out."""
        self.special, self.name = sorted(set(special)), name
        self.patterns: list[tuple[int, ...]] = [()]
        self.digests = ["other"]
        self._index: dict[tuple[int, ...], int] = {}

    def index(self, ids: Sequence[int]) -> int:
        """Index of a prompt's template; a new one is given a place while there is one, else it is `OTHER`."""
        found = pattern(ids, self.special)
        known = self._index.get(found)
        if known is None:
            if len(self.patterns) == LIMIT:
                return OTHER
            known = self._index[found] = len(self.patterns)
            self.patterns.append(found)
            self.digests.append(digest(found))
        return known

    def describe(self, index: int) -> str:
        """A pattern for people, text as ``...``."""
        if index == OTHER:
            return f"patterns after the first {LIMIT - 1}"
        return " ".join("..." if token == TEXT else self.name(token) for token in self.patterns[index])
