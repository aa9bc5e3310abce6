"""The strict loader: every tensor is consumed or the head is refused."""

from __future__ import annotations

from collections.abc import Mapping

from sglang_eagle31.drafter.checkpoint import Checkpoint
from sglang_eagle31.drafter.dialects import read
from sglang_eagle31.drafter.reading import Reading, Target
from sglang_eagle31.drafter.spec import DrafterSpec

STACKED = (
    (".q_proj", ".qkv_proj", "q"),
    (".k_proj", ".qkv_proj", "k"),
    (".v_proj", ".qkv_proj", "v"),
    (".gate_proj", ".gate_up_proj", 0),
    (".up_proj", ".gate_up_proj", 1),
)
FLOATS = ("BF16", "F16", "F32")


def resolve(head: Checkpoint, target: Target, overrides: Mapping[str, str]) -> tuple[Reading, list[str]]:
    """Read a head and check it against its target and against its own tensors.

    Returns:
        the reading, and every reason to refuse; the reading has a spec only when there is none.
    """
    reading = read(head, target)
    if reading.values:
        reading.override(overrides)
    reasons = reading.reasons()
    if reasons:
        return reading, reasons
    spec = reading.spec()
    reasons = check_target(spec, target) + check_boundaries(spec, target)
    return reading, reasons + check_tensors(spec, head, reading.names)


def check_tensors(spec: DrafterSpec, head: Checkpoint, names: Mapping[str, str]) -> list[str]:
    """Reasons for which the tensors are not exactly those of the spec: missing, unknown, wrong shape or dtype."""
    expected = spec.expected_tensors()
    have = {new: head.tensors[old] for old, new in names.items() if old in head.tensors}
    reasons = [f"tensor {name} {list(expected[name])} is missing" for name in sorted(set(expected) - set(have))]
    reasons += [
        f"tensor {name} {list(have[name].shape)} is not part of {spec.variant} as {spec.producer} writes it"
        for name in sorted(set(have) - set(expected))
    ]
    for name in sorted(set(have) & set(expected)):
        tensor = have[name]
        if tensor.shape != expected[name]:
            reasons.append(f"tensor {name} has shape {list(tensor.shape)}, expected {list(expected[name])}")
        if tensor.dtype not in (("I64", "I32") if name == "d2t" else FLOATS):
            reasons.append(f"tensor {name} is {tensor.dtype}: quantised heads are not supported; fix: export in bf16")
    return reasons


def check_target(spec: DrafterSpec, target: Target) -> list[str]:
    """Reasons for which a head that states its own dimensions (a staged one) was made for another target."""
    narrow = [
        f"the head has hidden size {spec.hidden_size} and ships no {tensor}, so it cannot share the target's of width "
        f"{target.hidden_size}; fix: export the head with {tensor}"
        for tensor, own in (("embed_tokens.weight", spec.own_embedding), ("lm_head.weight", spec.own_head))
        if not own and spec.hidden_size != target.hidden_size
    ]
    return narrow + [
        f"the head was made for a target with {what} {made}, this one has {has}; fix: use the head of this target"
        for what, made, has in (
            ("hidden size", spec.target_hidden_size, target.hidden_size),
            ("vocabulary size", spec.vocab_size, target.vocab_size),
        )
        if made != has
    ]


def check_boundaries(spec: DrafterSpec, target: Target) -> list[str]:
    """Reasons for which the captured boundaries cannot be taken from the target."""
    found, depth = list(spec.boundaries), target.num_layers
    source = spec.sources.get("boundaries", "")
    fix = "fix: use a head trained for this target, or --eagle31-override aux_layers=b,b,b"
    if not found:
        return [f"no captured layers are stated ({source}); {fix}"]
    if len(set(found)) != len(found):
        return [f"captured layers {found} repeat themselves on a target of {depth} layers ({source}); {fix}"]
    if found != sorted(found):
        return [f"captured layers {found} are not ascending, and every engine captures ascending ({source}); {fix}"]
    if found[0] < 0 or found[-1] >= depth:
        return [f"captured layers {found} are outside 0..{depth - 1} of the target ({source}); {fix}"]
    return []


def placement(canonical: str) -> tuple[str, str | int | None]:
    """The module parameter that a canonical tensor belongs to, and its shard in a stacked projection."""
    for part, stacked, shard in STACKED:
        if part in canonical:
            return canonical.replace(part, stacked), shard
    return canonical, None
