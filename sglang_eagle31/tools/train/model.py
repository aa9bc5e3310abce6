"""The draft head in plain torch, with the parameter names of the SpecForge checkpoint layout.

Dimensions: B sequences, n rows, H draft width, H_t target width, K captured states, V_d draft vocabulary, d head width.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VARIANTS = ("eagle3", "eagle31")


@dataclass(frozen=True)
class DraftConfig:
    """Everything that fixes a head's computation."""

    variant: str
    boundaries: tuple[int, ...]
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    window: int | None = None
    """Keys that a query sees, itself included; None: all."""
    trained_depth: int = 0
    """Unrolled steps of the training; 0: unknown. Changes nothing in what the head computes."""

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise ValueError(f"--variant {self.variant}: unknown; fix: one of {', '.join(VARIANTS)}")
        if self.window is not None and self.window < 1:
            raise ValueError(f"--window {self.window}: a window counts its own key; fix: a number of at least 1")

    @property
    def fc_norm(self) -> bool:
        """Each captured state has its own RMSNorm before ``fc`` (EAGLE 3.1)."""
        return self.variant == "eagle31"

    @property
    def norm_output(self) -> bool:
        """The normed state is fed to the next step (EAGLE 3.1) rather than the residual stream (EAGLE-3)."""
        return self.variant == "eagle31"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def config_for(
    target: Any,
    variant: str,
    boundaries: tuple[int, ...],
    draft_vocab: int,
    window: int | None = None,
    trained_depth: int = 0,
) -> DraftConfig:
    """A one-layer head of the target's own shape; ``target`` is a Hugging Face Llama-type config.

    Raises ValueError for a target with scaled RoPE, whose heads this trainer cannot train.
    """
    rope = getattr(target, "rope_parameters", None) or {}
    kind = rope.get("rope_type", "default")
    if kind != "default":
        raise ValueError(f"--target: RoPE type '{kind}', expected plain RoPE; fix: train with SpecForge (--emit)")
    return DraftConfig(
        variant=variant,
        boundaries=boundaries,
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_attention_heads=target.num_attention_heads,
        num_key_value_heads=target.num_key_value_heads,
        head_dim=getattr(target, "head_dim", None) or target.hidden_size // target.num_attention_heads,
        vocab_size=target.vocab_size,
        draft_vocab_size=draft_vocab,
        max_position_embeddings=target.max_position_embeddings,
        rms_norm_eps=target.rms_norm_eps,
        rope_theta=float(rope["rope_theta"] if "rope_theta" in rope else target.rope_theta),
        window=window,
        trained_depth=trained_depth,
    )


def rope_tables(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """``cos, sin [n, d/2]`` of ``positions [n]``."""
    powers = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions[:, None].float() / theta**powers
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply RoPE to ``x [..., d]``, pairing channel ``i`` with ``i + d/2`` (the Llama convention)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Attention(nn.Module):
    """Projections only; what attends to what is the caller's affair.

    The input is ``[embedding; state]``. Its two halves are projected apart: a token's half is the same at every step of
    the unrolled computation, so it is computed once.
    """

    def __init__(self, c: DraftConfig) -> None:
        super().__init__()
        self.q_proj = nn.Linear(2 * c.hidden_size, c.num_attention_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(2 * c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(2 * c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)
        self.hidden, self.kv, self.head_dim = c.hidden_size, c.num_key_value_heads, c.head_dim
        self.widths = (c.num_attention_heads * c.head_dim, 2 * c.num_key_value_heads * c.head_dim)

    def halves(self) -> tuple[Tensor, Tensor]:
        """``(W_embedding, W_state)``, each ``[q + k + v, H]``."""
        whole = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
        embedding, state = whole.split(self.hidden, dim=1)
        return embedding.contiguous(), state.contiguous()

    def queries(self, q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Projected ``[..., q]`` to rotated ``[..., kv, group, d]``; ``cos, sin [..., d/2]``."""
        shaped = q.unflatten(-1, (self.kv, -1, self.head_dim))
        return rotate(shaped, cos[..., None, None, :], sin[..., None, None, :])

    def keys_values(self, kv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Projected ``[..., k + v]`` to rotated keys and values, ``[..., kv, d]`` each."""
        k, v = kv.unflatten(-1, (2, self.kv, self.head_dim)).unbind(-3)
        return rotate(k, cos[..., None, :], sin[..., None, :]), v

    def merge(self, heads: Tensor) -> Tensor:
        """``[..., kv, group, d]`` to ``[..., H]``."""
        merged: Tensor = self.o_proj(heads.flatten(-3))
        return merged


class Mlp(nn.Module):
    def __init__(self, c: DraftConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def gated(self, x: Tensor) -> Tensor:
        """What ``down_proj`` reads, ``[..., intermediate]``."""
        out: Tensor = F.silu(self.gate_proj(x)) * self.up_proj(x)
        return out


class Midlayer(nn.Module):
    def __init__(self, c: DraftConfig) -> None:
        super().__init__()
        self.hidden_norm = nn.RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.input_layernorm = nn.RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = Attention(c)
        self.mlp = Mlp(c)


class DraftHead(nn.Module):
    """One EAGLE-3 or EAGLE 3.1 drafter without its embedding (the target's is shared and frozen)."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.config = config
        self.dropout = 0.0  # of what fc, attention and the MLP's last projection read; in training mode only
        captured = len(config.boundaries)
        self.fc = nn.Linear(captured * config.target_hidden_size, config.hidden_size, bias=False)
        if config.fc_norm:
            norms = [nn.RMSNorm(config.target_hidden_size, config.rms_norm_eps) for _ in range(captured)]
            self.fc_norm = nn.ModuleList(norms)
        self.midlayer = Midlayer(config)
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)

    def normed_states(self, states: Tensor) -> Tensor:
        """What ``fc`` reads, ``[..., K*H_t]``."""
        if not self.config.fc_norm:
            return states
        chunks = states.chunk(len(self.config.boundaries), dim=-1)
        return torch.cat([norm(chunk) for norm, chunk in zip(self.fc_norm, chunks, strict=True)], dim=-1)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout > 0 else x

    def fuse(self, states: Tensor) -> Tensor:
        """Captured states ``[..., K*H_t]`` to the first step's feature ``g [..., H]``; not reduced by autocast."""
        fused: Tensor = self.fc(self._drop(self.normed_states(states)))
        return fused.to(self.fc.weight.dtype)

    def embedding_input(self, embeds: Tensor) -> Tensor:
        """The first half of what attention reads, ``[..., H]``: the normed embedding."""
        return self._drop(self.midlayer.input_layernorm(embeds))

    def state_input(self, g: Tensor) -> Tensor:
        """The second half of what attention reads, ``[..., H]``: the normed feature."""
        return self._drop(self.midlayer.hidden_norm(g))

    def finish(self, g: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """After attention: ``(state for lm_head [..., H], feature for the next step [..., H])``."""
        residual = g + attended
        mlp = self.midlayer.mlp
        residual = residual + mlp.down_proj(self._drop(mlp.gated(self.midlayer.post_attention_layernorm(residual))))
        normed = self.norm(residual)
        return normed, (normed if self.config.norm_output else residual)
