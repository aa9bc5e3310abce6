"""Sliding windows: ``sliding_window`` counts the keys that a query sees, itself included."""

from __future__ import annotations

from sglang_eagle31.head.keys import Keys
from sglang_eagle31.head.reading import Reading


def by_layer_types(reading: Reading, keys: Keys) -> None:
    """transformers' rule: a layer of type ``sliding_attention`` sees ``sliding_window`` keys, with itself."""
    window, types = keys.count("sliding_window"), keys.find("layer_types")
    used, first = keys.flag("use_sliding_window"), keys.count("max_window_layers")
    kinds = types.value if types and isinstance(types.value, list) else []
    if types and (not kinds or not set(map(str, kinds)) <= {"full_attention", "sliding_attention"}):
        reading.refusals.append(f"config.json has {types.where}={types.value!r}; fix: full_ or sliding_attention each")
        return
    if types and len(kinds) < reading.values["num_layers"]:
        has = f"{types.where} has {len(kinds)} layers, the tensors {reading.values['num_layers']}"
        reading.refusals.append(f"config.json: {has}; fix: export the head again")
        return
    if not types and used is not None and used.value and (first or window):
        has = f"config.json has {used.where}=true without layer_types, and which layers slide is up to the class"
        reading.ask("sliding_window", has, "sliding_window=W if all see W keys, itself included, sliding_window=none")
    sliding = [kind == "sliding_attention" for kind in kinds]
    if not any(sliding):
        reading.put("sliding_window", None, types.source if types else "no layer_types: full attention")
    elif not all(sliding) or len(sliding) != reading.values["num_layers"]:
        reading.refusals.append(
            f"config.json has {types.where if types else ''}={kinds}: this package runs one window for all "
            f"{reading.values['num_layers']} layers; fix: serve this head with vLLM"
        )
    elif window is None:
        reading.ask("sliding_window", "config.json has sliding layers but no sliding_window", "sliding_window=W keys")
    else:
        reading.put("sliding_window", int(window.value), f"{window.source}, all layers sliding")


def ask_window(reading: Reading, keys: Keys) -> None:
    """A window in the config of a producer that does not train with one is a question."""
    window, types, used = keys.find("sliding_window"), keys.find("layer_types"), keys.flag("use_sliding_window")
    keys.count("max_window_layers")
    sliding = set(map(str, types.value)) - {"full_attention"} if types and isinstance(types.value, list) else set()
    if (window is None or (used is not None and not used.value)) and not sliding:
        return
    has = f"{window.where}={window.value!r}" if window else f"layer_types={sorted(sliding)}"
    reading.ask(
        "sliding_window",
        f"config.json has {has}, which {reading.producer} heads do not have of their own",
        "sliding_window=none if it was trained with full attention, sliding_window=W if it saw W keys, itself included",
    )
