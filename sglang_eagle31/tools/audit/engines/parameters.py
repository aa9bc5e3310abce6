"""Matching a head's tensors to an engine's parameters the way its loaders do, and wording what is left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from sglang_eagle31.head.checkpoint import Tensor
from sglang_eagle31.tools.audit.engines.outcome import Loss


@dataclass(frozen=True)
class Slot:
    """One parameter, fused ones by their parts.

    Attributes:
        shape: what it is built with.
        cut: dimensions along which a larger tensor is cut off without a word.
        pad: dimensions along which a smaller one is filled with zeros.
        needed: whether the function depends on it.
    """

    shape: tuple[int, ...]
    cut: tuple[int, ...] = ()
    pad: tuple[int, ...] = ()
    needed: bool = True


@dataclass
class Load:
    """What became of the tensors: parameter to tensor name, and the names that did not get there."""

    loaded: dict[str, str] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    mismatched: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


IGNORABLE = re.compile(r"t2d|rotary_emb\.inv_freq|rotary_emb\.(cos|sin)_cached|(^|\.)verifier_")
"""Tensors that carry nothing a head computes with."""
BESIDE = re.compile(r"(^|\.)parallel_draft_heads\.")
"""ModelOpt's parallel heads, beside a chain that is whole without them."""
SCALE = re.compile(r"(weight_scale|weight_scale_inv|input_scale|[kv]_scale|weight_scale_2|weight_zero_point)$")


def load(slots: Mapping[str, Slot], tensors: Mapping[str, Tensor], find: Callable[[str], str | None]) -> Load:
    """``find`` gives the parameter of a tensor name, or None for one that the loader handles itself."""
    out = Load()
    for name, tensor in tensors.items():
        target = find(name)
        if target is None:
            continue
        slot = slots.get(target)
        if slot is None:
            out.dropped.append(name)
            continue
        out.loaded[target] = name
        fit = _fit(slot, tensor.shape)
        if fit != "whole":
            text = f"{name} {list(tensor.shape)} into {list(slot.shape)}"
            (out.cut if fit == "cut" else out.mismatched).append(text)
    out.missing = [name for name, slot in slots.items() if slot.needed and name not in out.loaded]
    return out


def _fit(slot: Slot, shape: tuple[int, ...]) -> str:
    if len(shape) != len(slot.shape):
        return "mismatch"
    fits = []
    for axis, (have, want) in enumerate(zip(shape, slot.shape, strict=True)):
        if have == want or (have < want and axis in slot.pad):
            fits.append("whole")
        else:
            fits.append("cut" if have > want and axis in slot.cut else "mismatch")
    return next((kind for kind in ("mismatch", "cut") if kind in fits), "whole")


_KINDS: tuple[tuple[str, str | None, str], ...] = (
    (r"self_attn\.[qkv]_proj\.bias$", "qkv_bias", "biases of q, k and v"),
    (r"self_attn\.o_proj\.bias$", "o_bias", "the bias of o_proj"),
    (r"mlp\.\w+_proj\.bias$", "mlp_bias", "biases of the MLP"),
    (r"(^|\.)fc\.bias$", "fc_bias", "the bias of fc"),
    (r"self_attn\.[qk]_norm\.", "qk_norm", "q_norm and k_norm"),
    (r"(^|\.)(fc_norm|input_norm|aux_norm_\w+)\.", "pre_fc_norm", "norms before fc"),
    (r"mask_hidden", None, "the parallel-drafting part"),
    (r"(^|\.)(enorm|hnorm)\.", None, "norms that only the trainer's code has"),
    (r"(^|\.)lm_head\.", "own_head", "lm_head"),
    (r"(^|\.)embed_tokens\.", "own_embedding", "the head's own embedding"),
    (SCALE.pattern, None, "quantisation scales"),
)


def dropped_losses(names: Iterable[str], how: str) -> list[Loss]:
    """One loss for each kind of dropped tensor; ``how`` says what drops them."""
    groups: dict[tuple[str | None, str], list[str]] = {}
    for name in names:
        if IGNORABLE.search(name) or BESIDE.search(name):
            continue
        kind = next(((f, text) for pattern, f, text in _KINDS if re.search(pattern, name)), (None, "unknown tensors"))
        groups.setdefault(kind, []).append(name)
    return [Loss(f"{text} dropped: {listed(found)} ({how})", f) for (f, text), found in groups.items()]


def listed(names: Iterable[str], limit: int = 4) -> str:
    """A few names and how many more there are."""
    found = list(names)
    more = f" and {len(found) - limit} more" if len(found) > limit else ""
    return ", ".join(found[:limit]) + more


_FIRST_NORM = re.compile(r"(layers\.0|midlayer)\.(input_layernorm|hidden_norm)\.weight$")


def missing_losses(names: Iterable[str], how: str) -> list[Loss]:
    """One loss for each kind of parameter that no tensor fills; norms keep a gain of one, the rest is memory."""
    first, later, final, before, rest = [], [], [], [], []
    for name in names:
        if _FIRST_NORM.search(name):
            first.append(name)
        elif re.search(r"layers\.\d+\.(input_layernorm|hidden_norm)\.weight$", name):
            later.append(name)
        elif re.search(r"(^|\.)norm\.weight$", name) and "self_attn" not in name:
            final.append(name)
        elif re.search(r"(fc_norm\.\d+|input_norm)\.weight$", name):
            before.append(name)
        elif not name.endswith(".bias"):
            rest.append(name)
    one = "not in the file: the norm runs with a gain of one"
    losses = [
        Loss(f"{listed(found)} {one} ({how})", field)
        for found, field in (
            (first, "first_norms"),
            (later, "later_norm"),
            (final, "final_norm"),
            (before, "pre_fc_norm"),
        )
        if found
    ]
    if rest:
        losses.append(Loss(f"never loaded, runs on uninitialised memory: {listed(rest)} ({how})"))
    return losses


def map_losses(d2t: list[int] | None, vocab_size: int) -> list[Loss]:
    """What is wrong with the values of ``d2t`` (offsets); nothing when they were not read."""
    if d2t is None or len(d2t) >= vocab_size:
        return []
    ids = [i + offset for i, offset in enumerate(d2t)]
    if not any(d2t):
        return [Loss("d2t is all zero, so draft ids are used as target ids")]
    if ids != sorted(set(ids)) or ids[0] < 0 or ids[-1] >= vocab_size:
        return [Loss(f"d2t is added to draft ids unchecked, and gives no ascending ids below {vocab_size}")]
    return []
