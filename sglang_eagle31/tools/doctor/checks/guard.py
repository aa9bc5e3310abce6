"""The guard of a running server: does it act, and what does it say about the head."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_eagle31.maths.shape import NO_SPECULATION
from sglang_eagle31.server.guard.policy import Options
from sglang_eagle31.server.metrics.rules import DEAD, MIN_TRIALS
from sglang_eagle31.tools.doctor.checks.acceptance import ROUNDS, line
from sglang_eagle31.tools.doctor.facts import Line, Server
from sglang_eagle31.tools.shared.counters import guards
from sglang_eagle31.tools.shared.guard_records import Counts, Record, counts

OFTEN = 0.5
"""Fallback ratio above which most of the head's cost buys nothing."""
TUNE = "python -m sglang_eagle31 tune --url URL for a shape that pays; a head trained on your texts"


def guard(server: Server) -> Line | None:
    """Its mode, and its fallback ratio or what another shape would bring."""
    if not server.ours:
        return None
    found = guards(server.info)
    if not found or found[0]["mode"] == "off":
        text = "off: nothing ends speculation where it loses"
        return line(
            "guard", "warn", text, "--eagle31-guard on; the server's log says why if it cannot be (docs/guard.md)"
        )
    sums = counts(found)
    rounds = sums.plain + sums.drafted
    if rounds < MIN_TRIALS:
        return line("guard", "skip", f"{found[0]['mode']}, {rounds} rounds: too few to judge", ROUNDS)
    ratio = sums.plain / rounds
    text = f"{found[0]['mode']}, {ratio:.0%} of {rounds} rounds without a draft"
    if ratio > OFTEN:
        cause, fix = _cause(found, sums)
        return line("guard", "warn", f"{text}: {cause}", fix)
    return line("guard", "ok", text) if found[0]["mode"] == "on" else _observed(text, found)


def _cause(found: Sequence[Record], sums: Counts) -> tuple[str, str]:
    """Why most rounds have no draft, and what to do."""
    tried, hit = float(sums.tried[0, 0]), float(sums.hit[0, 0])
    if not tried:
        return "no request let it draft", 'requests without {"speculative_num_steps": 0}, or --eagle31-guard off'
    share = f"{hit / tried:.0%} of the first drafted tokens are accepted"
    if hit / tried < DEAD:
        return f"{share}, the head is dead", "python -m sglang_eagle31 audit HEAD --target TARGET; or no head at all"
    running = {int(size): shape for one in found for size, shape in one["running"].items()}
    drafting = [size for size, shape in running.items() if shape != str(NO_SPECULATION)]
    if drafting and max(drafting) < max(running):
        text = f"{share}, which pays with small batches only (it drafts up to the range from {max(drafting)} requests)"
        return text, "nothing if the batches are meant to be so large; --max-running-requests, or tune --concurrency"
    return f"{share}, which does not pay for a draft here", f"{TUNE}; else serve without it"


def _observed(text: str, found: Sequence[Record]) -> Line:
    """What the guard would do if it were allowed to."""
    shape, gain = max((_better(one) for one in found), key=lambda pair: pair[1])
    if not gain:
        why = "it has not seen both rounds with and without a draft, so that it can predict nothing"
        return line("guard", "skip", f"{text}: {why}", "--eagle31-guard on where it can act (docs/guard.md)")
    if gain > 1 + Options().margin:
        would = f"{shape} is predicted to give {gain:.2f}x the tokens per second of the configured shape"
        return line("guard", "warn", f"{text}: {would}", "--eagle31-guard on, or the flags of that shape")
    return line("guard", "ok", f"{text}: no shape is predicted to be faster than the configured one")


def _better(one: Record) -> tuple[str, float]:
    """The shape that is predicted fastest, and its gain over the configured one; 0 where that is not known."""
    predicted = one["predicted"]
    if one["configured"] not in predicted:
        return one["configured"], 0.0
    shape = max(predicted, key=lambda name: float(predicted[name]))
    return shape, predicted[shape] / predicted[one["configured"]]
