"""config.json as transformers 5 hands it to an engine: defaults filled in, RoPE keys brought to one form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_COMMON: Mapping[str, Any] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
_LLAMA = {
    **_COMMON,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "attention_bias": False,
    "mlp_bias": False,
}
_QWEN = {**_COMMON, "intermediate_size": 22016, "vocab_size": 151936, "max_position_embeddings": 32768}
_MLA = {
    **_COMMON,
    "vocab_size": 129280,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "attention_bias": False,
}
_DEEPSEEK_V3 = {
    **_MLA,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "max_position_embeddings": 4096,
}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": _LLAMA,
    "mistral": {
        **_COMMON,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "max_position_embeddings": 131072,
    },
    "phi3": {
        **_COMMON,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "vocab_size": 32064,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    },
    "qwen2": _QWEN,
    "qwen3": {**_QWEN, "head_dim": 128, "attention_bias": False},
    "gpt_oss": {
        **_COMMON,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 201088,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072,
        "attention_bias": True,
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
    "deepseek_v2": {
        **_MLA,
        "intermediate_size": 11008,
        "vocab_size": 102400,
        "max_position_embeddings": 2048,
    },
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
}
"""Values that transformers 5.19 gives to keys that are not in the file, by model_type."""

NOT_MODEL_TYPES = frozenset({"speculator_model", "speculators", "eagle", "eagle3", "peagle"})
"""model_type values seen in heads that transformers does not know."""


MLA_DIMENSIONS = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
"""What latent attention cannot be built without."""


class HfConfig:
    """A flat config of one model_type; a key that neither the file nor the class has is absent, as its attribute is."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw
        self.model_type = str(raw.get("model_type", ""))
        self._defaults = DEFAULTS.get(self.model_type, {})

    def __contains__(self, key: str) -> bool:
        return key in self.raw or key in self._defaults

    def get(self, key: str, default: Any = None) -> Any:
        """The file's value, null included, else the class's, else ``default``."""
        return self.raw[key] if key in self.raw else self._defaults.get(key, default)

    def nested(self, key: str) -> Mapping[str, Any]:
        """A sub-object, empty when it is not there or not an object."""
        value = self.raw.get(key)
        return value if isinstance(value, Mapping) else {}

    @property
    def heads(self) -> tuple[int, int, int]:
        """Query heads, key/value heads and head_dim (0 when a size is not usable)."""
        heads = int(self.get("num_attention_heads") or 0)
        kv = int(self.get("num_key_value_heads") or heads)
        width = int(self.get("hidden_size") or 0)
        return heads, kv, int(self.get("head_dim") or (width // heads if heads else 0))

    @property
    def rope(self) -> dict[str, Any]:
        """RoPE parameters; a base inside the object wins over the top-level ``rope_theta``."""
        scaling = self.get("rope_parameters") or self.get("rope_scaling") or {}
        theta = scaling.get("rope_theta", self.get("rope_theta", 10000.0))
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        return {**scaling, "rope_type": kind, "rope_theta": theta}

    def context(self) -> int:
        """Longest context that SGLang derives from it (``get_context_length``)."""
        rope = self.rope
        fixed = "original_max_position_embeddings" in rope or rope["rope_type"] in ("llama3", "yarn")
        factor = 1 if fixed else rope.get("factor") or 1
        return int(factor * (self.get("max_position_embeddings") or 2048))


_COUNTS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "draft_vocab_size",
    "target_hidden_size",
    "max_position_embeddings",
    "num_aux_hidden_states",
    "num_aux_layers",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
)
_OBJECTS = ("eagle_config", "rope_scaling", "rope_parameters", "quantization_config", "transformer_layer_config")
_IDS = "eagle_aux_hidden_state_layer_ids"
_MOST_LAYERS = 10_000


def malformed(raw: Mapping[str, Any]) -> str | None:
    """A value of another type than its key has, or too large to build; None if there is none."""
    for key in _COUNTS:
        value = raw.get(key)
        if value is not None and (type(value) is not int or value < 0):
            return f"{key}={value!r} is not a count"
    for key in ("num_hidden_layers", "num_aux_hidden_states", "num_aux_layers"):
        if (raw.get(key) or 0) > _MOST_LAYERS:
            return f"{key}={raw[key]} cannot be built"
    for key in ("rms_norm_eps", "rope_theta", "partial_rotary_factor"):
        if key in raw and not (raw[key] is None and key != "rms_norm_eps") and not _number(raw[key]):
            return f"{key}={raw[key]!r} is not a number"
    for key in _OBJECTS:
        if raw.get(key) and not isinstance(raw[key], Mapping):
            return f"{key} is not an object"
    return _malformed_lists(raw)


def _malformed_lists(raw: Mapping[str, Any]) -> str | None:
    nested = raw.get("eagle_config") or {}
    for ids in (raw.get(_IDS), nested.get(_IDS)):
        if ids is not None and not (isinstance(ids, list | tuple) and all(type(i) is int for i in ids)):
            return f"{_IDS}={ids!r} is not a list of layers"
    for key in ("architectures", "layer_types"):
        value = raw.get(key)
        if value is not None and not (isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)):
            return f"{key}={value!r} is not a list of names"
    for key in ("rope_scaling", "rope_parameters"):
        inner = raw.get(key) or {}
        for name in ("factor", "rope_theta", "mscale_all_dim", "partial_rotary_factor"):
            if inner.get(name) is not None and not _number(inner[name]):
                return f"{key}.{name}={inner[name]!r} is not a number"
    if not isinstance(raw.get("model_type", ""), str):
        return f"model_type={raw['model_type']!r} is not a name"
    return None


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
