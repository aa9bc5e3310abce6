"""The strict loader: every tensor is consumed or the head is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sglang_eagle31.head import kinship
from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.dialects import read
from sglang_eagle31.head.reading import Reading, Target
from sglang_eagle31.head.spec import DrafterSpec

STACKED = (
    (".q_proj", ".qkv_proj", "q"),
    (".k_proj", ".qkv_proj", "k"),
    (".v_proj", ".qkv_proj", "v"),
    (".gate_proj", ".gate_up_proj", 0),
    (".up_proj", ".gate_up_proj", 1),
)
FLOATS = ("BF16", "F16", "F32")
LONGEST, MOST = 600, 40
"""Characters of a reason or of its fix, and reasons."""
QUANTISED = re.compile(r"(scale|zero_point|qweight|qzeros|scales|g_idx)(_inv)?$")
FOREIGN = "fix: use the head of this target, or export it again"


def resolve(head: Checkpoint, target: Target, overrides: Mapping[str, str]) -> tuple[Reading, list[str]]:
    """Read a head and check it against its target and against its own tensors.

    Returns:
        the reading, and every reason to refuse; the reading has a spec only when there is none.
    """
    reading, reasons = _resolve(head, target, overrides)
    return reading, brief(reasons)


def brief(reasons: list[str]) -> list[str]:
    """Reasons that can be read whatever a file has in it: some of very many, and of a long one both ends."""
    parts = (text.partition("; fix: ") for text in reasons)
    short = [_cut(what) + separator + _cut(fix) for what, separator, fix in parts]
    if len(short) <= MOST:
        return short
    return [*short[:MOST], f"and {len(short) - MOST} reasons more, of config.json and tensors; fix: these first"]


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


def _resolve(head: Checkpoint, target: Target, overrides: Mapping[str, str]) -> tuple[Reading, list[str]]:
    reading = read(head, target, overrides)
    if "num_kv_heads" in reading.values:
        reading.override(overrides)
    reasons = reading.reasons()
    # Open layers or norms leave the tensors that there should be open too.
    if reading.refusals or not reading.values or {"aux_layers", "pre_fc_norm"} & set(reading.questions):
        return reading, reasons
    spec = reading.spec()
    reasons += check_target(spec, target) + check_boundaries(spec, target) + check_latent(spec) + check_positions(spec)
    reasons += check_tensors(spec, head, reading.names)
    reading.notes += [] if reasons else kinship.dtype_notes(head, target.dtype)
    if target.folder is not None and not reasons:
        reasons += kinship.tokenizer_reasons(head.folder, target.folder)
        name = {new: old for old, new in reading.names.items()}.get("embed_tokens.weight")
        reading.notes += kinship.embedding_notes(head, name, target.folder) if name else []
    return reading, reasons


def check_tensors(spec: DrafterSpec, head: Checkpoint, names: Mapping[str, str]) -> list[str]:
    """Reasons for which the tensors are not exactly those of the spec: missing, unknown, wrong shape or dtype."""
    expected = spec.expected_tensors()
    have = {new: head.tensors[old] for old, new in names.items() if old in head.tensors}
    original = {new: old for old, new in names.items()}
    reasons = [
        f"tensor {name} {list(expected[name])} is missing; fix: export the head again"
        for name in sorted(set(expected) - set(have))
    ]
    for name in sorted(set(have) - set(expected)):
        what = "quantised heads are not supported, fix: export in bf16" if QUANTISED.search(name) else FOREIGN
        reasons.append(
            f"tensor {original[name]} {list(have[name].shape)} in {have[name].file.name} is not part of {spec.variant} "
            f"as {spec.producer} writes it; {what}"
        )
    for name in sorted(set(have) & set(expected)):
        tensor, where = have[name], f"tensor {original[name]} in {have[name].file.name}"
        if tensor.shape != expected[name]:
            reasons.append(f"{where} has shape {list(tensor.shape)}, expected {list(expected[name])}; {FOREIGN}")
        if tensor.dtype not in (("I64", "I32") if name == "d2t" else FLOATS):
            reasons.append(f"{where} is {tensor.dtype}: quantised heads are not supported; fix: export in bf16")
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


def check_latent(spec: DrafterSpec) -> list[str]:
    """Reasons for which SGLang's latent attention does not compute what an MLA head was trained with."""
    if spec.attention != "mla":
        return []
    reasons = []
    scaling = spec.rope_scaling or {}
    if spec.sliding_window is not None:
        has = f"an MLA head with a window of {spec.sliding_window} keys ({spec.sources.get('sliding_window', '')})"
        reasons.append(f"{has}: SGLang's MLA attends to every key; fix: serve it elsewhere")
    if scaling.get("truncate") is False:
        has = f"an MLA head with {spec.sources.get('rope_scaling', 'rope_scaling')}.truncate=false"
        reasons.append(f"{has}: SGLang rounds yarn's range for MLA; fix: serve it elsewhere")
    if spec.partial_rotary_factor != 1:
        reasons.append(
            f"an MLA head with config partial_rotary_factor={spec.partial_rotary_factor}; fix: serve it elsewhere"
        )
    return reasons


def check_positions(spec: DrafterSpec) -> list[str]:
    """A reason when yarn's ramp is upside down, or ends before the head's positions do: SGLang has no more of them."""
    scaling = spec.rope_scaling or {}
    if scaling.get("rope_type") != "yarn":
        return []
    fast, slow = scaling.get("beta_fast") or 32, scaling.get("beta_slow") or 1
    if not fast > slow:
        found = f"{spec.sources.get('rope_scaling', 'rope_scaling')} has beta_fast={fast}, beta_slow={slow}"
        return [f"{found}, and yarn's ramp goes from the one down to the other; fix: correct them"]
    original = scaling.get("original_max_position_embeddings") or spec.max_position_embeddings
    reach = int(float(original) * float(scaling["factor"]))
    if reach >= spec.max_position_embeddings:
        return []
    source = spec.sources.get("max_position_embeddings", "max_position_embeddings")
    return [
        f"{source}={spec.max_position_embeddings}, but yarn stretches {original:g} positions by {scaling['factor']:g} "
        f"to {reach}, where SGLang's end; fix: --eagle31-override max_position_embeddings={reach}"
    ]


def check_boundaries(spec: DrafterSpec, target: Target) -> list[str]:
    """Reasons for which the captured boundaries cannot be taken from the target."""
    found, depth = list(spec.boundaries), target.num_layers
    source = spec.sources.get("boundaries", "")
    fix = "fix: use a head trained for this target, or --eagle31-override aux_layers=b,b,b"
    if not spec.use_aux_hidden_state:
        return []
    if not found:
        return [f"no captured layers are stated ({source}); {fix}"]
    if len(set(found)) != len(found):
        return [f"captured layers {found} repeat themselves on a target of {depth} layers ({source}); {fix}"]
    if found != sorted(found):
        return [f"captured layers {found} are not ascending, and every engine captures ascending ({source}); {fix}"]
    if found[0] < 0 or (depth is not None and found[-1] > depth):
        return [f"captured layers {found} are outside 0..{depth} of the target ({source}); {fix}"]
    if depth is not None and found[-1] == depth and not target.last_boundary:
        return [
            f"captured layers {found} end with the last block's output, which SGLang's {target.architecture} cannot "
            f"hand out ({source}); {fix}"
        ]
    return []


def placement(canonical: str) -> tuple[str, str | int | None]:
    """The module parameter that a canonical tensor belongs to, and its shard in a stacked projection."""
    for part, stacked, shard in STACKED:
        if part in canonical:
            return canonical.replace(part, stacked), shard
    return canonical, None
