"""Reading keys for `readers`: typed access, rotary positions and sliding windows. Raises rather than guesses."""

from collections.abc import Iterable, Mapping
from typing import Any

Config = Mapping[str, Any]


class Unreadable(ValueError):
    """The files, with the facts given, do not say what was trained."""


def require(condition: object, what: str) -> None:
    """Raises Unreadable unless the condition holds."""
    if not condition:
        raise Unreadable(what)


def flag(config: Config, key: str, default: bool | None = False) -> bool | None:
    """A boolean; null counts as absent."""
    value = config.get(key)
    require(value is None or isinstance(value, bool), f"{key}={value!r} is no boolean")
    return default if value is None else value


def integer(config: Config, key: str, default: int | None = None) -> int:
    """A positive integer; null counts as absent."""
    value = config.get(key)
    value = default if value is None else value
    require(isinstance(value, int) and not isinstance(value, bool) and value > 0, f"{key}={value!r} is no size")
    return int(value)  # type: ignore[arg-type]


def number(config: Config, key: str, default: float) -> float:
    """A positive number; null counts as absent."""
    value = config.get(key)
    value = default if value is None else value
    require(isinstance(value, int | float) and not isinstance(value, bool) and value > 0, f"{key}={value!r}")
    return float(value)


def section(config: Config, key: str) -> Config:
    """A nested object; null or absent is an empty one."""
    value = config.get(key)
    require(value is None or isinstance(value, dict), f"{key}={value!r} is no object")
    return value or {}


def neutral(config: Config, keys: Iterable[str], values: tuple[Any, ...] = (None, False)) -> None:
    """Raises where a key that this producer does not train with has a value that would change the computation."""
    for key in keys:
        value = config.get(key)
        require(
            any(value is v or (v is not None and v is not False and value == v) for v in values), f"{key}={value!r}"
        )


def only(values: Iterable[Any], what: str) -> Any:
    """The one value that several places agree on; None where none states it."""
    stated = [v for v in values if v is not None]
    require(all(v == stated[0] for v in stated), f"{what} is stated as {stated}")
    return stated[0] if stated else None


ROPE_KEYS = {
    "default": set(),
    "linear": {"factor"},
    "dynamic": {"factor", "original_max_position_embeddings"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {
        *("factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow"),
        *("mscale", "mscale_all_dim", "truncate"),
    },
}


def rope(config: Config, facts: Config) -> dict[str, Any]:
    """The switches about positions, from `rope_theta` and `rope_scaling` (older) or `rope_parameters` (newer)."""
    max_positions = int(facts.get("max_position_embeddings") or integer(config, "max_position_embeddings", 2048))
    stated = [dict(section(config, key)) for key in ("rope_scaling", "rope_parameters")]
    agree = all(stated[1][key] == value for key, value in stated[0].items() if key in stated[1])
    apart = ("rope_theta", "partial_rotary_factor")  # a key that is null states nothing
    kept = [{k: v for k, v in d.items() if k not in apart and v is not None} for d in stated if d]
    require(agree and all(d == kept[0] for d in kept), f"rope scaling is stated as {stated}")
    scaling = {**stated[0], **stated[1]}
    kind = only((scaling.pop("rope_type", None), scaling.pop("type", None)), "rope type") or "default"
    theta = only((scaling.pop("rope_theta", None), config.get("rope_theta")), "rope_theta")
    partial = only((scaling.pop("partial_rotary_factor", None), config.get("partial_rotary_factor")), "partial rotary")
    scaling = {key: value for key, value in scaling.items() if value is not None or key == "truncate"}
    require(kind in ROPE_KEYS and set(scaling) <= ROPE_KEYS[kind], f"rope scaling {kind!r} with {sorted(scaling)}")
    if kind in ("llama3", "yarn"):  # transformers: the config's own key wins, else the dict's, else the whole length
        inner = scaling.pop("original_max_position_embeddings", None)
        old = config.get("original_max_position_embeddings") or inner or max_positions
        scaling["original_max_position_embeddings"] = old
    for key, value in scaling.items():
        kinds = bool if key == "truncate" else int | float
        fits = isinstance(value, kinds) and isinstance(value, bool) == (key == "truncate")
        require(fits or (value is None and key != "truncate"), f"rope scaling {key}={value!r}")
    needed = {"default": (), "llama3": ("factor", "low_freq_factor", "high_freq_factor")}.get(kind, ("factor",))
    for key in needed:
        number(scaling, key, 0.0)
    return {
        "rope_theta": float(facts.get("rope_theta") or number({"rope_theta": theta}, "rope_theta", 10000.0)),
        "rope_scaling": {"rope_type": kind, **scaling} if kind != "default" else None,
        "partial_rotary_factor": number({"partial_rotary_factor": partial}, "partial_rotary_factor", 1.0),
        "max_position_embeddings": max_positions,
    }


def declared_window(config: Config, num_layers: int) -> int | None:
    """Speculators and vLLM: a layer of type `sliding_attention` sees `sliding_window` keys, itself included."""
    types = config.get("layer_types")
    if types is None:
        sliding = False
        if flag(config, "use_sliding_window"):  # Qwen3Config: the layers from max_window_layers on slide
            require(integer(config, "max_window_layers", 28) >= num_layers, "a window by max_window_layers")
    else:
        require(isinstance(types, list) and len(types) >= num_layers, f"layer_types={types!r}")
        kinds = set(types[:num_layers])
        require(len(kinds) == 1 and kinds <= {"sliding_attention", "full_attention"}, f"layer_types={types!r}")
        sliding = kinds == {"sliding_attention"}
    return integer(config, "sliding_window") if sliding else None


def undeclared_window(config: Config) -> None:
    """The other producers train full attention and say nothing; a config that says otherwise needs a fact."""
    window, types = config.get("sliding_window"), config.get("layer_types") or []
    require(window is None or config.get("use_sliding_window") is False, f"sliding_window={window!r}")
    require("sliding_attention" not in types, f"layer_types={types!r}")
