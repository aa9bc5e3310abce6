"""The alarm: blocks of rounds in, one log line when a cause is raised and one when it is over."""

from __future__ import annotations

import logging
from typing import Any

from sglang_eagle31.server.metrics.evidence import Block, Cell
from sglang_eagle31.server.metrics.fingerprint import Templates
from sglang_eagle31.server.metrics.rules import Finding, describe, findings

logger = logging.getLogger("sglang_eagle31")
EVERY = 8
"""Blocks between two evaluations."""


class Alarm:
    """Raised for one cause at a time. While it stands, the level before it is not touched by what comes in."""

    def __init__(self, templates: Templates) -> None:
        self.templates = templates
        self.cells: dict[tuple[int, int], Cell] = {}
        self.raised: Finding | None = None
        self.times = 0
        self.pending = 0

    def add(self, context: int, template: int, block: Block) -> None:
        """A block that is complete."""
        if block.rounds:
            self.cells.setdefault((context, template), Cell()).add(block, self.raised is None)
            self.pending += 1

    def check(self) -> None:
        """Evaluate if `EVERY` blocks have come since the last time; logs what changes."""
        if self.pending < EVERY:
            return
        self.pending = 0
        found = findings({key: (cell.now, cell.before) for key, cell in self.cells.items()})
        now = next((finding for finding in found if finding.sure), None)
        was = self.raised
        if now is not None and (was is None or (now.cause, now.where) != (was.cause, was.where)):
            if was is None or now.cause != was.cause:
                self.times += 1
                logger.warning("EAGLE31: acceptance has collapsed: %s", self.text(now))
            self.raised = now
        elif was is not None:
            same = [finding for finding in found if (finding.cause, finding.where) == (was.cause, was.where)]
            if same and same[0].over:
                logger.info(
                    "EAGLE31: acceptance has recovered (%s): %.2f against %.2f", was.cause, same[0].value, was.value
                )
                self.raised = None
            elif same:
                self.raised = same[0]

    def text(self, finding: Finding) -> str:
        """The finding for people."""
        return describe(finding, self.templates.digests, self.templates.describe)

    def to_json(self) -> dict[str, Any]:
        """``cause`` is None while nothing is raised."""
        if self.raised is None:
            return {"cause": None, "times": self.times}
        raised = self.raised
        return {
            "cause": raised.cause,
            "text": self.text(raised),
            "value": raised.value,
            "reference": raised.reference,
            "times": self.times,
        }
