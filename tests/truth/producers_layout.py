"""What the producers' layouts are made of: a variant's record, names of tensors, and config keys that many write."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from truth.producers_weights import BOTH, Shape

IDS = "eagle_aux_hidden_state_layer_ids"
Config = dict[str, Any]


@dataclass(frozen=True)
class Head:
    """What a config describes: sizes, canonical weights and the dtype that they are stored in."""

    shape: Shape
    weights: Mapping[str, Tensor]
    dtype: torch.dtype = torch.float32

    @property
    def layers(self) -> int:
        """Decoder layers."""
        return len({name.split(".")[1] for name in self.weights if name.startswith("layers.")})

    @property
    def draft_vocab(self) -> int:
        """Tokens that the head can propose."""
        return len(self.weights["d2t"]) if "d2t" in self.weights else self.shape.vocab

    @property
    def boundaries(self) -> list[int]:
        """Captured layers as ids of the blocks whose input is taken."""
        return list(self.shape.boundaries)

    @property
    def outputs(self) -> list[int]:
        """Captured layers as ids of the blocks whose output is taken."""
        return [boundary - 1 for boundary in self.shape.boundaries]

    @property
    def dtype_name(self) -> str:
        """As in ``torch_dtype``."""
        return str(self.dtype).removeprefix("torch.")


DOUBTFUL_BASE = ("safeailab", "angelslim")
"""Their training code used RoPE base 10000 whatever the config said."""


@dataclass(frozen=True)
class Variant:
    """One thing that a producer writes.

    ``truth`` has the switches of the computation; `facts` adds what depends on the sizes. ``overrides`` has what the
    files cannot tell; `answers` adds the captured layers where those are in question. ``refused`` says why a reader has
    to refuse the head although the layout is known.
    """

    name: str
    producer: str
    config: Callable[[Head], Config]
    rename: Callable[[str], str]
    weights: Mapping[str, Any] = field(default_factory=dict)
    truth: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, str] = field(default_factory=dict)
    ids: Literal["output", "boundary", "absent"] = "output"
    asks_layers: Literal["never", "unless default", "unless last", "always"] = "never"
    maps: Literal["d2t", "d2t and t2d", "always both"] = "d2t and t2d"
    metadata: Mapping[str, str] = field(default_factory=lambda: {"format": "pt"})
    omits: tuple[str, ...] = ()
    windowed: bool = False
    yarn: bool = False
    refused: str = ""

    def shaped(self, shape: Shape) -> Shape:
        """``shape`` with the RoPE scaling that this variant's models have, and the only base that is not in doubt."""
        if self.producer in DOUBTFUL_BASE:
            return replace(shape, rope_theta=10000.0)
        if not self.yarn or shape.rope_scaling is not None:
            return shape
        return replace(shape, rope_scaling=yarn(shape))

    def names(self, weights: Mapping[str, Tensor]) -> dict[str, str]:
        """The canonical name by each name that this variant writes; ``t2d`` is not among them."""
        return {self.rename(name): name for name in weights if name not in self.omits}

    def files(
        self, weights: Mapping[str, Tensor], shape: Shape, dtype: torch.dtype = torch.float32
    ) -> tuple[Config, dict[str, Tensor], dict[str, str]]:
        """config.json, the tensors by this variant's names, and the metadata of the safetensors file."""
        head = Head(self.shaped(shape), weights, dtype)
        kept = {written: weights[name] for written, name in self.names(weights).items()}
        if self.maps == "always both" and "d2t" not in weights:
            kept["d2t"] = torch.zeros(shape.vocab, dtype=torch.int64)
        if self.maps != "d2t" and "d2t" in kept:
            used = kept["d2t"] + torch.arange(len(kept["d2t"]))
            kept["t2d"] = torch.zeros(shape.vocab, dtype=torch.bool).index_fill_(0, used, True)
        tensors = {name: value.to(dtype) if value.is_floating_point() else value for name, value in kept.items()}
        return self.config(head), tensors, dict(self.metadata)

    def answers(self, shape: Shape) -> dict[str, str]:
        """Every override that a user has to give for a head of this shape, boundaries as ``2,4,5``."""
        default = shape.boundaries == shape.default_boundaries
        asked = {
            "never": self.ids == "absent" and not default,
            "unless default": not default,
            "unless last": shape.target_layers not in shape.boundaries,
            "always": True,
        }[self.asks_layers]
        layers = {"aux_layers": ",".join(map(str, shape.boundaries))} if asked else {}
        return {**self.overrides, **layers}

    def facts(self, shape: Shape) -> dict[str, Any]:
        """The whole computation, with the field names of the package's drafter specification.

        The kind of RoPE scaling is ``rope_type``, however the file spells it. ``later_norm`` means nothing in a head of
        one layer.
        """
        shape, mla = self.shaped(shape), self.truth["attention"] == "mla"
        return {
            **self.truth,
            "hidden_size": shape.hidden,
            "target_hidden_size": shape.target_hidden,
            "intermediate_size": shape.inner,
            "num_heads": shape.heads,
            "num_kv_heads": shape.heads if mla else shape.kv_heads,
            "head_dim": shape.nope + shape.rope if mla else shape.head_dim,
            "vocab_size": shape.vocab,
            "draft_vocab_size": shape.draft_vocab if self.truth["vocab_map"] else shape.vocab,
            "boundaries": shape.boundaries if self.truth["use_aux_hidden_state"] else (),
            "rms_norm_eps": shape.rms_norm_eps,
            "rope_theta": shape.rope_theta,
            "rope_scaling": None if shape.rope_scaling is None else scaling(shape.rope_scaling),
            "max_position_embeddings": shape.max_positions,
            "sliding_window": shape.window if self.windowed else None,
            "q_lora_rank": shape.q_lora if mla else None,
            "kv_lora_rank": shape.kv_lora if mla else 0,
            "qk_nope_head_dim": shape.nope if mla else 0,
            "qk_rope_head_dim": shape.rope if mla else 0,
            "v_head_dim": shape.v if mla else 0,
        }


def variant(
    name: str, producer: str, config: Callable[[Head], Config], rename: Callable[[str], str], **more: Any
) -> Variant:
    """A `Variant` whose ``truth`` follows from ``weights``, except for what is computed with the tensors."""
    computed: dict[str, Any] = {
        key: more.pop(key) for key in ("residual", "feedback", "logits", "hidden_act") if key in more
    }
    knobs: dict[str, Any] = dict(more.pop("weights", {}))
    biases = knobs.get("biases", ())
    truth: dict[str, Any] = {
        "residual": "pre",
        "feedback": "pre",
        "logits": "norm",
        "hidden_act": "silu",
        **computed,
        "num_layers": knobs.get("layers", 1),
        "pre_fc_norm": knobs.get("pre_fc_norm", "none"),
        "later_norm": knobs.get("later_norm", "input_layernorm"),
        "qk_norm": knobs.get("qk_norm", False),
        "fc_bias": knobs.get("fc_bias", False),
        "qkv_bias": "qkv" in biases,
        "o_bias": "o" in biases,
        "mlp_bias": "mlp" in biases,
        "own_embedding": bool(knobs.get("own_embedding")),
        "own_head": knobs.get("own_head", True),
        "vocab_map": knobs.get("reduced", True),
        "attention": knobs.get("attention", "gqa"),
        "first_norms": tuple(knobs.get("first_norms", BOTH)),
        "final_norm": knobs.get("final_norm", True),
        "use_aux_hidden_state": knobs.get("use_aux_hidden_state", True),
        "partial_rotary_factor": 1.0,
    }
    return Variant(name, producer, config, rename, weights=knobs, truth=truth, **more)


def plain(name: str) -> str:
    """``layers.0.*``, ``layers.1.*``: the canonical names."""
    return name


def midlayer(name: str) -> str:
    """``midlayer.*`` for layer 0."""
    return name.replace("layers.0.", "midlayer.", 1)


def midlayers(name: str) -> str:
    """``midlayer.0.*``, ``midlayer.1.*``."""
    return re.sub(r"^layers\.", "midlayer.", name)


def yarn(shape: Shape) -> dict[str, Any]:
    """RoPE scaling as in Kimi K2's config, at this shape's context."""
    return {
        "type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": shape.max_positions // 4,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }


def scaling(written: Mapping[str, Any]) -> dict[str, Any]:
    """RoPE scaling with the newer name of its kind."""
    return {"rope_type" if key == "type" else key: value for key, value in written.items()}


def llama(head: Head, *architectures: str, **more: Any) -> Config:
    """The Llama config that most producers start from, as transformers 4 writes it; ``...`` as a value drops a key."""
    shape = head.shape
    config = {
        "architectures": list(architectures),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.inner,
        "max_position_embeddings": shape.max_positions,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": head.layers,
        "num_key_value_heads": shape.kv_heads,
        "pretraining_tp": 1,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_scaling": None if shape.rope_scaling is None else dict(shape.rope_scaling),
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": False,
        "torch_dtype": head.dtype_name,
        "transformers_version": "4.57.1",
        "use_cache": True,
        "vocab_size": shape.vocab,
        "draft_vocab_size": head.draft_vocab,
    }
    return without({**config, **more})


def latent(head: Head) -> Config:
    """The keys of latent attention."""
    shape = head.shape
    return {
        "q_lora_rank": shape.q_lora,
        "kv_lora_rank": shape.kv_lora,
        "qk_nope_head_dim": shape.nope,
        "qk_rope_head_dim": shape.rope,
        "v_head_dim": shape.v,
        "num_key_value_heads": shape.heads,
    }


def without(config: Mapping[str, Any]) -> Config:
    """``config`` less the keys whose value is ``...``."""
    return {key: value for key, value in config.items() if value is not ...}
