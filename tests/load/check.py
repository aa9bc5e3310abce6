"""What an answer has to share with its twin from a server without speculation, and what a server has to give back."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from load.client import Answer, Said, reasons, said_of
from load.traffic import LONG, Fate, Request

LOGPROB = 1e-4
"""Log probabilities are computed in other batches, so their last digits may differ; tokens may not."""
GROWTH = 48.0
"""MiB by which the memory of a process may grow after the first round of requests, its warm-up."""


def patient(request: Request) -> Request:
    """The same request of a client that waits for the end."""
    return replace(request, fate=Fate.FINISH, after=0.0)


def differences(load: list[Request], answers: list[Answer], twins: list[Answer]) -> list[str]:
    """Every difference of a list of answers, with the request that it was an answer to."""
    found = []
    for request, answer, twin in zip(load, answers, twins, strict=True):
        if (what := difference(request, answer, twin)) is not None:
            found.append(f"request {request.number}, {request.kind}, {request.fate.value}: {what}")
    return found


def busy(load: list[Request], count: int) -> list[int]:
    """Places in ``load`` of so many requests that run long enough to be met at work."""
    mark = f'"max_new_tokens": {LONG}'.encode()
    return [at for at, request in enumerate(load) if mark in request.body and request.kind not in ("sampled", "regex")][
        :count
    ]


def difference(request: Request, answer: Answer, twin: Answer) -> str | None:
    """What ``answer`` has that its ``twin`` has not, None if nothing. The twin's client always waits for the end."""
    if "lost" in (answer.ended, twin.ended):
        return f"lost: {answer.why or twin.why}"
    if (answer.ended == "refused") != (twin.ended == "refused"):
        return f"{answer.ended} ({answer.status} {answer.why}), the twin {twin.ended} ({twin.status} {twin.why})"
    if answer.ended == "refused":
        return None if answer.status == twin.status else f"refused with {answer.status}, the twin with {twin.status}"
    if twin.ended != "finished":
        return f"the twin was {twin.ended}: {twin.why}"
    if not request.compared:
        return None if answer.ended != "finished" or all(_whole(said) for said in said_of(answer)) else "no tokens"
    if answer.ended == "finished":
        return _unequal(said_of(answer), said_of(twin), request)
    return _beyond(said_of(answer), said_of(twin))


def _whole(said: Said) -> bool:
    return bool(said.ids) and said.reason is not None and len(said.ids) == said.counts["completion_tokens"]


def _unequal(found: list[Said], wanted: list[Said], request: Request) -> str | None:
    """The first field of the first choice that is not the same."""
    if len(found) != len(wanted) or not found:
        return f"{len(found)} choices, not {len(wanted)}"
    for index, (mine, other) in enumerate(zip(found, wanted, strict=True)):
        for name in ("ids", "text", "reason", "counts"):
            if getattr(mine, name) != getattr(other, name):
                return f"choice {index}: {name} {getattr(mine, name)!r}, not {getattr(other, name)!r}"
        streamed = request.stream and request.path != "/generate"  # an event for each token, or for several
        if not streamed and not alike(mine.logprobs, other.logprobs):
            return f"choice {index}: log probabilities {mine.logprobs!r:.300}, not {other.logprobs!r:.300}"
    return None


def _beyond(found: list[Said], wanted: list[Said]) -> str | None:
    """Of an answer that was broken off: what came must be the beginning of the whole."""
    for mine, other in zip(found, wanted, strict=False):
        if mine.ids != other.ids[: len(mine.ids)]:
            return f"broken off after {mine.ids}, of {other.ids}"
        whole = len(mine.ids) == len(other.ids) > 0  # an abort in its last step: the stop string is not cut off
        if not (mine.text.startswith(other.text) if whole else other.text.startswith(mine.text.rstrip("\ufffd"))):
            return f"broken off after {mine.text!r}, of {other.text!r}"
    return None


def alike(mine: Any, other: Any) -> bool:
    """Whether two nested lists of log probabilities are the same but for rounding."""
    if isinstance(mine, float) and isinstance(other, float):
        return math.isclose(mine, other, abs_tol=LOGPROB) or (mine < -1e4 and other < -1e4)
    if isinstance(mine, dict) and isinstance(other, dict):
        return mine.keys() == other.keys() and all(alike(mine[key], other[key]) for key in mine)
    if isinstance(mine, list | tuple) and isinstance(other, list | tuple):
        return len(mine) == len(other) and all(alike(a, b) for a, b in zip(mine, other, strict=True))
    return bool(mine == other)


@dataclass(frozen=True)
class Memory:
    """An idle server: KV slots that requests hold, requests that it has, and MiB of memory of each of its processes."""

    slots: int
    requests: int
    mib: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """For the report."""
        return asdict(self)


def leaks(history: list[Memory], growth: float = GROWTH) -> list[str]:
    """What was not given back; ``history`` is before the first round of requests, after it, and after each other."""
    start, *after = history
    found = [
        f"round {n}: {m.slots} slots held, {start.slots} before" for n, m in enumerate(after) if m.slots != start.slots
    ]
    found += [
        f"round {number}: {memory.requests} requests left" for number, memory in enumerate(after) if memory.requests
    ]
    for name, first in after[0].mib.items():
        grown = after[-1].mib[name] - first
        if grown > growth:
            found.append(f"{name}: {grown:.0f} MiB more after {len(after)} rounds than after the first")
    return found


def outcomes(answers: list[Answer]) -> dict[str, int]:
    """How often each end was seen, refusals by status."""
    counts: dict[str, int] = {}
    for answer in answers:
        name = f"refused {answer.status}" if answer.ended == "refused" else answer.ended
        counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))


def words(answers: list[Answer]) -> dict[str, int]:
    """How often the finished answers ended for which reason."""
    counts: dict[str, int] = {}
    for answer in answers:
        for reason in reasons(answer):
            counts[reason] = counts.get(reason, 0) + 1
    return dict(sorted(counts.items()))
