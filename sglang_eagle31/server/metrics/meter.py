"""Everything that one scheduler counts: fed with committed rounds, read as JSON and by Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang_eagle31.server.metrics.alarm import Alarm
from sglang_eagle31.server.metrics.counters import CONTEXTS, Counters, context_of
from sglang_eagle31.server.metrics.evidence import BLOCK, Block
from sglang_eagle31.server.metrics.export import Exporter
from sglang_eagle31.server.metrics.fingerprint import LIMIT, Templates

INTERVAL = 1.0
"""Seconds between two updates of Prometheus while requests run."""


@dataclass(slots=True)
class Tally:
    """What is kept of a running request."""

    template: int
    context: int = 0
    rounds: int = 0
    used: int = 0
    block: Block = field(default_factory=Block)


@dataclass(slots=True)
class Row:
    """One request in one round.

    Attributes:
        tally: its own.
        length: committed tokens, prompt and answer, when the round began.
        accepted: drafts accepted, as verified: those past the end of the answer included.
        used: of them, those in the answer.
        offered: drafted positions that could become part of the answer.
        committed: tokens added to the answer; negative where a stop string takes back earlier ones.
        ended: None while it runs, else whether it was aborted.
    """

    tally: Tally
    length: int
    accepted: int
    used: int
    offered: int
    committed: int
    ended: bool | None = None


class Meter:
    """Counters, requests and alarm of one scheduler."""

    def __init__(self, templates: Templates, steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        """``steps`` is the configured depth; drafts of other depths are counted as they are."""
        self.templates, self.counters, self.alarm = templates, Counters(LIMIT, steps), Alarm(templates)
        self.exporter: Exporter | None = None
        self.lengths: list[float] = []
        """Accept lengths of finished requests that Prometheus does not have yet."""
        self.clock, self.updated = clock, clock()

    def begin(self, prompt: Sequence[int]) -> Tally:
        """The tally of a request that comes to its first round."""
        return Tally(self.templates.index(prompt))

    def round(self, rows: Sequence[Row], steps: int, nodes: int) -> None:
        """One verify round of a batch.

        Args:
            rows: its requests.
            steps: depth that was drafted to; 0 without a draft.
            nodes: drafted tokens verified for each request.
        """
        if not rows:
            return
        cells, chain, running = [], nodes == steps, False
        for row in rows:
            tally, context = row.tally, context_of(row.length)
            cells.append(context * LIMIT + tally.template)
            if context != tally.context or tally.block.rounds >= BLOCK:
                self._close(tally)
                tally.context = context
            tally.rounds += 1
            tally.used += row.used
            if row.offered:
                tally.block.add(row.used, row.offered, chain)
            if row.ended is None:
                running = True
            else:
                self._end(tally, row.ended)
        numbers = [(row.accepted, row.used, row.offered, row.committed) for row in rows]
        self.counters.add(cells, numbers, steps, nodes)
        self.alarm.check()
        if self.exporter is not None and (not running or self.clock() - self.updated >= INTERVAL):
            self.export()

    def export(self) -> None:
        """Bring Prometheus up to date."""
        if self.exporter is not None:
            self.exporter.update(self.counters, self.templates, self.alarm, self.lengths)
        self.lengths.clear()
        self.updated = self.clock()

    def to_json(self) -> dict[str, Any]:
        """What ``/server_info`` shows."""
        self.export()
        counters, digests = self.counters, self.templates.digests
        contexts = {name: counters.total(context=index) for index, name in enumerate(CONTEXTS)}
        templates = {index: counters.total(template=index) for index in range(len(digests))}
        return {
            "total": counters.total().to_json(),
            "by_context": {name: total.to_json() for name, total in contexts.items() if total.rounds},
            "by_template": {
                digests[index]: {"pattern": self.templates.describe(index), **total.to_json()}
                for index, total in templates.items()
                if total.rounds
            },
            "requests": counters.requests.to_json(),
            "alarm": self.alarm.to_json(),
        }

    def _close(self, tally: Tally) -> None:
        if tally.block.rounds:
            self.alarm.add(tally.context, tally.template, tally.block)
            tally.block = Block(begins=False)

    def _end(self, tally: Tally, aborted: bool) -> None:
        self._close(tally)
        self.counters.requests.add(tally.rounds, tally.used, aborted)
        if not aborted and self.exporter is not None:
            self.lengths.append(1 + tally.used / tally.rounds)
