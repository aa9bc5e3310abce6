"""Heads that ``convert`` wrote: in another's format, with a key that settles what that format leaves open."""

from __future__ import annotations

from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.dialects import layer_ids, speculators
from sglang_eagle31.head.dialects.layout import Rules, norm_output_is_feedback
from sglang_eagle31.head.dialects.sizes import put_mla_scale
from sglang_eagle31.head.dialects.window import by_layer_types
from sglang_eagle31.head.keys import EAGLE, Keys, is_count
from sglang_eagle31.head.reading import Reading, Target

NAME = "converted by sglang-eagle31"
CONVERTED = "eagle31_converted"
"""The key: the format, who trained the head, and its boundaries, as the format's own ids follow its reader's rule."""


def recognise(head: Checkpoint) -> str | None:
    """By the key that ``convert`` writes."""
    return f"config key {CONVERTED}" if CONVERTED in head.config else None


def rules(head: Checkpoint) -> Rules:
    """All that the formats can say; a nested layer config is vLLM's."""
    nested = speculators.LAYER.rstrip(".") in head.config
    return Rules(
        NAME,
        places=(speculators.LAYER,) if nested else ("",),
        ids_at=("",) if nested else (EAGLE, ""),
        bias_flags=True,
        pre_fc=("none", "fc_norm", "input_norm"),
        shares_head="null",
        later=("input_layernorm", "hidden_norm", "both"),
        ignored=frozenset({speculators.LAYER.rstrip(".")}),
    )


def settle(head: Checkpoint, target: Target, reading: Reading, keys: Keys) -> None:
    """``norm_output`` is the feedback; the key has the boundaries, of which the format's ids must be a form."""
    residual = keys.flag("norm_before_residual", "")
    if residual is not None:
        side = "post" if residual.value else "pre"
        reading.put("residual", side, f"{residual.source}={str(residual.value).lower()}")
    norm_output_is_feedback(reading, keys)
    by_layer_types(reading, keys)
    put_mla_scale(reading, with_mscale=True)
    if not reading.values["use_aux_hidden_state"]:
        return
    made = keys.mapping(CONVERTED, "")
    boundaries = made.value.get("boundaries") if made else None
    if not isinstance(boundaries, list) or not all(value == 0 or is_count(value) for value in boundaries):
        reading.refusals.append(f"config.json has {CONVERTED} without boundaries; fix: convert the head again")
        return
    reading.questions.pop("aux_layers", None)
    reading.put("boundaries", tuple(boundaries), f"config {CONVERTED}.boundaries")
    ids = keys.ids(layer_ids.IDS, "", EAGLE)
    if ids is None or list(ids.value) not in (boundaries, [boundary - 1 for boundary in boundaries]):
        has = f"config.json has {layer_ids.IDS}={ids.value if ids else None}, but {CONVERTED}.boundaries={boundaries}"
        reading.ask("aux_layers", has, layer_ids.OVERRIDE)
