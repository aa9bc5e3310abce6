"""One mutated head: what we made of it, what the independent reader made of it, and whether that is as it has to be."""

from __future__ import annotations

import itertools
import random
import re
import shutil
import struct
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import mutations_config  # noqa: F401 (they fill KINDS)
import mutations_facts  # noqa: F401
import mutations_files  # noqa: F401
import mutations_folder
import mutations_tensors  # noqa: F401
import torch
from exact import TOLERANCE, answers, target_of
from harness import Run, build
from mutations import KINDS, Head
from truth import producers, readers
from truth.reference import Session, Switches

from sglang_eagle31.head.check import resolve
from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.reading import Reading
from sglang_eagle31.head.spec import DrafterSpec
from sglang_eagle31.head.stage import stage
from sglang_eagle31.server.reasons import context_reasons

__all__ = ["KINDS", "VARIANTS", "Outcome", "run"]

VARIANTS = [name for name, variant in producers.VARIANTS.items() if not variant.refused]
SHAPES = (producers.Shape(), producers.Shape(boundaries=(1, 3, 6)))
PROMPT, STEPS = 12, 3
SECONDS, LONGEST = 2.0, 4000
"""Of one reading; characters of one reason."""
NAMED = re.compile(
    r"config\.json|config [a-z_.]+|architectures|\.safetensors|index\.json|tensor|--[a-z0-9-]+|eagle_config"
    r"|\b(d2t|t2d|lm_head|fc|embed_tokens)\b"
)
INVISIBLE = {"producer", "later_norm", "rope_scaling", "rope_theta"}
"""Not compared as fields: the first says who, the second means nothing in one layer, the others by what they rotate."""


@dataclass(frozen=True)
class Outcome:
    """``result``: exact, refused, wrong, or nothing when the head had nothing to mutate."""

    case: str
    mutation: str
    result: str
    detail: str = ""
    seconds: float = 0.0


def run(case: str, place: Path) -> Outcome:
    """One case, ``VARIANT:KIND:SEED``, in a folder of its own under ``place``."""
    variant, kind, seed = case.split(":")
    rng = random.Random(f"{kind}:{seed}")
    head = Head.of(variant, rng.choice(SHAPES))
    kinds = rng.sample(sorted(KINDS), 2) if kind == "pair" else [kind]
    try:
        said = [KINDS[name](head, rng) for name in kinds]
    except (LookupError, RuntimeError, TypeError, ValueError):
        if kind != "pair":  # where the second of two may not be able to change what the first has made
            raise
        said = [""]
    if not all(said):
        return Outcome(case, "", "nothing")
    folder = place / "case"
    try:
        try:
            head.write(folder / "head")
        except (OSError, LookupError, TypeError, ValueError, struct.error):
            if kind != "pair":  # where the second of two may find a file that it cannot change
                raise
            return Outcome(case, "", "nothing")
        result, detail, seconds = judge(head, folder)
        if (folder / mutations_folder.MARK).exists():
            result, detail = "wrong", "a pickle was run"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Outcome(
        case, "; ".join(f"{k}: {s}" for k, s in zip(kinds, said, strict=True))[:500], result, detail, seconds
    )


def judge(head: Head, folder: Path) -> tuple[str, str, float]:
    """Result, detail, and the processor's seconds that our reading took."""
    given = {} if head.silent else {**answers(head.variant, head.shape), **head.overrides}
    start = time.process_time()
    try:
        checkpoint = Checkpoint.read(folder / "head")
        reading, reasons = resolve(checkpoint, target_of(head.shape), given)
    except ValueError as error:
        reading, reasons = Reading(""), [str(error)]
    except Exception as error:
        return "wrong", f"escaped: {type(error).__name__}: {error}"[:LONGEST], time.process_time() - start
    seconds = time.process_time() - start
    if seconds > SECONDS:
        return "wrong", f"reading took {seconds:.1f} s", seconds
    if not reasons and reading.spec().max_position_embeddings < PROMPT + STEPS:
        reasons = context_reasons("head", reading.spec(), target_of(head.shape))
    if reasons:
        poor = [reason for reason in reasons if not is_reason(reason, folder)]
        if poor:
            return "wrong", f"not a reason: {poor[0][:LONGEST]!r}", seconds
        return "refused", " | ".join(reasons)[:LONGEST], seconds
    try:
        return (*accepted(head, folder, checkpoint, reading), seconds)
    except Exception as error:
        return "wrong", f"accepted, then {type(error).__name__}: {error}"[:LONGEST], seconds


def is_reason(reason: str, folder: Path) -> bool:
    """Whether a user learns from it what is wrong where, and what to do."""
    return "fix:" in reason and len(reason) < LONGEST and bool(NAMED.search(reason) or str(folder) in reason)


def accepted(head: Head, folder: Path, checkpoint: Checkpoint, reading: Reading) -> tuple[str, str]:
    """What we accepted, against the reader: the facts, the draft tokens, and both functions near and far."""
    shape, generator = head.shape, torch.Generator().manual_seed(7)
    embed, lm_head = (torch.randn(shape.vocab, shape.hidden, generator=generator) for _ in range(2))
    target = readers.TargetFacts(
        shape.target_layers, shape.target_hidden, shape.vocab, shape.target_architecture, embed, lm_head
    )
    facts: dict[str, Any] = dict(producers.VARIANTS[head.variant].overrides)
    unstated = head.silent and producers.VARIANTS[head.variant].asks_layers == "never"  # then the default is meant
    if "aux_layers" in answers(head.variant, shape) and not unstated:
        facts["boundaries"] = shape.boundaries
    for writer in filter(None, (head.variant, head.other)):
        try:
            producer = producers.VARIANTS[writer].producer
            theirs = readers.read(folder / "head", producer, target=target, facts={**facts, **head.facts})
            break
        except Exception as error:
            refusal = f"the reader refuses: {type(error).__name__}: {error}"[:LONGEST]
    else:
        return "wrong", refusal
    spec = reading.spec()
    different = differences(spec, theirs.switches)
    if different:
        return "wrong", f"(ours, reader's): {different}"[:LONGEST]
    try:
        module = build(stage(checkpoint, reading, "float32", folder / "cache"), embed, lm_head)
    except ValueError as error:  # only values are looked at while loading: headers do not show them
        told = "not numbers" in str(error) and is_reason(str(error), folder)
        return ("refused" if told else "wrong"), str(error)[:LONGEST]
    hot = module.get_hot_token_id()
    if not torch.equal(torch.arange(spec.draft_vocab_size) if hot is None else hot.cpu(), theirs.hot):
        return "wrong", "the draft tokens are others"
    far = max(0, spec.max_position_embeddings - PROMPT - STEPS)
    for start in (0, min(far, 5000)):
        worst = difference(module, theirs, shape, generator, start)
        if not worst < TOLERANCE:
            return "wrong", f"the functions differ by {worst:.2g} from position {start}"
    return "exact", f"read as {reading.producer}"


def differences(spec: DrafterSpec, theirs: Switches) -> dict[str, Any]:
    """Fields that the two have in common and that are not the same."""
    ours = {field.name: getattr(spec, field.name) for field in fields(theirs)}
    wrong = {
        name: (value, getattr(theirs, name))
        for name, value in ours.items()
        if name not in INVISIBLE and value != getattr(theirs, name)
    }
    if spec.num_layers > 1 and spec.later_norm != theirs.later_norm:
        wrong["later_norm"] = (spec.later_norm, theirs.later_norm)
    return wrong


def difference(module: Any, theirs: Any, shape: producers.Shape, generator: torch.Generator, start: int) -> float:
    """Largest difference of logits and fed-back states, as a share of the largest; a NaN has to meet a NaN."""
    ours, reference = Run(module), Session(theirs)
    ours.length = start
    captured = torch.randn(PROMPT, module.spec.captured * shape.target_hidden, generator=generator)
    ids = torch.randint(shape.vocab, (PROMPT,), generator=generator)
    pairs = [(ours.prefill(captured, ids), reference.prefill(captured, ids, torch.arange(start, start + PROMPT)))]
    for step in range(STEPS):
        _, (_, states) = pairs[-1]
        state = states.reshape(-1, states.shape[-1])[-1]
        token = int(theirs.hot[int(torch.randint(len(theirs.hot), (1,), generator=generator))])
        pairs.append((ours.step(token, state), reference.step(token, state, start + PROMPT + step)))
    worst = 0.0
    for mine, other in itertools.chain.from_iterable(zip(a, b, strict=True) for a, b in pairs):
        mine = mine.reshape(other.shape)
        if not torch.equal(mine.isnan(), other.isnan()):
            return float("inf")
        top = other.nan_to_num().abs().max().clamp_min(1e-6)
        worst = max(worst, float((mine.nan_to_num() - other.nan_to_num()).abs().max() / top))
    return worst
