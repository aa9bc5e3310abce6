"""Rotary positions of a draft head, for every kind of scaling that a spec may have.

Frequencies are transformers'; the rotation is by halves (i, i + d/2), or for MLA by pairs (2i, 2i + 1).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sglang_eagle31.head.spec import DrafterSpec


class Rope:
    """RoPE over the leading part of a head."""

    def __init__(self, spec: DrafterSpec) -> None:
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        self.pairs = spec.attention == "mla"
        self.width = spec.qk_rope_head_dim if self.pairs else int(spec.head_dim * spec.partial_rotary_factor)
        config = LlamaConfig(
            hidden_size=self.width,
            num_attention_heads=1,
            head_dim=self.width,
            max_position_embeddings=spec.max_position_embeddings,
            rope_parameters=parameters(spec),
        )
        self.tables: Any = LlamaRotaryEmbedding(config)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """``x`` ``[T, heads, d]`` float32 at ``positions`` ``[T]``; what lies past the rotated width stays."""
        both = self.tables(x, positions.view(1, -1))  # cos, sin [1, T, width]: the half table twice
        cos, sin = (table[0, :, None, : self.width // 2] for table in both)
        turned, rest = x[..., : self.width], x[..., self.width :]
        if self.pairs:
            first, second = turned[..., 0::2], turned[..., 1::2]
        else:
            first, second = turned.chunk(2, dim=-1)
        halves = first * cos - second * sin, second * cos + first * sin
        out = torch.stack(halves, dim=-1).flatten(-2) if self.pairs else torch.cat(halves, dim=-1)
        return torch.cat([out, rest], dim=-1)


def parameters(spec: DrafterSpec) -> dict[str, Any]:
    """The spec's RoPE in transformers' words."""
    scaling = dict(spec.rope_scaling or {})
    kind = scaling.pop("rope_type", scaling.pop("type", "default"))
    if kind == "dynamic":  # changes nothing up to max_position_embeddings, where the head ends
        kind, scaling = "default", {}
    if kind in ("yarn", "deepseek_yarn"):
        kind = "yarn"
        if spec.attention == "mla" and scaling.get("attention_factor") is None:
            scaling["attention_factor"] = _deepseek_factor(scaling)
    return {"rope_type": kind, "rope_theta": spec.rope_theta, **scaling}


def _deepseek_factor(scaling: dict[str, Any]) -> float:
    """DeepSeek-V2's factor on cos and sin: mscale(``mscale``) / mscale(``mscale_all_dim``), 1 and 0 when not stated."""

    def mscale(weight: float) -> float:
        return 1.0 if scaling["factor"] <= 1 else 0.1 * weight * math.log(scaling["factor"]) + 1.0

    one, other = scaling.get("mscale"), scaling.get("mscale_all_dim")
    return mscale(1.0 if one is None else one) / mscale(0.0 if other is None else other)
