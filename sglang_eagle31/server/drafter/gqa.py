"""Grouped-query attention of a draft layer, on SGLang's linear layers, RoPE and attention backends."""

from __future__ import annotations

import math
from typing import Any

import torch
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import QKVParallelLinear, RowParallelLinear
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.layers.rotary_embedding import get_rope
from sglang.srt.runtime_context import get_parallel
from sglang.srt.utils import add_prefix
from torch import nn

from sglang_eagle31.head.spec import DrafterSpec


class GqaAttention(nn.Module):
    """Self-attention of one draft layer; wide layers read ``[embedding; state]``."""

    def __init__(self, spec: DrafterSpec, layer_id: int, quant_config: Any, prefix: str) -> None:
        super().__init__()
        tp_size = get_parallel().tp_size
        self.head_dim = spec.head_dim
        self.num_heads = spec.num_heads // tp_size
        self.num_kv_heads = max(1, spec.num_kv_heads // tp_size)
        width_in = (2 if layer_id in spec.wide_layers else 1) * spec.hidden_size
        self.qkv_proj = QKVParallelLinear(
            width_in,
            spec.head_dim,
            spec.num_heads,
            spec.num_kv_heads,
            bias=spec.qkv_bias,
            quant_config=quant_config,
            prefix=add_prefix("qkv_proj", prefix),
        )
        self.o_proj = RowParallelLinear(
            spec.num_heads * spec.head_dim,
            spec.hidden_size,
            bias=spec.o_bias,
            quant_config=quant_config,
            prefix=add_prefix("o_proj", prefix),
        )
        self.q_norm = RMSNorm(spec.head_dim, eps=spec.rms_norm_eps) if spec.qk_norm else None
        self.k_norm = RMSNorm(spec.head_dim, eps=spec.rms_norm_eps) if spec.qk_norm else None
        self.rotary_emb = rotary(spec)
        self.attn = RadixAttention(
            self.num_heads,
            self.head_dim,
            spec.softmax_scale or spec.head_dim**-0.5,
            num_kv_heads=self.num_kv_heads,
            layer_id=layer_id,
            sliding_window_size=window(spec),
            prefix=add_prefix("attn", prefix),
        )

    def forward(self, positions: torch.Tensor, states: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        """``states`` is ``[tokens, 2H]`` in a wide layer and ``[tokens, H]`` in others; gives ``[tokens, H]``."""
        qkv, _ = self.qkv_proj(states)
        sizes = [self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim, self.num_kv_heads * self.head_dim]
        q, k, v = qkv.split(sizes, dim=-1)
        if self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q.reshape(-1, self.head_dim)).view(q.shape)
            k = self.k_norm(k.reshape(-1, self.head_dim)).view(k.shape)
        q, k = self.rotary_emb(positions, q, k)
        out, _ = self.o_proj(self.attn(q, k, v, forward_batch))
        return out  # type: ignore[no-any-return]


def rotary(spec: DrafterSpec) -> Any:
    """RoPE over the first ``partial_rotary_factor`` of each head, halves rotated."""
    scaling = dict(spec.rope_scaling) if spec.rope_scaling else None
    if scaling and scaling["rope_type"] == "dynamic":
        # Dynamic scaling changes nothing up to max_position_embeddings, where the head ends; SGLang's changes all.
        scaling = None
    if scaling and scaling["rope_type"] == "yarn":
        scaling |= {"mscale": 1.0, "mscale_all_dim": 1.0, "attn_factor": yarn_factor(scaling)}
    return get_rope(
        spec.head_dim,
        rotary_dim=int(spec.head_dim * spec.partial_rotary_factor),
        max_position=spec.max_position_embeddings,
        base=spec.rope_theta,
        rope_scaling=scaling,
    )


def yarn_factor(scaling: dict[str, Any]) -> float:
    """What yarn multiplies cos and sin with, as transformers has it; SGLang knows no ``attention_factor``.

    The factor that is stated, or mscale(``mscale``) over mscale(``mscale_all_dim``) if both are, or mscale(1), where
    mscale(m) = 0.1 m ln(factor) + 1 for a factor above 1 (YaRN, arXiv 2309.00071, section 3.4).
    """
    stated, over, under = (scaling.get(name) for name in ("attention_factor", "mscale", "mscale_all_dim"))
    if stated is not None:
        return float(stated)
    log = math.log(max(1.0, scaling["factor"]))
    return (0.1 * over * log + 1) / (0.1 * under * log + 1) if over and under else 0.1 * log + 1


def window(spec: DrafterSpec) -> int:
    """SGLang's window counts the keys *before* the query, so a head trained to see W keys with itself needs W - 1."""
    return spec.sliding_window - 1 if spec.sliding_window else -1
