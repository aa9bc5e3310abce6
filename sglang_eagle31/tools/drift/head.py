"""A draft head in plain torch, from its spec: every switch, grouped-query and latent attention, weights handed out.

Dimensions: T rows of this call, N keys before it, H draft width, A heads, D head width. Everything is float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.spec import DrafterSpec
from sglang_eagle31.maths.fusion import grouped_rms_norm
from sglang_eagle31.server.probe import attention
from sglang_eagle31.tools.drift.rope import Rope


@dataclass
class Cache:
    """Keys and values of each layer, ``[N, heads, d]``, and the position of each, ``[N]``."""

    positions: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def first(self, length: int) -> Cache:
        """A cache of the first ``length`` keys; the tensors are shared."""
        return Cache(self.positions[:length], [k[:length] for k in self.keys], [v[:length] for v in self.values])


@dataclass
class Output:
    """One call.

    Attributes:
        logits: ``[T, draft vocabulary]``.
        feedback: what the next step is fed, ``[T, H]``.
        visible: which keys each watched row saw, ``[W, N + T]``.
        weights: attention weights of the watched rows, ``[W, A, N + T]`` a layer.
    """

    logits: Tensor
    feedback: Tensor
    visible: Tensor
    weights: list[Tensor]


class Head:
    """A head's tensors by canonical name, on top of the target's embedding and output head."""

    def __init__(
        self,
        spec: DrafterSpec,
        tensors: Mapping[str, Tensor],
        target_embedding: Tensor | None = None,
        target_head: Tensor | None = None,
    ) -> None:
        """``target_embedding``, ``target_head``: ``[V, H]``, for a head that does not ship its own.

        Raises:
            ValueError: tensors that are not those of the spec, or a missing tensor of the target.
        """
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if shapes != spec.expected_tensors():
            odd = sorted(set(shapes.items()) ^ set(spec.expected_tensors().items()))
            raise ValueError(f"the head's tensors are not those of its spec: {odd}; fix: export the head again")
        self.spec, self.rope = spec, Rope(spec)
        self.tensors = {name: tensor.float() for name, tensor in tensors.items() if name != "d2t"}
        embedding = self.tensors["embed_tokens.weight"] if spec.own_embedding else target_embedding
        head = self.tensors["lm_head.weight"] if spec.own_head else target_head
        if embedding is None or head is None:
            raise ValueError("the head ships no embedding or no lm_head; fix: give its target's")
        self.embedding, self.lm_head = embedding.float(), head.float()
        self.target_ids = torch.arange(spec.draft_vocab_size)
        """Target token of each draft token."""
        if spec.vocab_map:
            self.target_ids = self.target_ids + tensors["d2t"].long()

    def fuse(self, captured: Tensor) -> Tensor:
        """States of the captured boundaries ``[T, k * target width]`` to ``g`` ``[T, H]``."""
        spec = self.spec
        if not spec.use_aux_hidden_state:
            return captured
        if spec.pre_fc_norm == "fc_norm":
            gains = torch.stack([self.tensors[f"fc_norm.{k}.weight"] for k in range(spec.captured)])
            captured = grouped_rms_norm(captured, gains, spec.rms_norm_eps)
        elif spec.pre_fc_norm == "input_norm":
            captured = self._norm("input_norm", captured)
        return self._linear("fc", captured)

    @torch.inference_mode()
    def forward(
        self,
        g: Tensor,
        ids: Tensor,
        positions: Tensor,
        cache: Cache,
        visible: Tensor | None = None,
        watch: Tensor | None = None,
    ) -> Output:
        """Run T rows and append their keys to ``cache``.

        Args:
            g: the state that each row reads, ``[T, H]``.
            ids: target token that each row embeds, ``[T]``.
            positions: ``[T]``.
            cache: what was computed before.
            visible: ``[T, N + T]``; causal without.
            watch: rows whose weights are wanted, ``[W]``; none without.
        """
        spec, before = self.spec, len(cache.positions)
        cache.positions = torch.cat([cache.positions, positions])
        if visible is None:
            visible = torch.ones(len(ids), before + len(ids), dtype=torch.bool).tril(before)
        if spec.sliding_window is not None:  # the query itself is one of the window's keys
            visible = visible & (cache.positions > positions.unsqueeze(1) - spec.sliding_window)
        watch = torch.empty(0, dtype=torch.long) if watch is None else watch
        embeds, state, watched = self.embedding[ids], g, []
        for layer in range(spec.num_layers):
            state, weight = self._layer(layer, embeds, state, positions, cache, visible, watch)
            watched.append(weight)
        normed = self._norm("norm", state) if spec.final_norm else state
        logits = F.linear(normed if spec.logits == "norm" else state, self.lm_head)
        return Output(logits, normed if spec.feedback == "post" else state, visible[watch], watched)

    def _layer(
        self,
        layer: int,
        embeds: Tensor,
        state: Tensor,
        positions: Tensor,
        cache: Cache,
        visible: Tensor,
        watch: Tensor,
    ) -> tuple[Tensor, Tensor]:
        spec, prefix = self.spec, f"layers.{layer}"
        wide, names = layer in spec.wide_layers, spec.norms(layer)
        inner = self._norm(f"{prefix}.input_layernorm", state) if layer == 0 and spec.double_norm else state
        if wide:
            x = self._norm(f"{prefix}.input_layernorm", embeds) if "input_layernorm" in names else embeds
            normed = self._norm(f"{prefix}.hidden_norm", inner) if "hidden_norm" in names else inner
            read = torch.cat([x, normed], dim=-1)
        else:
            read = normed = self._norm(f"{prefix}.{spec.later_norm}", state)
        residual = normed if layer == 0 and spec.residual == "post" else state
        project = self._latent if spec.attention == "mla" else self._grouped
        query, key, value, scale = project(f"{prefix}.self_attn", read, positions)
        if layer == len(cache.keys):
            cache.keys.append(key)
            cache.values.append(value)
        else:
            cache.keys[layer] = torch.cat([cache.keys[layer], key])
            cache.values[layer] = torch.cat([cache.values[layer], value])
        attended, weight = _attend(query, cache.keys[layer], cache.values[layer], visible, scale, watch)
        state = residual + self._linear(f"{prefix}.self_attn.o_proj", attended)
        return state + self._mlp(f"{prefix}.mlp", self._norm(f"{prefix}.post_attention_layernorm", state)), weight

    def _grouped(self, prefix: str, read: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor, float]:
        spec = self.spec
        heads = {"q": spec.num_heads, "k": spec.num_kv_heads, "v": spec.num_kv_heads}
        parts = {
            name: self._linear(f"{prefix}.{name}_proj", read).view(len(read), count, spec.head_dim)
            for name, count in heads.items()
        }
        for name in ("q", "k"):
            if spec.qk_norm:
                parts[name] = self._norm(f"{prefix}.{name}_norm", parts[name])
            parts[name] = self.rope.rotate(parts[name], positions)
        return parts["q"], parts["k"], parts["v"], spec.softmax_scale or spec.head_dim**-0.5

    def _latent(self, prefix: str, read: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor, float]:
        """DeepSeek-V2's attention (arXiv 2405.04434, section 2.1) with each head's keys written out."""
        spec, rows = self.spec, len(read)
        nope, rotated = spec.qk_nope_head_dim, spec.qk_rope_head_dim
        if spec.q_lora_rank is None:
            query = self._linear(f"{prefix}.q_proj", read)
        else:
            latent = self._norm(f"{prefix}.q_a_layernorm", self._linear(f"{prefix}.q_a_proj", read))
            query = self._linear(f"{prefix}.q_b_proj", latent)
        query_nope, query_rope = query.view(rows, spec.num_heads, -1).split([nope, rotated], dim=-1)
        down = self._linear(f"{prefix}.kv_a_proj_with_mqa", read)
        latent, key_rope = down.split([spec.kv_lora_rank, rotated], dim=-1)
        both = self._linear(f"{prefix}.kv_b_proj", self._norm(f"{prefix}.kv_a_layernorm", latent))
        key_nope, value = both.view(rows, spec.num_heads, -1).split([nope, spec.v_head_dim], dim=-1)
        key_rope = self.rope.rotate(key_rope.unsqueeze(1), positions).expand(-1, spec.num_heads, -1)
        query = torch.cat([query_nope, self.rope.rotate(query_rope, positions)], dim=-1)
        scale = spec.softmax_scale or (nope + rotated) ** -0.5
        return query, torch.cat([key_nope, key_rope], dim=-1), value, scale

    def _mlp(self, prefix: str, x: Tensor) -> Tensor:
        gate, up = self._linear(f"{prefix}.gate_proj", x), self._linear(f"{prefix}.up_proj", x)
        active = F.silu(gate) if self.spec.hidden_act == "silu" else F.gelu(gate, approximate="tanh")
        return self._linear(f"{prefix}.down_proj", active * up)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.tensors[f"{name}.weight"], self.spec.rms_norm_eps)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scale: float, watch: Tensor
) -> tuple[Tensor, Tensor]:
    """Rows ``[T, A, d]`` over keys and values ``[S, heads, d]``: ``[T, A * dv]``, and the watched rows' weights."""
    groups = query.shape[1] // keys.shape[1]
    key, value = (part.repeat_interleave(groups, 1).transpose(0, 1) for part in (keys, values))
    out = F.scaled_dot_product_attention(query.transpose(0, 1), key, value, attn_mask=visible, scale=scale)
    weight = attention.weights(query[watch], keys, visible[watch], scale)
    return out.transpose(0, 1).flatten(1), weight


def read_head(
    head: Checkpoint, spec: DrafterSpec, names: Mapping[str, str], embedding: Tensor, lm_head: Tensor
) -> Head:
    """The head of a resolved checkpoint; ``names`` maps its tensors to canonical ones, the rest are the target's."""
    wanted = spec.expected_tensors()
    tensors = {new: head.load(old) for old, new in names.items() if new in wanted}
    return Head(spec, tensors, embedding, lm_head)
