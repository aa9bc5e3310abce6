"""One small file a producer: recognise its checkpoints, and translate them into a DrafterSpec.

A dialect module has ``NAME``, ``recognise(head) -> str | None`` (the evidence) and ``translate(head, target)``, which
gives a Reading. The first that recognises a head reads it; a head that none recognises is refused.
"""

from __future__ import annotations

from typing import Protocol

from sglang_eagle31.drafter.checkpoint import Checkpoint
from sglang_eagle31.drafter.dialects import native, safeailab, specforge, torchspec
from sglang_eagle31.drafter.reading import Reading, Target


class Dialect(Protocol):
    """What a dialect module offers."""

    NAME: str

    def recognise(self, head: Checkpoint) -> str | None:
        """The evidence that its producer wrote ``head``, or None."""

    def translate(self, head: Checkpoint, target: Target) -> Reading:
        """What ``head`` computes, as its producer means it."""


DIALECTS: tuple[Dialect, ...] = (native, torchspec, specforge, safeailab)


def read(head: Checkpoint, target: Target) -> Reading:
    """The reading of the first dialect that recognises ``head``; one with a refusal when none does."""
    for dialect in DIALECTS:
        if dialect.recognise(head) is not None:
            return dialect.translate(head, target)
    architectures = head.config.get("architectures")
    prefixes = sorted({name.split(".")[0] for name in head.tensors})
    known = ", ".join(dialect.NAME for dialect in DIALECTS)
    unknown = Reading(producer="unknown")
    unknown.refusals.append(
        f"{head.folder}: no known producer writes such a head (architectures {architectures}, tensors "
        f"{', '.join(prefixes[:8])}); known are {known}; fix: export it in one of these layouts"
    )
    return unknown
