"""Small draft heads on disk, in the layout of each producer, with a knob for everything that a test bends."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from sglang_eagle31.drafter.checkpoint import Checkpoint
from sglang_eagle31.drafter.reading import Target

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
    "safeailab": {"architectures": ["LlamaForCausalLM"]},
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
