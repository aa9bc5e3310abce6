"""One head two ways: through our loader onto SGLang's layers, and by the independent reader and reference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from harness import Run, build
from truth import producers, readers
from truth.reference import Session
from truth.rounding import network

from sglang_eagle31.head.check import resolve
from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.reading import Reading, Target
from sglang_eagle31.head.stage import stage

PROMPT, STEPS = 12, 5
TOLERANCE = network(layers=2, terms=3 * producers.Shape().target_hidden)
"""Of the largest value, in float32, of heads with up to two layers; their longest sums are those of fc."""


def target_of(shape: producers.Shape) -> Target:
    """What the server would say of the target."""
    return Target(
        shape.target_architecture,
        shape.target_layers,
        shape.target_hidden,
        shape.vocab,
        shape.max_positions,
        "float32",
    )


def answers(variant: str, shape: producers.Shape) -> dict[str, str]:
    """The overrides that a user has to give for this head, by their names on the command line."""
    given = dict(producers.VARIANTS[variant].answers(shape))
    if "logits" in given:
        given["logits_norm"] = "false" if given.pop("logits") == "raw" else "true"
    if producers.VARIANTS[variant].producer == "modelopt_hf" or variant == "nvidia_fc_bias":
        given["double_norm"] = "false"
    return given


def resolved(folder: Path, shape: producers.Shape, overrides: Mapping[str, str]) -> tuple[Reading, list[str]]:
    """Our reading of a head, and the reasons to refuse it."""
    return resolve(Checkpoint.read(folder), target_of(shape), overrides)


def difference(
    folder: Path,
    reading: Reading,
    variant: str,
    shape: producers.Shape,
    cache: Path,
    facts: Mapping[str, Any] | None = None,
) -> float:
    """Largest difference of logits and fed-back states over a prefill and five steps, as a share of the largest."""
    generator = torch.Generator().manual_seed(7)
    embed = torch.randn(shape.vocab, shape.hidden, generator=generator)
    head = torch.randn(shape.vocab, shape.hidden, generator=generator)
    target = readers.TargetFacts(
        shape.target_layers, shape.target_hidden, shape.vocab, shape.target_architecture, embed, head
    )
    theirs = readers.read(
        folder, producers.VARIANTS[variant].producer, target=target, facts=facts_of(variant, shape, facts)
    )
    staged = stage(Checkpoint.read(folder), reading, "float32", cache)
    return compare(build(staged, embed, head), theirs, shape, generator)


def compare(module: Any, theirs: Any, shape: producers.Shape, generator: torch.Generator) -> float:
    """Drive both over the same inputs; the token of each step is one of the draft vocabulary."""
    ours, reference = Run(module), Session(theirs)
    width = module.spec.captured * shape.target_hidden
    captured = torch.randn(PROMPT, width, generator=generator)
    ids = torch.randint(shape.vocab, (PROMPT,), generator=generator)
    pairs = [(ours.prefill(captured, ids), reference.prefill(captured, ids))]
    hot = module.get_hot_token_id()
    for step in range(STEPS):
        (logits, _), (_, state) = pairs[-1]
        state = state.reshape(-1, state.shape[-1])[-1]
        draft = int(torch.randint(logits.shape[-1], (1,), generator=generator))
        token = draft if hot is None else int(hot[draft])
        assert hot is None or token == int(theirs.hot[draft])
        pairs.append((ours.step(token, state), reference.step(token, state, PROMPT + step)))
    worst = 0.0
    for mine, other in pairs:
        for a, b in zip(mine, other, strict=True):
            worst = max(worst, float((a.reshape(b.shape) - b).abs().max() / b.abs().max()))
    return worst


def facts_of(variant: str, shape: producers.Shape, more: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a user states, in the reader's words."""
    facts: dict[str, Any] = {**producers.VARIANTS[variant].overrides, **(more or {})}
    if "aux_layers" in answers(variant, shape):
        facts["boundaries"] = shape.boundaries
    return facts
