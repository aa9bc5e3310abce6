"""Mutations of what is said about a head: windows, overrides by the user, and traces of who wrote it."""

from __future__ import annotations

import random
from typing import Any

from mutations import Head, kind
from mutations_config import section


@kind
def config_window(head: Head, rng: random.Random) -> str:
    """Keys of sliding windows, of which there are four."""
    layer = section(head, "transformer_layer_config" if "transformer_layer_config" in head.config else "")
    choices: dict[str, tuple[Any, ...]] = {
        "sliding_window": (4, 8, 1, 4096, None, 0, -1, "8", 8.0, True, 2**40),
        "use_sliding_window": (True, False, None, "false", 0),
        "layer_types": (
            ["sliding_attention"],
            ["full_attention"],
            ["sliding_attention"] * 2,
            [],
            None,
            "full_attention",
        ),
        "max_window_layers": (0, 1, 28, None, "1"),
    }
    more: tuple[Any, ...] = (["full_attention", "sliding_attention"], ["chunked_attention"], [1], [None])
    choices["layer_types"] += more
    keys = rng.sample(sorted(choices), rng.choice((1, 2, 2, 3)))
    for key in keys:
        layer[key] = rng.choice(choices[key])
    return str({key: layer[key] for key in keys})


@kind
def stated(head: Head, rng: random.Random) -> str:
    """A user states a fact, or nothing at all: then what the files leave open has to be refused."""
    if rng.random() < 0.5:
        head.silent = True
        return "no overrides"
    choices: tuple[tuple[str, str, str, Any], ...] = (
        ("feedback", "post", "feedback", "post"),
        ("feedback", "pre", "feedback", "pre"),
        ("residual", "post", "residual", "post"),
        ("residual", "pre", "residual", "pre"),
        ("logits_norm", "false", "logits", "raw"),
        ("rope_theta", "1234.5", "rope_theta", 1234.5),
        ("sliding_window", "5", "sliding_window", 5),
        ("sliding_window", "none", "sliding_window", None),
        ("max_position_embeddings", "4096", "max_position_embeddings", 4096),
        ("own_embedding", "false", "own_embedding", False),
        ("own_embedding", "true", "own_embedding", True),
        ("aux_layers", "1,3,6", "boundaries", (1, 3, 6)),
        ("aux_layers", "6,3,1", "boundaries", (6, 3, 1)),
        ("aux_layers", "1,3", "boundaries", (1, 3)),
        ("aux_layers", "0,1,9", "boundaries", (0, 1, 9)),
        ("pre_fc_norm", "fc_norm", "pre_fc_norm", "fc_norm"),
        ("pre_fc_norm", "input_norm", "pre_fc_norm", "input_norm"),
        ("pre_fc_norm", "none", "pre_fc_norm", "none"),
    )
    key, text, fact, value = rng.choice(choices)
    head.overrides[key], head.facts[fact] = text, value
    return f"{key}={text}"


@kind
def provenance_lost(head: Head, rng: random.Random) -> str:
    """What tells who wrote the head."""
    names = ("architectures", "_torchspec_version", "speculators_config", "speculators_model_type", "use_aux_norm")
    names += ("sglang_eagle31_version", "speculators_version", "target_model_type", "eagle_config", "model_type")
    gone = [name for name in names if head.config.pop(name, None) is not None and rng.random() < 0.99]
    head.metadata = {}
    if rng.random() < 0.5:
        head.config["architectures"] = ["LlamaForCausalLMEagle3"]
    return ", ".join(gone)
