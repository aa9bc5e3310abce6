"""What the numbers say in plain words: which cause, by where in the draft acceptance falls.

The split: what makes a head's *input* foreign (a template or system prompt it was not trained with, positions beyond
its limit, more keys than it has ever attended to) hurts depth 1, where the head works on the target's own states. Drift
builds up on the head's own states, so it leaves depth 1 alone and hurts the positions after it.

Each condition is compared with its base on the same questions: ``regular``, or for a context the shortest one measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang_eagle31.tools.robust.measurement import HeadResult, Measured, paired
from sglang_eagle31.tools.robust.statistics import Array, Estimate, at_least, deep, divide, estimate, first, length
from sglang_eagle31.tools.shared.conditions import BASE, CONDITIONS, context_tokens
from sglang_eagle31.tools.shared.served_head import Head

DROP = 0.10
"""A fall counts from 10 % on, if its interval excludes no fall. A 3.1 head of the paper loses 5 % of its accept length
in its worst template condition and an EAGLE-3 head 52 %: 10 % is outside the first and far inside the second. Accept
length must fall for certain too: where depth 1 accepts more, other and harder rounds come to the deeper positions.
"""

KEPT = 0.80
"""Acceptance is kept only where the intervals exclude a fall of 20 %, twice what counts as one; else it is unclear."""

FEW_PROMPTS = 8
FEW_ROUNDS = 150
"""Below 8 questions or 150 rounds (of the condition, on the questions that both have) nothing is concluded."""

COLLAPSE = 0.5
"""Under ``regular``, the deepest position accepts less than half of what depth 1 does. Of the paper's heads those that
are used within their training depth keep more than half up to 16 tokens (0.91 to 0.50); beyond it one falls to 0."""
DEEPEST_ROUNDS = 30
"""A position needs 30 rounds that came to it before it is judged by itself."""


@dataclass(frozen=True)
class Finding:
    """One conclusion about one head."""

    head: str
    condition: str
    kind: str
    """kept, unclear, too few, template, content, position limit, missing window, long context, drift, or two joined
    by ``+``."""
    text: str
    base: str | None = None
    prompts: int = 0
    length: Estimate | None = None
    """Ratio to the base, as the next three."""
    first: Estimate | None = None
    deep: Estimate | None = None
    deep_by_first: Estimate | None = None


def diagnose(result: HeadResult, seed: int) -> list[Finding]:
    """A finding for ``regular`` by itself and for every other condition against its base."""
    findings = [_regular(result, seed)] if BASE in result.measured else []
    for name, measured in result.measured.items():
        base = base_of(name, result)
        if base is not None:
            findings.append(_compare(result.head, measured, base, seed))
    return findings


def base_of(name: str, result: HeadResult) -> Measured | None:
    """What a condition is compared with; None for a base itself."""
    buckets = [other for other in result.measured if context_tokens(other)]
    base = BASE if context_tokens(name) is None else min(buckets, key=lambda other: context_tokens(other) or 0)
    return result.measured.get(base) if base != name else None


def conditional_fall(depth: int, histograms: Array) -> Array:
    """Conditional acceptance at ``depth`` by that at depth 1, of ``[..., K + 1]``."""
    counts = at_least(histograms)
    return divide(divide(counts[..., depth], counts[..., depth - 1]), divide(counts[..., 1], counts[..., 0]))


def _regular(result: HeadResult, seed: int) -> Finding:
    measured = result.measured[BASE]
    known, name = measured.acceptance, result.head.name
    reached = [k for k in range(2, measured.depth + 1) if known.counts[k - 1] >= DEEPEST_ROUNDS]
    if not reached or known.prompts < FEW_PROMPTS:
        text = (
            f"{known.prompts} questions, and {known.counts[1]} rounds that accepted a first token: with fewer than "
            f"{FEW_PROMPTS} and {DEEPEST_ROUNDS} the deeper positions are not judged"
        )
        return Finding(name, BASE, "too few", text)
    depth = reached[-1]
    rows = measured.rows(sorted(measured.prompts))
    fall = estimate(lambda h: conditional_fall(depth, h), rows, seed)
    values = ", ".join(f"{e.value:.2f}" for e in known.conditional[:depth] if e.value is not None)
    facts = f"a token is accepted, given those before it, with {values} at depths 1 to {depth}"
    if not result.head.chain:
        text = (
            f"{facts}. On a tree this falls by itself (topk {result.head.topk}, {result.head.draft_tokens} nodes: few "
            "of them lie deep), so drift under regular is told by a chain only: --speculative-eagle-topk 1"
        )
        return Finding(name, BASE, "unclear", text, deep_by_first=fall)
    if fall.value is not None and fall.high is not None and fall.value <= COLLAPSE and fall.high < 1:
        text = (
            f"{facts}: the last keeps {_times(fall)} of the first. Drift: the head is used deeper than it can feed its "
            "own states back; fewer --speculative-num-steps lose little, a head trained with more unrolled steps or an "
            "EAGLE 3.1 head would gain"
        )
        return Finding(name, BASE, "drift", text, deep_by_first=fall)
    kind = "kept" if fall.low is not None and fall.low > COLLAPSE else "unclear"
    return Finding(name, BASE, kind, f"{facts}; the last keeps {_times(fall)} of the first", deep_by_first=fall)


def _compare(head: Head, measured: Measured, base: Measured, seed: int) -> Finding:
    length_ratio, common = paired(length, measured, base, seed)
    first_ratio, _ = paired(first, measured, base, seed)
    deep_ratio, _ = paired(deep, measured, base, seed)
    more, _ = paired(lambda h: divide(deep(h), first(h)), measured, base, seed)
    rounds = min(int(m.rows(common).sum()) for m in (measured, base)) if common else 0
    kind, why = "too few", f"only {len(common)} questions and {rounds} rounds count in both: nothing is concluded"
    if len(common) >= FEW_PROMPTS and rounds >= FEW_ROUNDS:
        kind, why = _judge(head, measured.condition, (length_ratio, first_ratio, deep_ratio, more))
    numbers = (
        f"against {base.condition}: accept length {_times(length_ratio)}, depth 1 {_times(first_ratio)}, "
        f"deeper {_times(deep_ratio)}"
    )
    return Finding(
        head.name,
        measured.condition,
        kind,
        f"{why} ({numbers})",
        base.condition,
        len(common),
        length_ratio,
        first_ratio,
        deep_ratio,
        more,
    )


def _judge(head: Head, condition: str, ratios: tuple[Estimate, Estimate, Estimate, Estimate]) -> tuple[str, str]:
    """Kind and reason from ratios to the base: accept length, depth 1, deeper positions, and the last by depth 1."""
    length_, first_, deep_, more = ratios
    shallow, drift = fell(first_), fell(deep_)
    if (shallow or drift) and (length_.high is None or length_.high >= 1):
        where = "depth 1 falls" if shallow else "deeper positions fall"
        return "unclear", f"{where}, but accept length not for certain: other texts, or too few questions; ask more"
    if shallow:
        kind, why = _shallow(head, condition)
        if drift and more.high is not None and more.high < 1:
            return f"{kind}+drift", f"{why}; deeper positions fall even more, which is drift on top"
        return kind, why
    if drift:
        return "drift", "depth 1 holds and deeper positions fall: drift, built up on the head's own states"
    if any(e.low is not None and e.low < KEPT for e in (first_, deep_)):
        return "unclear", f"no fall is certain, and one of {1 - KEPT:.0%} is not excluded: ask more questions"
    return "kept", f"no fall of {DROP:.0%} or more is certain, and one of {1 - KEPT:.0%} is excluded, at any depth"


def fell(ratio: Estimate) -> bool:
    """Whether a ratio to the base is a fall (see DROP)."""
    return ratio.value is not None and ratio.high is not None and ratio.value <= 1 - DROP and ratio.high < 1


def _shallow(head: Head, condition: str) -> tuple[str, str]:
    """What a fall at depth 1 means."""
    tokens = context_tokens(condition)
    if tokens is None:
        kind = "template" if condition in ("no_bos", "no_template", "no_bos_no_template") else "content"
        return kind, f"depth 1 falls: {CONDITIONS[condition].cause}"
    if head.positions is not None and tokens > head.positions:
        return "position limit", (
            f"depth 1 falls beyond the head's position limit (max_position_embeddings {head.positions}): it works on "
            f"positions that it was not trained on; a head trained for {tokens} tokens, or a RoPE scaling, is needed"
        )
    if not head.config_known:
        return "long context", (
            "depth 1 falls, and the head's config cannot be read from here: look whether max_position_embeddings is "
            f"below {tokens} (position limit); if not, try --speculative-draft-window-size (missing window)"
        )
    limit = f"position limit {head.positions}" if head.positions else "no position limit stated"
    if head.window is None:
        return "missing window", (
            f"depth 1 falls within the head's positions ({limit}), and each query sees all keys: more than it learned "
            "to attend to. Try --speculative-draft-window-size with the length of its training texts"
        )
    return "long context", (
        f"depth 1 falls although {limit} is not reached and a window of {head.window} keys is set: text this long was "
        "rare in its training, or the answers themselves are harder to guess"
    )


def _times(ratio: Estimate) -> str:
    return "not measured" if ratio.value is None else f"x{ratio}"
