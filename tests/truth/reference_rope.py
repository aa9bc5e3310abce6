"""Rotary positions of the reference: frequencies of each kind by its published formula, and the rotation."""

import math
from typing import Any, Protocol

import torch
from torch import Tensor


class RopeSwitches(Protocol):
    """The part of `Switches` that positions depend on."""

    @property
    def attention(self) -> str: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def qk_nope_head_dim(self) -> int: ...
    @property
    def qk_rope_head_dim(self) -> int: ...
    @property
    def rope_theta(self) -> float: ...
    @property
    def rope_scaling(self) -> dict[str, Any] | None: ...
    @property
    def partial_rotary_factor(self) -> float: ...
    @property
    def max_position_embeddings(self) -> int: ...


def rotate(x: Tensor, positions: Tensor, s: RopeSwitches) -> Tensor:
    """Rotate x [T, heads, d] by positions [T]: halves (i, i + d/2) of the leading part, or for MLA pairs (2i, 2i+1)."""
    mla = s.attention == "mla"
    dim = s.qk_rope_head_dim if mla else int(s.head_dim * s.partial_rotary_factor)
    inv_freq, factor = frequencies(dim, positions, s)
    angle = positions[:, None].float() * inv_freq  # [T, dim / 2]
    cos, sin = (angle.cos() * factor)[:, None], (angle.sin() * factor)[:, None]
    turned, rest = x[..., :dim], x[..., dim:]
    if mla:
        even, odd = turned[..., 0::2], turned[..., 1::2]
        return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)
    first, second = turned.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def frequencies(dim: int, positions: Tensor, s: RopeSwitches) -> tuple[Tensor, float]:
    """Inverse frequencies [dim / 2], and the factor on cos and sin. Raises ValueError for an unknown kind."""
    plain = 1.0 / s.rope_theta ** (torch.arange(0, dim, 2).float() / dim)
    scaling = s.rope_scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return plain, 1.0
    if kind == "linear":
        return plain / scaling["factor"], 1.0
    if kind == "dynamic":
        if int(positions.max()) >= s.max_position_embeddings:
            raise ValueError("dynamic RoPE past max_position_embeddings depends on how long the sequence becomes")
        return plain, 1.0
    if kind == "llama3":
        return llama3(plain, scaling, s.max_position_embeddings), 1.0
    if kind == "yarn":
        return yarn(plain, dim, scaling, s), yarn_factor(scaling, mla=s.attention == "mla")
    raise ValueError(f"rope_scaling kind {kind!r}")


def llama3(plain: Tensor, scaling: dict[str, Any], max_positions: int) -> Tensor:
    """Llama 3.1: long waves stretched, short ones kept, those between blended by turns in the old context."""
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling.get("original_max_position_embeddings", max_positions) * plain / (2 * math.pi)
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return keep * plain + (1 - keep) * plain / factor


def yarn(plain: Tensor, dim: int, scaling: dict[str, Any], s: RopeSwitches) -> Tensor:
    """YaRN (arXiv 2309.00071): below `beta_slow` turns in the old context stretched, above `beta_fast` kept."""
    old = scaling.get("original_max_position_embeddings", s.max_position_embeddings)

    def index(turns: float) -> float:
        return dim * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(s.rope_theta))

    low, high = index(scaling.get("beta_fast") or 32), index(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2).float() - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain * (1 - ramp) + plain / scaling["factor"] * ramp


def yarn_mscale(factor: float, weight: float = 1.0) -> float:
    """0.1 * weight * ln(factor) + 1, and 1 where nothing is stretched."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def yarn_factor(scaling: dict[str, Any], mla: bool) -> float:
    """YaRN's factor on cos and sin.

    Stated as `attention_factor`, or else mscale(factor) of `mscale` over that of `mscale_all_dim`. Where only one of
    the two is stated, transformers ignores it, and DeepSeek's code, which is what MLA heads are trained with, takes 1
    and 0 for those that are absent.
    """
    factor, stated = scaling["factor"], scaling.get("attention_factor")
    if stated is not None:
        return float(stated)
    mscale, all_dim = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if not (mscale and all_dim):
        if not mla:
            return yarn_mscale(factor)
        mscale, all_dim = 1.0 if mscale is None else mscale, 0.0 if all_dim is None else all_dim
    return yarn_mscale(factor, mscale) / yarn_mscale(factor, all_dim)


def mla_scale(s: RopeSwitches) -> float:
    """Softmax scale of MLA: YaRN's mscale for `mscale_all_dim`, squared, over sqrt(nope + rope). DeepSeek-V2."""
    scale: float = (s.qk_nope_head_dim + s.qk_rope_head_dim) ** -0.5
    scaling = s.rope_scaling or {}
    if scaling.get("rope_type") == "yarn" and scaling.get("mscale_all_dim"):
        scale *= yarn_mscale(scaling["factor"], scaling["mscale_all_dim"]) ** 2
    return scale
