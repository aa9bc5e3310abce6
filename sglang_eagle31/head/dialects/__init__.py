"""One small file a producer: recognise its checkpoints, and translate them into a DrafterSpec.

The first dialect that recognises a head reads it: the shared layout by the dialect's rules, then what is the producer's
own. Heads that are no EAGLE-3 chain are refused by name, and so is a head that nobody recognises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.dialects import (
    angelslim,
    converted,
    modelopt,
    native,
    nemo,
    nvidia,
    safeailab,
    specdrift,
    specforge,
    speculators,
    strangers,
    torchspec,
    torchspec_mla,
    vllm,
)
from sglang_eagle31.head.dialects.converted import CONVERTED
from sglang_eagle31.head.dialects.layout import Rules, finish, read_layout
from sglang_eagle31.head.keys import Keys
from sglang_eagle31.head.reading import Reading, Target


class Dialect(Protocol):
    """What a dialect module offers."""

    NAME: str

    def recognise(self, head: Checkpoint) -> str | None:
        """The evidence that its producer wrote ``head``, or None."""

    def rules(self, head: Checkpoint) -> Rules:
        """How its producer names tensors and keys."""

    def settle(self, head: Checkpoint, target: Target, reading: Reading, keys: Keys) -> None:
        """Put what is the producer's own, and leave a question for what its files cannot decide."""


DIALECTS: Mapping[str, Dialect] = {
    "native": native,
    "torchspec_mla": torchspec_mla,
    "torchspec": torchspec,
    "speculators": speculators,
    "nemo": nemo,
    "angelslim": angelslim,
    "vllm": vllm,
    "specdrift": specdrift,
    "nvidia": nvidia,
    "modelopt": modelopt,
    "specforge": specforge,
    "safeailab": safeailab,
}
"""By the word that ``--eagle31-override producer=`` takes."""
KIN = {"torchspec_mla": "torchspec", "nvidia": "modelopt"}
"""Dialects that share their marks with another."""


def read(head: Checkpoint, target: Target, overrides: Mapping[str, str] | None = None) -> Reading:
    """The reading of the dialect that recognises ``head``; one with a refusal when none does."""
    given = overrides or {}
    named = head.config.get("architectures")
    if named is not None and not (isinstance(named, list) and all(isinstance(name, str) for name in named)):
        refusal = f"config.json has architectures={named!r}, expected a list of class names; fix: correct it"
        return Reading("unknown", refusals=[refusal])
    if native.STAGED in head.config:
        return native.staged(head)
    stranger = strangers.name(head)
    if stranger is not None:
        return Reading(stranger.name, stranger.evidence, refusals=[stranger.refusal])
    asked = given.get("producer")
    if asked is not None and asked not in DIALECTS:
        known = ", ".join(DIALECTS)
        refusal = f"--eagle31-override producer={asked}: unknown producer; known: {known}; fix: one of these"
        return Reading("unknown", refusals=[refusal])
    contradiction = None if asked else _contradiction(head)
    if contradiction is not None:
        return contradiction
    ours: Dialect = converted
    for key, dialect in (("converted", ours), *DIALECTS.items()):
        evidence = f"--eagle31-override producer={asked}" if asked == key else dialect.recognise(head)
        if evidence is None or asked not in (None, key):
            continue
        rules = dialect.rules(head)
        reading, keys = read_layout(head, target, rules)
        reading.evidence = evidence
        if "num_kv_heads" in reading.values:  # else the file has no layers, and there is nothing to settle
            dialect.settle(head, target, reading, keys)
        return finish(reading, keys, rules, given)
    return _unknown(head)


def _contradiction(head: Checkpoint) -> Reading | None:
    """Keys that only one producer writes, of two of them: their rules differ, so neither is believed."""
    found: dict[str, str] = {}
    for key, dialect in DIALECTS.items():
        evidence = dialect.recognise(head)
        if evidence is not None and evidence.startswith("config key") and CONVERTED not in head.config:
            found.setdefault(KIN.get(key, key), evidence)
    if len(found) < 2:
        return None
    marks = " and ".join(f"{evidence} of {key}" for key, evidence in found.items())
    names = " or ".join(f"producer={key}" for key in found)
    refusal = f"config.json has marks of several producers: {marks}; fix: --eagle31-override {names}"
    return Reading("unknown", questions={"producer": refusal})


def _unknown(head: Checkpoint) -> Reading:
    prefixes = sorted({name.split(".")[0] for name in head.tensors})
    refusal = (
        f"{head.folder}: no known producer writes such a head (architectures {head.config.get('architectures')}, "
        f"tensors {', '.join(prefixes[:8])}); known: {', '.join(DIALECTS)}; fix: --eagle31-override producer=NAME if "
        "one of them wrote it, or export it in one of their layouts"
    )
    return Reading("unknown", refusals=[refusal])
