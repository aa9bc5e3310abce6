"""DrafterSpec: what a draft head computes, fully resolved, and where each fact came from.

Notation (all producers' equations are this one with switches): the target's boundary ``H_b`` is the residual stream
before block ``b``; ``x`` embeds the next token; ``g`` is the fused target state at a round's first step and the
fed-back state later.

    u = concat_k H_{b_k}        fc_norm: g = fc(concat_k LN_k(H_{b_k}))    input_norm: g = fc(LN(u))    none: g = fc(u)
    layer 0: a = [LN_input(x); LN_hidden(g)];  h = r + Attn(a), r = g (residual=pre) or LN_hidden(g) (residual=post)
    layer i: h = h + Attn(LN_i(h)), LN_i is input_layernorm or hidden_norm;   every layer: h = h + MLP(LN_post(h))
    logits = lm_head(LN_norm(h)) or lm_head(h);   next g = h (feedback=pre) or LN_norm(h) (feedback=post, EAGLE 3.1)

Without ``use_aux_hidden_state`` the first g is the target's final, normed state and there is no fc. With
``double_norm`` layer 0 reads LN_hidden(LN_input(g)). A norm of layer 0 that is not in ``first_norms``, or a final norm
that is not there, is the identity.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

PreFcNorm = Literal["none", "fc_norm", "input_norm"]
Side = Literal["pre", "post"]
FIRST_NORMS = ("input_layernorm", "hidden_norm")


@dataclass(frozen=True)
class DrafterSpec:
    """A head's computation; dimensions in elements, boundaries ascending.

    ``sliding_window`` counts the keys that a query sees, itself included; ``later_norm`` is the norm before the
    attention of layers after the first, ``both`` when they read ``[embedding; state]`` as the first does;
    ``softmax_scale`` is None for ``head_dim ** -0.5``; the four MLA dimensions are 0 with ``gqa``; ``sources`` says for
    each field where its value came from.
    """

    producer: str
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    boundaries: tuple[int, ...]
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    use_aux_hidden_state: bool = True
    pre_fc_norm: PreFcNorm = "none"
    residual: Side = "pre"
    feedback: Side = "pre"
    logits: Literal["norm", "raw"] = "norm"
    first_norms: tuple[str, ...] = FIRST_NORMS
    double_norm: bool = False
    final_norm: bool = True
    later_norm: Literal["input_layernorm", "hidden_norm", "both"] = "hidden_norm"
    fc_bias: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    vocab_map: bool = False
    own_embedding: bool = False
    own_head: bool = True
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    partial_rotary_factor: float = 1.0
    max_position_embeddings: int = 2048
    sliding_window: int | None = None
    attention: Literal["gqa", "mla"] = "gqa"
    q_lora_rank: int | None = None
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    softmax_scale: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def captured(self) -> int:
        """How many target states the head is fed: one per boundary, or the final one."""
        return len(self.boundaries) if self.use_aux_hidden_state else 1

    @property
    def wide_layers(self) -> range:
        """Indices of the layers that read ``[embedding; state]``, twice as wide."""
        return range(self.num_layers if self.later_norm == "both" else 1)

    def norms(self, layer: int) -> tuple[str, ...]:
        """Names of the norms before the attention of one layer."""
        if layer == 0:
            return self.first_norms
        return FIRST_NORMS if self.later_norm == "both" else (self.later_norm,)

    @property
    def variant(self) -> str:
        """``EAGLE 3.1`` with a norm per captured state and post-norm feedback, else the switches by name."""
        if self.pre_fc_norm == "fc_norm" and self.feedback == "post":
            return "EAGLE 3.1"
        if self.pre_fc_norm == "none" and self.feedback == "pre" and self.residual == "pre":
            return "EAGLE-3"
        return f"EAGLE-3 with pre-fc norm {self.pre_fc_norm}, feedback {self.feedback}, residual {self.residual}"

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> DrafterSpec:
        """Raises ValueError naming unknown or missing fields."""
        known = {item.name: item for item in dataclasses.fields(cls)}
        unknown = sorted(set(raw) - set(known))
        required = {name for name, item in known.items() if item.default is item.default_factory is dataclasses.MISSING}
        missing = sorted(required - set(raw))
        if unknown or missing:
            raise ValueError(f"drafter spec: unknown fields {unknown}, missing fields {missing}")
        lists = {name: tuple(raw[name]) for name in ("boundaries", "first_norms") if name in raw}
        return cls(**{**raw, **lists})

    def expected_tensors(self) -> dict[str, tuple[int, ...]]:
        """Canonical name and shape of every tensor that a head of this spec has; nothing else may be there."""
        shapes: dict[str, tuple[int, ...]] = {}
        if self.use_aux_hidden_state:
            shapes["fc.weight"] = (self.hidden_size, self.target_hidden_size * self.captured)
        if self.final_norm:
            shapes["norm.weight"] = (self.hidden_size,)
        if self.fc_bias:
            shapes["fc.bias"] = (self.hidden_size,)
        if self.pre_fc_norm == "fc_norm":
            shapes |= {f"fc_norm.{k}.weight": (self.target_hidden_size,) for k in range(self.captured)}
        if self.pre_fc_norm == "input_norm":
            shapes["input_norm.weight"] = (self.target_hidden_size * self.captured,)
        if self.own_head:
            shapes["lm_head.weight"] = (self.draft_vocab_size, self.hidden_size)
        if self.own_embedding:
            shapes["embed_tokens.weight"] = (self.vocab_size, self.hidden_size)
        if self.vocab_map:
            shapes["d2t"] = (self.draft_vocab_size,)
        for layer in range(self.num_layers):
            shapes |= {f"layers.{layer}.{name}": shape for name, shape in self._layer_tensors(layer).items()}
        return shapes

    def _layer_tensors(self, layer: int) -> dict[str, tuple[int, ...]]:
        hidden, inner = self.hidden_size, self.intermediate_size
        shapes: dict[str, tuple[int, ...]] = {f"{norm}.weight": (hidden,) for norm in self.norms(layer)}
        shapes["post_attention_layernorm.weight"] = (hidden,)
        attention = self._mla_tensors(layer) if self.attention == "mla" else self._gqa_tensors(layer)
        shapes |= {f"self_attn.{name}": shape for name, shape in attention.items()}
        for name, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
            shapes[f"mlp.{name}_proj.weight"] = shape
            if self.mlp_bias:
                shapes[f"mlp.{name}_proj.bias"] = shape[:1]
        return shapes

    def _gqa_tensors(self, layer: int) -> dict[str, tuple[int, ...]]:
        width_in = (1 + (layer in self.wide_layers)) * self.hidden_size
        rows = {"q": self.num_heads * self.head_dim, "k": self.num_kv_heads * self.head_dim}
        rows["v"] = rows["k"]
        shapes: dict[str, tuple[int, ...]] = {"o_proj.weight": (self.hidden_size, rows["q"])}
        for name, out in rows.items():
            shapes[f"{name}_proj.weight"] = (out, width_in)
            if self.qkv_bias:
                shapes[f"{name}_proj.bias"] = (out,)
        if self.o_bias:
            shapes["o_proj.bias"] = (self.hidden_size,)
        if self.qk_norm:
            shapes |= {f"{name}_norm.weight": (self.head_dim,) for name in ("q", "k")}
        return shapes

    def _mla_tensors(self, layer: int) -> dict[str, tuple[int, ...]]:
        width_in = (1 + (layer in self.wide_layers)) * self.hidden_size
        query = self.num_heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        shapes: dict[str, tuple[int, ...]] = {
            "kv_a_proj_with_mqa.weight": (self.kv_lora_rank + self.qk_rope_head_dim, width_in),
            "kv_a_layernorm.weight": (self.kv_lora_rank,),
            "kv_b_proj.weight": (self.num_heads * (self.qk_nope_head_dim + self.v_head_dim), self.kv_lora_rank),
            "o_proj.weight": (self.hidden_size, self.num_heads * self.v_head_dim),
        }
        if self.q_lora_rank is None:
            return shapes | {"q_proj.weight": (query, width_in)}
        return shapes | {
            "q_a_proj.weight": (self.q_lora_rank, width_in),
            "q_a_layernorm.weight": (self.q_lora_rank,),
            "q_b_proj.weight": (query, self.q_lora_rank),
        }
