"""speculators: a nested ``transformer_layer_config``, layer *inputs* at the top level, ``layers.N.*``.

Its trainer writes the keys that it was given; what it leaves out of the nested config equals the class's defaults. A
converted head may carry another trainer's layer *outputs* in the same place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.dialects import layer_ids
from sglang_eagle31.head.dialects.layout import LLAMA, Rules, norm_output_is_feedback
from sglang_eagle31.head.dialects.window import by_layer_types
from sglang_eagle31.head.keys import EAGLE, Keys
from sglang_eagle31.head.reading import Reading, Target

NAME = "speculators"
LAYER = "transformer_layer_config."
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {**LLAMA, "hidden_size": 4096, "num_attention_heads": 32},
    "qwen3": {
        "hidden_size": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 32768,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 128,
    },
}
"""Of transformers' LlamaConfig and Qwen3Config."""


def recognise(head: Checkpoint) -> str | None:
    """By the keys that it alone writes, or by its class names."""
    key = next((key for key in ("speculators_model_type", "speculators_config") if key in head.config), None)
    if key:
        return f"config key {key}"
    named = set(head.architectures) & {"Eagle3Speculator", "Eagle3DraftModel"}
    return f"architectures {', '.join(sorted(named))}" if named else None


def rules(head: Checkpoint) -> Rules:
    """Nested keys first; Llama or Qwen3 layers."""
    kind = _kind(head)
    return Rules(
        NAME,
        renames=(),
        places=(LAYER,),
        defaults=DEFAULTS.get(kind, LLAMA),
        class_name={"qwen3": "the Qwen3 config"}.get(kind, "the Llama config"),
        ids_at=("",),
        ids="input",
        bias_flags=True,
        pre_fc=("none", "fc_norm", "input_norm"),
        later=("input_layernorm",),
    )


def settle(head: Checkpoint, target: Target, reading: Reading, keys: Keys) -> None:
    """Its own: residual, feedback, window, layer kind, and ids that may have been converted."""
    residual = keys.flag("norm_before_residual", "")
    if residual is None:
        reading.ask(
            "residual",
            "config.json has no norm_before_residual, which is false by speculators' class and true by vLLM's reader",
            "residual=post if the trainer's default (true) was used, residual=pre if not",
        )
    else:
        side = "post" if residual.value else "pre"
        reading.put("residual", side, f"{residual.source}={str(residual.value).lower()}")
    norm_output_is_feedback(reading, keys)
    by_layer_types(reading, keys)
    kind = _kind(head)
    if kind not in DEFAULTS:
        reading.refusals.append(
            f"config.json has {LAYER}model_type={kind!r}; this package runs {', '.join(DEFAULTS)}; "
            "fix: serve this head with vLLM"
        )
    if (kind == "qwen3") != bool(reading.values["qk_norm"]):
        has = "has" if reading.values["qk_norm"] else "has no"
        reading.refusals.append(
            f"config.json has {LAYER}model_type={kind!r}, but the file {has} self_attn.q_norm and k_norm; "
            "fix: export the head again"
        )
    trained = keys.flag("embed_requires_grad", "")
    if trained is not None and trained.value and not reading.values["own_embedding"]:
        has = f"config.json has {trained.where}=true, but the file has no embed_tokens.weight"
        reading.refusals.append(f"{has}; fix: export the head again")
    if keys.nested(EAGLE):
        reading.refusals.append(
            "config.json has eagle_config beside transformer_layer_config, and speculators writes the latter only; "
            "fix: remove it, or --eagle31-override producer=NAME"
        )
    _converted(target, reading, keys)


def _converted(target: Target, reading: Reading, keys: Keys) -> None:
    """A converter copies ids; what only the trainer writes (window, norm before fc, post-norm feedback) excludes it."""
    values = reading.values
    trained = values["sliding_window"] is not None or values["pre_fc_norm"] != "none" or values["feedback"] == "post"
    ids = keys.ids(layer_ids.IDS, "")
    if (
        ids is None
        or layer_ids.are_default(ids.value, target)
        or (trained and not layer_ids.look_copied(ids.value, target))
    ):
        return
    layer_ids.ask_convention(
        reading,
        list(ids.value),
        "speculators means layer inputs, and a converted head carries the layer outputs of another trainer in the same "
        "place; nothing in the file excludes that",
    )


def _kind(head: Checkpoint) -> str:
    inner = head.config.get(LAYER.rstrip("."))
    return str(inner.get("model_type")) if isinstance(inner, Mapping) else "None"
