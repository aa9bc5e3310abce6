"""One draft head under canonical names: the numbers that every producer's files of `producers` hold.

Each tensor is drawn from a stream of its own, seeded by its name, so a switch adds or removes tensors and leaves the
others as they are: all variants of one seed are the same head as far as their formats allow.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BOTH = ("input_layernorm", "hidden_norm")
"""The norms before layer 0's attention: of the embedding, and of the fused or fed-back state."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a head and of its target.

    ``boundaries`` count residual streams: b is the input of block b. ``window`` is the number of keys that a query of
    a windowed variant sees, itself included. ``rope_scaling`` has no base in it. The last five are for latent attention
    (``q_lora`` None: one query projection).
    """

    hidden: int = 64
    target_hidden: int = 64
    inner: int = 96
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 16
    vocab: int = 512
    draft_vocab: int = 384
    target_layers: int = 8
    boundaries: tuple[int, ...] = (2, 4, 5)
    rope_theta: float = 50000.0
    rope_scaling: Mapping[str, Any] | None = None
    rms_norm_eps: float = 1e-5
    max_positions: int = 8192
    window: int = 8
    target_architecture: str = "LlamaForCausalLM"
    q_lora: int | None = 32
    kv_lora: int = 16
    nope: int = 16
    rope: int = 8
    v: int = 16

    @property
    def default_boundaries(self) -> tuple[int, int, int]:
        """The triple that heads without layer ids are trained on: ``2, N // 2, N - 3``."""
        return 2, self.target_layers // 2, self.target_layers - 3


class _Drawn(dict[str, Tensor]):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def stream(self, name: str) -> torch.Generator:
        return torch.Generator().manual_seed(zlib.crc32(f"{self.seed}:{name}".encode()))

    def linear(self, name: str, rows: int, columns: int, bias: bool = False, scale: float = 1.0) -> None:
        """Weights that keep the variance of their input times ``scale**2``."""
        weight = f"{name}.weight"
        self[weight] = scale / columns**0.5 * torch.randn(rows, columns, generator=self.stream(weight))
        if bias:
            self[f"{name}.bias"] = 0.3 * torch.randn(rows, generator=self.stream(f"{name}.bias"))

    def norm(self, name: str, width: int) -> None:
        """Gains in 0.5..1.5: a norm that is left out, doubled or taken for another one shows."""
        self[f"{name}.weight"] = 0.5 + torch.rand(width, generator=self.stream(f"{name}.weight"))


def _attention(out: _Drawn, at: str, shape: Shape, width: int, qk_norm: bool, biases: Sequence[str]) -> None:
    for name, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
        scale = 1.0 if name == "v" else 1.3
        out.linear(f"{at}.{name}_proj", heads * shape.head_dim, width, "qkv" in biases, scale)
    for name in ("q_norm", "k_norm") if qk_norm else ():
        out.norm(f"{at}.{name}", shape.head_dim)
    out.linear(f"{at}.o_proj", shape.hidden, shape.heads * shape.head_dim, "o" in biases, 2.0)


def _latent_attention(out: _Drawn, at: str, shape: Shape, width: int) -> None:
    queries = shape.heads * (shape.nope + shape.rope)
    if shape.q_lora is None:
        out.linear(f"{at}.q_proj", queries, width, scale=1.3)
    else:
        out.linear(f"{at}.q_a_proj", shape.q_lora, width)
        out.norm(f"{at}.q_a_layernorm", shape.q_lora)
        out.linear(f"{at}.q_b_proj", queries, shape.q_lora, scale=1.3)
    out.linear(f"{at}.kv_a_proj_with_mqa", shape.kv_lora + shape.rope, width, scale=1.3)
    out.norm(f"{at}.kv_a_layernorm", shape.kv_lora)
    out.linear(f"{at}.kv_b_proj", shape.heads * (shape.nope + shape.v), shape.kv_lora)
    out.linear(f"{at}.o_proj", shape.hidden, shape.heads * shape.v, scale=2.0)


def _entrance(out: _Drawn, shape: Shape, pre_fc_norm: str, fc_bias: bool) -> None:
    """`fc` and the norm before it."""
    captured = len(shape.boundaries)
    out.linear("fc", shape.hidden, captured * shape.target_hidden, fc_bias)
    for k in range(captured if pre_fc_norm == "fc_norm" else 0):
        out.norm(f"fc_norm.{k}", shape.target_hidden)
    if pre_fc_norm == "input_norm":
        out.norm("input_norm", captured * shape.target_hidden)


def _layer(
    out: _Drawn,
    at: str,
    shape: Shape,
    width: int,
    norms: Sequence[str],
    qk_norm: bool,
    biases: Sequence[str],
    attention: str,
) -> None:
    """A decoder layer whose attention reads ``width`` columns."""
    for norm in (*norms, "post_attention_layernorm"):
        out.norm(f"{at}.{norm}", shape.hidden)
    if attention == "mla":
        _latent_attention(out, f"{at}.self_attn", shape, width)
    else:
        _attention(out, f"{at}.self_attn", shape, width, qk_norm, biases)
    for name in ("gate", "up"):
        out.linear(f"{at}.mlp.{name}_proj", shape.inner, shape.hidden, "mlp" in biases)
    out.linear(f"{at}.mlp.down_proj", shape.hidden, shape.inner, "mlp" in biases, 2.0)


def canonical(
    shape: Shape,
    seed: int = 0,
    *,
    pre_fc_norm: str = "none",
    layers: int = 1,
    later_norm: str = "input_layernorm",
    qk_norm: bool = False,
    biases: Sequence[str] = (),
    fc_bias: bool = False,
    own_embedding: Tensor | bool | None = None,
    own_head: bool = True,
    reduced: bool = True,
    attention: str = "gqa",
    first_norms: Sequence[str] = BOTH,
    final_norm: bool = True,
    use_aux_hidden_state: bool = True,
) -> dict[str, Tensor]:
    """Random float32 weights of a head whose every part matters, activations of order one.

    Args:
        shape: sizes.
        seed: of all streams.
        pre_fc_norm: ``none``, ``fc_norm`` or ``input_norm``.
        layers: decoder layers; later ones are ``[*, H]`` wide, or ``[*, 2H]`` with ``later_norm="both"``.
        later_norm: ``input_layernorm``, ``hidden_norm`` or ``both``.
        qk_norm: norms over each head's queries and keys.
        biases: any of ``qkv``, ``o`` and ``mlp``.
        fc_bias: a bias of ``fc``.
        own_embedding: ``[V, H]``, or True to draw one.
        own_head: whether there is ``lm_head`` ``[Vd, H]``.
        reduced: whether the head proposes ``draft_vocab`` tokens only; then ``d2t`` ``[Vd]`` int64 holds offsets.
        attention: ``gqa`` or ``mla``.
        first_norms: which norms layer 0 has.
        final_norm: whether there is a norm before ``lm_head``.
        use_aux_hidden_state: without it there is no ``fc``.
    """
    out = _Drawn(seed)
    if use_aux_hidden_state:
        _entrance(out, shape, pre_fc_norm, fc_bias)
    for index in range(layers):
        norms = first_norms if index == 0 else BOTH if later_norm == "both" else (later_norm,)
        width = shape.hidden * (2 if index == 0 or later_norm == "both" else 1)
        _layer(out, f"layers.{index}", shape, width, norms, qk_norm, biases, attention)
    if final_norm:
        out.norm("norm", shape.hidden)
    if own_head:
        out.linear("lm_head", shape.draft_vocab if reduced else shape.vocab, shape.hidden, scale=2.0)
    if isinstance(own_embedding, Tensor):
        out["embed_tokens.weight"] = own_embedding.clone()
    elif own_embedding:
        out["embed_tokens.weight"] = torch.randn(shape.vocab, shape.hidden, generator=out.stream("embed_tokens"))
    if reduced:
        used = torch.randperm(shape.vocab, generator=out.stream("d2t"))[: shape.draft_vocab].sort().values
        out["d2t"] = used - torch.arange(shape.draft_vocab)
    return dict(out)
