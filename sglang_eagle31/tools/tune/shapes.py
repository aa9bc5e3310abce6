"""Which shapes a server could be told to run, and the few of them that tell what all cost."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_eagle31.maths.grid import WIDTHS, Prediction, grid
from sglang_eagle31.maths.shape import NO_SPECULATION, Shape
from sglang_eagle31.tools.shared.guard_records import Limits

ALL = 4
"""Shapes that draft up to which each of them is measured."""
FAR = 0.85
"""Of the best prediction; the other kind, chain or tree, is confirmed too when it comes so near."""


def candidates(limits: Limits) -> list[Shape]:
    """No speculation and all shapes within the limits of a server, or those that it lists if it runs no others."""
    most = limits.configured
    found = {NO_SPECULATION, most, *limits.listed}
    if limits.any:
        topks = {topk for topk in (2, 4, 8, 16, 32, most.topk) if 1 < topk <= most.topk}
        widths = {width for width in (*WIDTHS, most.draft_tokens) if width <= most.draft_tokens}
        shapes = grid(most.steps, sorted(topks), sorted(widths))
        found |= {shape for shape in shapes if shape.draft_tokens <= most.draft_tokens}
    return sorted(found)


def probes(shapes: Sequence[Shape]) -> list[Shape]:
    """The fewest that tell apart what a round costs, no speculation first.

    The shortest draft gives what drafting costs at all, the longest chain the draft step, two trees of equal steps and
    topk the target's width, and the narrower one against the chain the width of a draft step. They also try every
    depth and rank.
    """
    drafting = [shape for shape in shapes if shape.steps]
    if len(drafting) <= ALL:
        return [NO_SPECULATION, *drafting]
    chains = [shape for shape in drafting if shape.is_chain] or drafting
    trees = [shape for shape in drafting if not shape.is_chain]
    chosen = [NO_SPECULATION, min(chains), max(chains)]
    if trees:
        bushiest = max((shape.topk, shape.steps) for shape in trees)
        equal = [shape for shape in trees if (shape.topk, shape.steps) == bushiest]
        chosen.append(min(equal, key=lambda shape: shape.draft_tokens))
        chosen.append(max(trees, key=lambda shape: (shape.draft_tokens, shape.steps, shape.topk)))
        chosen.append(max(trees, key=lambda shape: (-shape.steps, shape.draft_tokens, shape.topk)))
    else:
        chosen.append(chains[len(chains) // 2])
    return list(dict.fromkeys(chosen))[: ALL + 1]


def contenders(predictions: Sequence[Prediction], count: int) -> list[Prediction]:
    """The ``count`` shapes to confirm, most promising first.

    The best chain and the best tree are both among them unless one is far behind: what acceptance by depth and rank
    gets wrong, it gets wrong for all trees alike.
    """
    ranked = sorted(
        (one for one in predictions if one.shape.steps), key=lambda one: (-one.speedup, one.shape.draft_tokens)
    )
    first = ranked[0]
    other = [one for one in ranked if one.shape.is_chain != first.shape.is_chain and one.speedup > FAR * first.speedup]
    return list(dict.fromkeys([first, *other[:1], *ranked]))[:count]
