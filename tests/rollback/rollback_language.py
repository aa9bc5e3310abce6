"""A language whose next token depends on every token before it, so that KV content can be told right from wrong.

What a KV row holds is the state of the text up to and including its token: a stand-in for the target reads the state of
the position before from the KV pool, as attention reads keys, and writes the state of the new token. One wrong row in a
prefix changes every state behind it, and with them the text.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

VOCAB = 64
STOP = 2
"""The stop token; the text says it about once in 19 tokens, whether or not a request stops at it."""
START = 77
"""State of the empty text."""
PRIME = (1 << 47) - 115
DRAFTED = -5
"""What the draft's pool holds for a token that was only drafted: an accepted one is computed again."""


def advance(state: int, token: int) -> int:
    """The state after one more token."""
    return (state * 48271 + token * 1103515 + 12345) % PRIME


def say(state: int) -> int:
    """The token that follows a text of this state."""
    return STOP if state % 19 == 0 else 3 + state % (VOCAB - 3)


def states(tokens: Sequence[int]) -> list[int]:
    """The state after each token."""
    out, state = [], START
    for token in tokens:
        state = advance(state, token)
        out.append(state)
    return out


def continuation(prompt: Sequence[int], count: int) -> list[int]:
    """The ``count`` tokens that follow a prompt."""
    state, out = states(prompt)[-1], []
    for _ in range(count):
        out.append(say(state))
        state = advance(state, out[-1])
    return out


def draft_row(state: int, following: int) -> int:
    """What the draft's pool holds for a committed token: its state in the target, and the token that follows it."""
    return advance(state, following + 1000)


def advance_all(state: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    """`advance` on int64 tensors."""
    return (state * 48271 + token * 1103515 + 12345) % PRIME


def say_all(state: torch.Tensor) -> torch.Tensor:
    """`say` on int64 tensors."""
    return torch.where(state % 19 == 0, STOP, 3 + state % (VOCAB - 3))
