"""config.json as a producer nests it, read with types; what nobody read and could change the computation is found."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

EAGLE = "eagle_config."
SMALLEST, LARGEST = 1e-37, 3e38

# Keys that change what a head computes, with the values under which nothing changes.
SEMANTIC: Mapping[str, tuple[Any, ...]] = {
    "norm_before_residual": (None, False),
    "norm_before_fc": (None, False),
    "fc_norm": (None, False),
    "use_aux_norm": (None, False),
    "norm_output": (None, False),
    "return_hidden_post_norm": (None, False),
    "use_aux_hidden_state": (None, True),
    "use_input_layernorm_in_first_layer": (None, True),
    "use_last_layernorm": (None, True),
    "use_mtp_layernorm": (None, False),
    "next_layer_regular": (None, True),
    "eh_proj_before_attn": (None, False),
    "eh_proj_bias": (None, False),
    "parallel_drafting": (None, False),
    "parallel_draft_step": (None, 1),
    "parallel_draft_heads_num_layers": (None, 0, 1),
    "mask_token_id": (None,),
    "ptd_token_id": (None,),
    "pard_token": (None,),
    "dflash_config": (None,),
    "transformer_layer_config": (None,),
    "num_depths": (None,),
    "sliding_window": (None,),
    "use_sliding_window": (None, False),
    "partial_rotary_factor": (None, 1),
    "logit_scale": (None, 1),
    "final_logit_softcapping": (None,),
    "attn_logit_softcapping": (None,),
    "residual_multiplier": (None, 1),
    "embedding_multiplier": (None, 1),
    "attention_multiplier": (None,),
    "logits_scaling": (None, 1),
    "quantization_config": (None,),
    "compression_config": (None,),
    "mla_use_nope": (None, False),
    "mla_use_output_gate": (None, False),
    "hidden_act": (None, "silu"),
    "hidden_activation": (None, "silu"),
    "query_pre_attn_scalar": (None,),
    "attn_output_gate": (None, False),
}
# A key that nobody knows is refused if its name speaks of the computation.
SUSPECT = re.compile(r"norm|residual|feedback|fuse|fusion|mask_token|parallel|eagle|aux|softcap|nope|alibi")
HARMLESS = re.compile(
    r"^(rms_norm_eps|layer_norm_eps|norm_topk_prob|norm_eps|initializer_range|rope_(theta|scaling|parameters|type)|eagle_config|target_.*|speculators_.*"
    r"|eagle_aux_hidden_state_layer_ids|num_aux_hidden_states|use_qk_norm|use_parallel_embedding|router_aux_loss_coef"
    r"|aux_loss_alpha|seq_aux|pretraining_tp|sglang_eagle31_.*|eagle31_.*|tensor_parallel.*|output_router_logits"
    r"|parallel_draft_heads_num_layers|norm_before_gate|_?torchspec_version)$"
)


@dataclass(frozen=True)
class Found:
    """A value of config.json and where it stands."""

    value: Any
    where: str

    @property
    def source(self) -> str:
        """For `DrafterSpec.sources`."""
        return f"config {self.where}"


@dataclass
class Keys:
    """Typed access to config.json.

    Attributes:
        config: config.json.
        places: prefixes under which a key is looked for, in order; ``""`` is the top level, ``eagle_config.`` a
            nested object.
        defaults: what the producer's config class takes for a key that is not written.
        class_name: of that config class, for sources.
        refusals: an ill-typed value is reported here, and reads as absent.
        read: dotted keys that were read.
    """

    config: Mapping[str, Any]
    places: tuple[str, ...] = ("",)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    class_name: str = "the Llama config"
    refusals: list[str] = field(default_factory=list)
    read: set[str] = field(default_factory=set)

    def nested(self, place: str) -> Mapping[str, Any]:
        """The object at a place; empty when there is none."""
        inner = self.config.get(place.rstrip(".")) if place else self.config
        return inner if isinstance(inner, Mapping) else {}

    def find(self, name: str, *places: str) -> Found | None:
        """The first value of a key that is there and not null."""
        found = None
        for place in places or self.places:
            self.read.add(place + name)
            value = self.nested(place).get(name)
            if value is None:
                continue
            if found is None:
                found = Found(value, place + name)
            elif found.value != value:
                self._refuse(
                    f"{found.where}={found.value!r} and {place}{name}={value!r}; fix: keep the one it was trained with"
                )
        return found

    def flag(self, name: str, *places: str) -> Found | None:
        """A truth value."""
        return self._typed(name, places, lambda value: isinstance(value, bool), "true or false")

    def count(self, name: str, *places: str) -> Found | None:
        """A positive integer."""
        return self._typed(name, places, is_count, "a positive integer")

    def number(self, name: str, *places: str) -> Found | None:
        """A positive, finite number."""
        return self._typed(name, places, is_number, "a positive number")

    def text(self, name: str, *places: str) -> Found | None:
        """A string."""
        return self._typed(name, places, lambda value: isinstance(value, str), "text")

    def mapping(self, name: str, *places: str) -> Found | None:
        """An object."""
        return self._typed(name, places, lambda value: isinstance(value, Mapping), "an object")

    def ids(self, name: str, *places: str) -> Found | None:
        """A list of integers."""
        return self._typed(name, places, _is_ids, "a list of integers")

    def has(self, name: str) -> bool:
        """Whether a key is written, if only as null."""
        return any(name in self.nested(place) for place in self.places)

    def default(self, name: str) -> Any:
        """What the producer's config class takes when the key is not written."""
        return self.defaults.get(name)

    def _typed(self, name: str, places: Sequence[str], fits: Any, expected: str) -> Found | None:
        found = self.find(name, *places)
        if found is None or fits(found.value):
            return found
        self._refuse(f"{found.where}={found.value!r}, expected {expected}; fix: correct it")
        return None

    def _refuse(self, what: str) -> None:
        refusal = f"config.json has {what}"
        if refusal not in self.refusals:
            self.refusals.append(refusal)

    def check_sections(self) -> None:
        """Refuse a nested object that is none."""
        for place in dict.fromkeys((EAGLE, *self.places)):
            self.mapping(place.rstrip("."), "") if place else None

    def astray(self, ignored: frozenset[str] = frozenset()) -> list[Found]:
        """Keys that are read elsewhere, and stand with another value where nobody reads them."""
        read: dict[str, list[str]] = {}
        for dotted in self.read:
            place, _, name = dotted.rpartition(".")
            read.setdefault(name, []).append(f"{place}." if place else "")
        left = []
        for place in dict.fromkeys(("", EAGLE, *self.places)):
            for name, value in self.nested(place).items():
                if name not in read or place in read[name] or value is None or {name, place + name} & ignored:
                    continue
                if all(self.nested(other).get(name) != value for other in read[name]):
                    left.append(Found(value, place + name))
        return left

    def unread(self, ignored: frozenset[str] = frozenset()) -> list[Found]:
        """Keys that were not read and could change the computation, outside the ``ignored`` ones."""
        left = []
        for place in dict.fromkeys(("", EAGLE, *self.places)):
            for name, value in self.nested(place).items():
                dotted = place + name
                if dotted in self.read or dotted in ignored or name in ignored:
                    continue
                if _is_nested(name, value, self.places) or _is_neutral(name, value):
                    continue
                left.append(Found(value, dotted))
        return left


def is_count(value: Any) -> bool:
    """A positive integer that a tensor's size could be."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31


def is_number(value: Any) -> bool:
    """A positive number that float32 can hold."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and SMALLEST <= value <= LARGEST


def _is_ids(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, int) and not isinstance(item, bool) for item in value)
    )


def _is_nested(name: str, value: Any, places: tuple[str, ...]) -> bool:
    return isinstance(value, Mapping) and (name == EAGLE.rstrip(".") or f"{name}." in places)


def _is_neutral(name: str, value: Any) -> bool:
    if name in SEMANTIC:
        return any(value == plain and isinstance(value, bool) == isinstance(plain, bool) for plain in SEMANTIC[name])
    return value is None or HARMLESS.match(name) is not None or SUSPECT.search(name) is None
