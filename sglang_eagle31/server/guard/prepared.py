"""Which shapes the guard chooses from, and which may be pinned."""

from __future__ import annotations

from sglang_eagle31.maths.shape import NO_SPECULATION, Shape

CHAINS = (1, 2, 3, 5)
"""Steps of the chains beside the configured shape; deeper ones pay only where these pay too."""


def prepared(configured: Shape, everywhere: bool) -> tuple[Shape, ...]:
    """The shapes that draft, the configured one first.

    ``everywhere`` says that any smaller shape can be run, as on a CPU: then shorter chains, and for a tree one of half
    its width. Else only the configured one, for which the server has graphs.
    """
    if not everywhere:
        return (configured,)
    chains = [Shape.chain(steps) for steps in CHAINS if steps < configured.steps]
    if configured.topk == 1:
        return (configured, *chains)
    half = configured.draft_tokens // 2
    narrower = [Shape(configured.steps, configured.topk, half)] if half > configured.steps else []
    return (configured, *narrower, *chains)


def may_pin(shape: Shape, configured: Shape, shapes: tuple[Shape, ...], everywhere: bool) -> bool:
    """Whether the server can run ``shape``: on a CPU any that is no deeper and no wider than the configured one."""
    if shape in (NO_SPECULATION, *shapes):
        return True
    if not everywhere or shape.topk > configured.topk or shape.steps > configured.steps:
        return False
    return shape.steps < shape.draft_tokens <= configured.draft_tokens
