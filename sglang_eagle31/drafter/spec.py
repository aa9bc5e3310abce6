"""DrafterSpec: what a draft head computes, fully resolved, and where each fact came from.

Notation (all producers' equations are this one with switches): the target's boundary ``H_b`` is the residual stream
before block ``b``; ``x`` embeds the next token; ``g`` is the fused target state at a round's first step and the
fed-back state later.

    u = concat_k H_{b_k}        fc_norm: g = fc(concat_k LN_k(H_{b_k}))    input_norm: g = fc(LN(u))    none: g = fc(u)
    layer 0: a = [LN_input(x); LN_hidden(g)];  h = r + Attn(a), r = g (residual=pre) or LN_hidden(g) (residual=post)
    layer i: h = h + Attn(LN_i(h)), LN_i is input_layernorm or hidden_norm;   every layer: h = h + MLP(LN_post(h))
    logits = lm_head(LN_norm(h)) or lm_head(h);   next g = h (feedback=pre) or LN_norm(h) (feedback=post, EAGLE 3.1)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

PreFcNorm = Literal["none", "fc_norm", "input_norm"]
Side = Literal["pre", "post"]


@dataclass(frozen=True)
class DrafterSpec:
    """A head's computation; dimensions in elements, boundaries ascending.

    ``sliding_window`` counts the keys that a query sees, itself included; ``later_norm`` is the norm before the
    attention of layers after the first; ``sources`` says for each field where its value came from.
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
    pre_fc_norm: PreFcNorm = "none"
    residual: Side = "pre"
    feedback: Side = "pre"
    logits: Literal["norm", "raw"] = "norm"
    later_norm: Literal["input_layernorm", "hidden_norm"] = "hidden_norm"
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
    max_position_embeddings: int = 2048
    sliding_window: int | None = None
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

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
        return cls(**{**raw, "boundaries": tuple(raw["boundaries"])})

    def expected_tensors(self) -> dict[str, tuple[int, ...]]:
        """Canonical name and shape of every tensor that a head of this spec has; nothing else may be there."""
        shapes: dict[str, tuple[int, ...]] = {
            "fc.weight": (self.hidden_size, self.target_hidden_size * len(self.boundaries)),
            "norm.weight": (self.hidden_size,),
        }
        if self.fc_bias:
            shapes["fc.bias"] = (self.hidden_size,)
        if self.pre_fc_norm == "fc_norm":
            shapes |= {f"fc_norm.{k}.weight": (self.target_hidden_size,) for k in range(len(self.boundaries))}
        if self.pre_fc_norm == "input_norm":
            shapes["input_norm.weight"] = (self.target_hidden_size * len(self.boundaries),)
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
        width_in = 2 * hidden if layer == 0 else hidden
        rows = {"q": self.num_heads * self.head_dim, "k": self.num_kv_heads * self.head_dim}
        rows["v"] = rows["k"]
        norms = ("input_layernorm", "hidden_norm") if layer == 0 else (self.later_norm,)
        shapes: dict[str, tuple[int, ...]] = {f"{norm}.weight": (hidden,) for norm in norms}
        shapes["post_attention_layernorm.weight"] = (hidden,)
        for name, out in rows.items():
            shapes[f"self_attn.{name}_proj.weight"] = (out, width_in)
            if self.qkv_bias:
                shapes[f"self_attn.{name}_proj.bias"] = (out,)
        shapes["self_attn.o_proj.weight"] = (hidden, rows["q"])
        if self.o_bias:
            shapes["self_attn.o_proj.bias"] = (hidden,)
        if self.qk_norm:
            shapes |= {f"self_attn.{name}_norm.weight": (self.head_dim,) for name in ("q", "k")}
        for name, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
            shapes[f"mlp.{name}_proj.weight"] = shape
            if self.mlp_bias:
                shapes[f"mlp.{name}_proj.bias"] = shape[:1]
        return shapes
