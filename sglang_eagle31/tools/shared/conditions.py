"""The conditions under which a question is asked: names, what changes, and what a fall at depth 1 then means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BASE = "regular"
CONTEXTS = (512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class Condition:
    """One way to ask every question."""

    name: str
    what: str
    """What differs from ``regular``, for people."""
    cause: str = ""
    """What a fall of acceptance at depth 1 is evidence of."""


TEMPLATE = "the head leans on the chat template that it was trained with"

CONDITIONS = {
    condition.name: condition
    for condition in (
        Condition(BASE, "the chat template of the target"),
        # The other three of the attention-drift paper, appendix D.
        Condition("no_bos", "the same without its first token (see the start token)", TEMPLATE),
        Condition("no_template", "the start token and the bare text, an empty line after it", TEMPLATE),
        Condition("no_bos_no_template", "the bare text, an empty line after it", TEMPLATE),
        Condition("swapped_system", "another system prompt", "the head leans on the system prompt it was trained with"),
        Condition("long_system", "a system prompt of about 600 tokens", "long instructions were rare in its training"),
        Condition("tool_calls", "a tool, a call and its result come before", "tool calls were rare in its training"),
        Condition("multi_turn", "three earlier turns", "its training data had few turns"),
    )
}


def context_name(tokens: int) -> str:
    """Name of a bucket of context length, such as ``context_2048``."""
    return f"context_{tokens}"


def context_tokens(name: str) -> int | None:
    """Tokens of a bucket's name; None for any other condition."""
    head, _, tail = name.rpartition("_")
    return int(tail) if head == "context" and tail.isdecimal() else None


def parse_conditions(text: str | None) -> tuple[Condition, ...]:
    """Conditions of a comma-separated list, all for None; ``regular``, to which others are compared, is always first.

    Raises ValueError for a name that is not one.
    """
    names = list(CONDITIONS) if text is None else [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in CONDITIONS]
    if unknown:
        raise ValueError(f"--conditions {unknown[0]}: no such condition; fix: some of {', '.join(CONDITIONS)}")
    return tuple(CONDITIONS[name] for name in dict.fromkeys((BASE, *names)))


def parse_contexts(text: str | None) -> tuple[int, ...]:
    """Ascending context lengths in tokens, the default ones for None, no one for an empty text or ``none``.

    Raises ValueError for anything but positive whole numbers.
    """
    if text is None:
        return CONTEXTS
    if text.strip() in ("", "none"):
        return ()
    items: Sequence[str] = [item.strip() for item in text.split(",")]
    if not all(item.isdecimal() and int(item) > 0 for item in items):
        raise ValueError(f"--contexts {text}: expected token counts; fix: for example 512,1024,2048, or none")
    return tuple(sorted({int(item) for item in items}))
