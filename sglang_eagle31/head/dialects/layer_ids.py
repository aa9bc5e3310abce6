"""Captured layers: a producer's ids, translated to boundaries (``b``: the residual stream before block ``b``)."""

from __future__ import annotations

from typing import Literal

from sglang_eagle31.head.keys import EAGLE, Keys
from sglang_eagle31.head.reading import Reading, Target

IDS = "eagle_aux_hidden_state_layer_ids"
OVERRIDE = "aux_layers=b,b,b (boundary b is the input of block b, the output of block b - 1)"


def read_ids(
    target: Target,
    reading: Reading,
    keys: Keys,
    places: tuple[str, ...],
    convention: Literal["output", "input"],
    default: bool,
) -> None:
    """Put ``boundaries`` from the ids at the producer's places, or from the default triple; else leave a question."""
    if not reading.values["use_aux_hidden_state"]:
        keys.find(IDS, "", EAGLE)
        reading.put("boundaries", (), reading.sources["use_aux_hidden_state"])
        return
    found = keys.ids(IDS, *places) if places else None
    elsewhere = [place for place in ("", EAGLE) if place not in places]
    stray = keys.ids(IDS, *elsewhere) if elsewhere else None
    if found is not None:
        shift = 1 if convention == "output" else 0
        ids = [int(item) for item in found.value]
        meaning = f"{found.source}={ids}, layer {convention}s"
        reading.put("boundaries", tuple(item + shift for item in ids), meaning)
        if convention == "output" and are_default(ids, target) and not look_copied(ids, target):
            why = f"in {reading.producer} heads they are layer outputs, but these are the default layer inputs"
            ask_convention(reading, ids, f"{why} of a target of {target.num_layers} layers")
        if stray is not None and stray.value != found.value:
            reading.ask("aux_layers", f"config.json has {found.where}={ids} and {stray.where}={stray.value}", OVERRIDE)
        return
    reading.put("boundaries", target.triple(), f"default of {reading.producer}: no ids stated")
    if stray is not None:
        has = f"config.json has {stray.where}={stray.value}, where {reading.producer} does not write it"
        reading.ask("aux_layers", f"{has}, and they may be layer inputs or outputs", OVERRIDE)
    elif not default:
        reading.ask(
            "aux_layers",
            f"config.json states no {IDS}, and {reading.producer} heads without them were trained on other layers than "
            "the default (vLLM PR 50170)",
            OVERRIDE,
        )
    elif target.num_layers is None:
        has = f"config.json states no {IDS}: the default 2, N//2, N-3 depends on the target's N layers"
        reading.questions["aux_layers"] = f"{has}; fix: name the target (audit --target TARGET)"


def are_default(ids: list[int], target: Target) -> bool:
    """Whether ids are the default triple as layer inputs."""
    return tuple(ids) == target.triple()


def look_copied(ids: list[int], target: Target) -> bool:
    """Whether ids are the default triple as layer *outputs*."""
    return bool(target.triple()) and tuple(ids) == tuple(boundary - 1 for boundary in target.triple())


def ask_convention(reading: Reading, ids: list[int], why: str) -> None:
    """Leave open whether ids are layer inputs or outputs, naming both overrides."""
    inputs, outputs = (",".join(str(item + shift) for item in ids) for shift in (0, 1))
    reading.ask(
        "aux_layers",
        f"config.json has {IDS}={ids}: {why}",
        f"aux_layers={inputs} if they are layer inputs, aux_layers={outputs} if they are layer outputs",
    )
