"""Small draft heads: written with a knob for everything that a test bends, or bent in memory from a producer's files.

`write` makes a head of 16 wide on disk; `kept` and `bend` take a head of `truth.producers` and change its headers.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from truth import producers
from truth.producers import VARIANTS, Shape

from sglang_eagle31.head.check import resolve
from sglang_eagle31.head.checkpoint import Checkpoint, Tensor
from sglang_eagle31.head.reading import Reading, Target

HIDDEN, INNER = 16, 20
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 4
VOCAB, DRAFT_VOCAB = 40, 12
USED = (0, 1, 2, 5, 6, 9, 10, 11, 20, 30, 31, 39)
"""Target tokens of the reduced vocabulary."""
IDS = "eagle_aux_hidden_state_layer_ids"

LAYOUTS: Mapping[str, dict[str, Any]] = {
    "native": {
        "architectures": ["LlamaForCausalLMEagle3"],
        "sglang_eagle31_version": "0.1.0",
        "fc_norm": True,
        "norm_output": True,
        "eagle_config": {IDS: [1, 5, 8]},
    },
    "specforge": {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": {IDS: [1, 5, 8]}},
    "specforge31": {
        "architectures": ["LlamaForCausalLMEagle3"],
        "fc_norm": True,
        "norm_output": True,
        "eagle_config": {IDS: [1, 5, 8], "use_aux_hidden_state": True},
    },
    "safeailab": {"architectures": ["LlamaForCausalLM"], "rope_theta": 10000.0},
    "vllm": {"architectures": ["Eagle3Qwen3ForCausalLM"], IDS: [2, 6, 9], "norm_before_residual": False},
    "torchspec": {
        "architectures": ["LlamaForCausalLMEagle3"],
        "_torchspec_version": "0.2",
        "fc_norm": True,
        "norm_output": True,
        "eagle_config": {IDS: [1, 5, 8]},
    },
}
"""What each producer adds to the config.json that all share."""

PRODUCERS = {
    "native": "sglang-eagle31",
    "specforge": "SpecForge",
    "specforge31": "SpecForge",
    "safeailab": "SafeAILab EAGLE-3",
    "vllm": "vLLM",
    "torchspec": "TorchSpec",
}


def target(**changes: Any) -> Target:
    """A target of 12 layers, so that the default boundaries are 2, 6 and 9."""
    facts = {
        "architecture": "LlamaForCausalLM",
        "num_layers": 12,
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "context_length": 512,
        "dtype": "bfloat16",
    }
    return Target(**{**facts, **changes})


class Drawn(dict[str, torch.Tensor]):
    """Random tensors by name."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)

    def linear(self, name: str, rows: int, columns: int, bias: bool = False) -> None:
        """A projection's weight and, if asked, bias."""
        self[f"{name}.weight"] = torch.randn(rows, columns, generator=self.generator).bfloat16()
        if bias:
            self[f"{name}.bias"] = torch.randn(rows, generator=self.generator).bfloat16()

    def norm(self, name: str, width: int) -> None:
        """A norm's gain."""
        self[f"{name}.weight"] = (1 + 0.1 * torch.randn(width, generator=self.generator)).bfloat16()

    def layer(self, index: int, norm: str, qk_norm: bool, biases: Sequence[str]) -> None:
        """One decoder layer; the first is twice as wide and has another name."""
        prefix, width = ("midlayer", 2 * HIDDEN) if index == 0 else (f"layers.{index}", HIDDEN)
        for name in (*(("input_layernorm", "hidden_norm") if index == 0 else (norm,)), "post_attention_layernorm"):
            self.norm(f"{prefix}.{name}", HIDDEN)
        for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            self.linear(f"{prefix}.self_attn.{name}_proj", heads * HEAD_DIM, width, "qkv" in biases)
        for name in ("q_norm", "k_norm") if qk_norm else ():
            self.norm(f"{prefix}.self_attn.{name}", HEAD_DIM)
        self.linear(f"{prefix}.self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM, "o" in biases)
        for name, rows, columns in (("gate", INNER, HIDDEN), ("up", INNER, HIDDEN), ("down", HIDDEN, INNER)):
            self.linear(f"{prefix}.mlp.{name}_proj", rows, columns, "mlp" in biases)


def tensors(
    *,
    layers: int = 1,
    captured: int = 3,
    fc_norm: bool = False,
    qk_norm: bool = False,
    biases: Sequence[str] = (),
    later_norm: str = "input_layernorm",
    target_hidden: int = HIDDEN,
    embedding: bool = False,
    head: bool = True,
    reduced: bool = True,
    t2d: bool = True,
) -> dict[str, torch.Tensor]:
    """The tensors of a head by their producers' names; ``biases`` is a choice of ``fc``, ``qkv``, ``o`` and ``mlp``."""
    out = Drawn()
    out.linear("fc", HIDDEN, captured * target_hidden, "fc" in biases)
    out.norm("norm", HIDDEN)
    for k in range(captured if fc_norm else 0):
        out.norm(f"fc_norm.{k}", target_hidden)
    for index in range(layers):
        out.layer(index, later_norm, qk_norm, biases)
    if embedding:
        out.linear("embed_tokens", VOCAB, HIDDEN)
    used = torch.tensor(USED if reduced else range(VOCAB))
    if head:
        out.linear("lm_head", len(used), HIDDEN)
    if t2d:
        out["t2d"] = torch.isin(torch.arange(VOCAB), used)
    out["d2t"] = used - torch.arange(len(used))
    return out


def write(
    folder: Path,
    layout: str = "specforge",
    config: Mapping[str, Any] | None = None,
    change: Mapping[str, torch.Tensor | None] | None = None,
    metadata: dict[str, str] | None = None,
    **knobs: Any,
) -> Path:
    """Write a head.

    Args:
        folder: made if it is not there.
        layout: a key of `LAYOUTS`.
        config: keys on top of the layout's; ``...`` as a value removes the key.
        change: tensors on top of those of `tensors`; None removes the tensor.
        metadata: of the safetensors file.
        knobs: of `tensors`; ``fc_norm`` follows the layout's config.
    """
    merged = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": knobs.get("layers", 1),
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB if knobs.get("reduced", True) else VOCAB,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 512,
        "hidden_act": "silu",
        **LAYOUTS[layout],
        **(config or {}),
    }
    merged = {key: value for key, value in merged.items() if value is not ...}
    knobs.setdefault("fc_norm", bool(LAYOUTS[layout].get("fc_norm")))
    data = {name: value for name, value in {**tensors(**knobs), **(change or {})}.items() if value is not None}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(merged))
    save_file(data, folder / "model.safetensors", metadata)
    return folder


def read(folder: Path, layout: str = "specforge", **how: Any) -> Checkpoint:
    """`write` a head and read its headers."""
    return Checkpoint.read(write(folder, layout, **how))


SHAPE = Shape()
"""Of the heads of `kept`: 64 wide, a target of 8 layers, whose default boundaries are 2, 4 and 5."""
_FOLDER = tempfile.TemporaryDirectory()
NORMED_TWICE = ("modelopt_hf", "modelopt_hf_two_layers", "modelopt_mla", "nvidia_fc_bias")
"""Variants whose files do not show whether the first layer norms the state twice."""
EXAMPLES = {
    "native": "eagle31_native",
    "torchspec_mla": "torchspec_mla",
    "torchspec": "torchspec31",
    "speculators": "speculators",
    "nemo": "nemo",
    "angelslim": "angelslim",
    "vllm": "vllm",
    "specdrift": "specdrift_legacy",
    "nvidia": "nvidia_post_norm",
    "modelopt": "modelopt_megatron_full_vocab",
    "specforge": "specforge",
    "safeailab": "safeailab",
}
"""A variant of each dialect; none leaves a question open."""


@functools.cache
def kept(variant: str, shape: Shape = SHAPE) -> Checkpoint:
    """A producer's head, written once; do not change its files."""
    folder = Path(_FOLDER.name) / f"{variant}-{hash(shape)}"
    return Checkpoint.read(producers.write(folder, variant, shape))


def target_of(shape: Shape = SHAPE, **changes: Any) -> Target:
    """The target of a head of ``shape``."""
    known = Target(
        shape.target_architecture, shape.target_layers, shape.target_hidden, shape.vocab, shape.max_positions
    )
    return dataclasses.replace(known, **changes)


def answers(variant: str, shape: Shape = SHAPE) -> dict[str, str]:
    """The ``--eagle31-override`` pairs that settle what a producer's files leave open."""
    known = dict(VARIANTS[variant].answers(shape))
    logits = {"logits_norm": str(known.pop("logits") == "norm").lower()} if "logits" in known else {}
    return {**known, **logits, **({"double_norm": "false"} if variant in NORMED_TWICE else {})}


def bend(
    head: Checkpoint,
    config: Mapping[str, Any] | None = None,
    eagle: Mapping[str, Any] | None = None,
    nested: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """``head`` with other headers.

    Args:
        head: what to start from; it is left as it is.
        config, eagle, nested: keys of config.json, of its ``eagle_config`` and of its ``transformer_layer_config``;
            ``...`` removes a key.
        tensors: a shape, or a shape and a dtype, by name; None removes the tensor.
    """
    made = {**head.config, **(config or {})}
    for name, inner in (("eagle_config", eagle), ("transformer_layer_config", nested)):
        if inner:
            made[name] = _without({**made.get(name, {}), **inner})
    kept_tensors = dict(head.tensors)
    file = next(iter(head.tensors.values())).file
    for name, value in (tensors or {}).items():
        if value is None:
            del kept_tensors[name]
            continue
        shape, dtype = value if value and isinstance(value[0], tuple) else (value, "F32")
        kept_tensors[name] = Tensor(shape, dtype, file)
    return dataclasses.replace(head, config=_without(made), tensors=kept_tensors)


def _without(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if value is not ...}


@dataclass(frozen=True)
class Case:
    """A head that is refused: what is bent, and what the only reason has to say."""

    variant: str
    named: tuple[str, ...]
    bent: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, str] = field(default_factory=dict)
    target: Mapping[str, Any] = field(default_factory=dict)

    def resolve(self, **overrides: str) -> tuple[Reading, list[str]]:
        """The reading and the reasons, with these overrides on top of the case's."""
        given = {**self.overrides, **overrides}
        return resolve(bend(kept(self.variant), **self.bent), target_of(**self.target), given)

    def reason(self) -> str:
        """The one reason; fails if there are none or several, or if it says no fix."""
        _, reasons = self.resolve()
        assert len(reasons) == 1, reasons
        assert "fix: " in reasons[0], reasons
        missing = [part for part in self.named if part not in reasons[0]]
        assert not missing, f"{missing} not in {reasons[0]!r}"
        return reasons[0]

    def __str__(self) -> str:
        return f"{self.variant}: {self.named[0]}"
