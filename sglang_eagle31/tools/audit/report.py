"""The audit of a head: what it computes and where each fact comes from, a verdict, and what other engines would do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sglang_eagle31.head.check import brief, resolve
from sglang_eagle31.head.checkpoint import Checkpoint, local_folder
from sglang_eagle31.head.kinship import embedding_cosine
from sglang_eagle31.head.reading import Reading, Target
from sglang_eagle31.head.target import guess_target, read_target
from sglang_eagle31.tools.audit.engines import Outcome, predict

Verdict = Literal["exact", "needs-override", "refused"]
EXIT: Mapping[Verdict, int] = {"exact": 0, "needs-override": 2, "refused": 3}
COPY = 0.9999
"""Mean cosine of sampled rows from which a shipped embedding is called a copy of the target's."""


@dataclass(frozen=True)
class Report:
    """One head's audit; ``spec`` is field to value and source, as far as it could be read."""

    head: str
    target: str | None
    verdict: Verdict
    producer: str
    evidence: str
    variant: str
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    spec: Mapping[str, tuple[Any, str]]
    elsewhere: Mapping[str, Outcome] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The object that ``audit --json`` prints."""
        return {
            "head": self.head,
            "target": self.target,
            "verdict": self.verdict,
            "producer": self.producer,
            "evidence": self.evidence,
            "variant": self.variant,
            "reasons": list(self.reasons),
            "notes": list(self.notes),
            "spec": {name: {"value": value, "source": source} for name, (value, source) in self.spec.items()},
            "elsewhere": {engine: outcome.to_json() for engine, outcome in self.elsewhere.items()},
        }


def audit(path: str, target_path: str | None = None, overrides: Mapping[str, str] | None = None) -> Report:
    """Audit the head at ``path``; headers, config files and a few rows are read, and no weights are loaded.

    Raises:
        ValueError: head or target cannot be found or read.
    """
    head = Checkpoint.read(local_folder(path))
    target = read_target(target_path) if target_path else guess_target(head)
    reading, reasons = resolve(head, target, overrides or {})
    if target_path is None:
        reading.notes.append("no target was given: its width, vocabulary and depth are as the head's files say")
    elif not reasons:
        reading.notes += _context(reading, target)
    return Report(
        head=str(head.folder),
        target=str(target.folder) if target.folder else None,
        verdict=verdict(reading, reasons),
        producer=reading.producer,
        evidence=reading.evidence,
        variant=reading.spec().variant if _complete(reading) else "",
        reasons=tuple(reasons),
        notes=tuple(reading.notes),
        spec={name: (value, reading.sources[name]) for name, value in reading.values.items()},
        elsewhere=_elsewhere(head, target, reading, reasons),
    )


def verdict(reading: Reading, reasons: list[str]) -> Verdict:
    """``needs-override`` when every reason is a question that an override answers."""
    if not reasons:
        return "exact"
    return "needs-override" if set(reasons) <= set(brief(list(reading.questions.values()))) else "refused"


def _complete(reading: Reading) -> bool:
    return "max_position_embeddings" in reading.values


def _context(reading: Reading, target: Target) -> list[str]:
    length = int(reading.values["max_position_embeddings"])
    if length >= target.context_length:
        return []
    return [
        f"the head was made for {length} positions, the target has {target.context_length}: serve it with "
        f"--context-length {length}, or with --eagle31-override max_position_embeddings={target.context_length} and "
        "lower acceptance past them"
    ]


def _elsewhere(head: Checkpoint, target: Target, reading: Reading, reasons: list[str]) -> dict[str, Outcome]:
    spec = reading.spec() if _complete(reading) and not reasons else None
    original = {new: old for old, new in reading.names.items()}
    d2t = original.get("d2t")
    small = d2t is not None and head.tensors[d2t].dtype in ("I64", "I32") and len(head.tensors[d2t].shape) == 1
    embedding = original.get("embed_tokens.weight")
    cosine = embedding_cosine(head, embedding, target.folder) if embedding and target.folder and not reasons else None
    return predict(
        head,
        target,
        spec,
        d2t=head.numbers(d2t).tolist() if d2t and small else None,
        embedding_is_copy=None if cosine is None else cosine >= COPY,
    )
