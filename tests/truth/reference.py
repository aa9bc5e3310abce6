"""What an EAGLE-3 / 3.1 head computes, in plain float32 torch: slow, obvious, and apart from the package.

Dimensions: T tokens of this call, S keys so far, H draft width, Ht target width, k captured states, V target tokens,
Vd draft tokens. `Head` is a computation (`Switches`) with its tensors under canonical names; `Session` runs one
sequence with its own keys and values. Equations: the forward pass that `docs/dialects.md` states.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from truth.reference_rope import mla_scale, rotate


@dataclass(frozen=True, kw_only=True)
class Switches:
    """Everything that decides what a head computes. Names and values as in `docs/dialects.md`."""

    producer: str = ""
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_layers: int = 1
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    boundaries: tuple[int, ...] = ()
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"  # silu | gelu_pytorch_tanh
    use_aux_hidden_state: bool = True
    pre_fc_norm: str = "none"  # none | fc_norm | input_norm
    residual: str = "pre"  # pre | post
    feedback: str = "pre"  # pre | post
    logits: str = "norm"  # norm | raw
    first_norms: tuple[str, ...] = ("input_layernorm", "hidden_norm")
    double_norm: bool = False  # layer 0 reads LN_hidden(LN_input(g))
    final_norm: bool = True
    later_norm: str = "input_layernorm"  # input_layernorm | hidden_norm | both
    fc_bias: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    vocab_map: bool = True
    own_embedding: bool = False
    own_head: bool = True
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    partial_rotary_factor: float = 1.0
    max_position_embeddings: int = 2048
    sliding_window: int | None = None
    attention: str = "gqa"  # gqa | mla
    q_lora_rank: int | None = None
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0

    def norms(self, layer: int) -> tuple[str, ...]:
        """The norms that a layer has before its attention; a first layer without one passes that input as it is."""
        if layer == 0:
            return self.first_norms
        return ("input_layernorm", "hidden_norm") if self.later_norm == "both" else (self.later_norm,)

    def takes_embedding(self, layer: int) -> bool:
        """Whether the attention of this layer reads [embedding; hidden] (2H) rather than the hidden state (H)."""
        return layer == 0 or self.later_norm == "both"


def tensor_shapes(s: Switches) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of every tensor that a head with these switches has, no more and no fewer."""
    h, ht, k = s.hidden_size, s.target_hidden_size, len(s.boundaries)
    shapes: dict[str, tuple[int, ...]] = {}
    if s.use_aux_hidden_state:
        shapes["fc.weight"] = (h, k * ht)
        if s.fc_bias:
            shapes["fc.bias"] = (h,)
        if s.pre_fc_norm == "fc_norm":
            shapes |= {f"fc_norm.{j}.weight": (ht,) for j in range(k)}
        if s.pre_fc_norm == "input_norm":
            shapes["input_norm.weight"] = (k * ht,)
    for i in range(s.num_layers):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in _layer_shapes(s, i).items()}
    if s.final_norm:
        shapes["norm.weight"] = (h,)
    if s.own_head:
        shapes["lm_head.weight"] = (s.draft_vocab_size, h)
    if s.own_embedding:
        shapes["embed_tokens.weight"] = (s.vocab_size, h)
    if s.vocab_map:
        shapes["d2t"] = (s.draft_vocab_size,)
    return shapes


def _layer_shapes(s: Switches, layer: int) -> dict[str, tuple[int, ...]]:
    h, inner = s.hidden_size, s.intermediate_size
    wide = 2 * h if s.takes_embedding(layer) else h
    shapes: dict[str, tuple[int, ...]] = {f"{norm}.weight": (h,) for norm in s.norms(layer)}
    shapes["post_attention_layernorm.weight"] = (h,)
    if s.attention == "mla":
        if s.qkv_bias or s.o_bias or s.qk_norm:
            raise ValueError("MLA heads have no attention biases and no q_norm or k_norm")
        qk, kv_out = s.qk_nope_head_dim + s.qk_rope_head_dim, s.qk_nope_head_dim + s.v_head_dim
        linear = {
            "kv_a_proj_with_mqa": (s.kv_lora_rank + s.qk_rope_head_dim, wide),
            "kv_b_proj": (s.num_heads * kv_out, s.kv_lora_rank),
            "o_proj": (h, s.num_heads * s.v_head_dim),
        }
        if s.q_lora_rank is None:
            linear["q_proj"] = (s.num_heads * qk, wide)
        else:
            linear |= {"q_a_proj": (s.q_lora_rank, wide), "q_b_proj": (s.num_heads * qk, s.q_lora_rank)}
            shapes["self_attn.q_a_layernorm.weight"] = (s.q_lora_rank,)
        shapes["self_attn.kv_a_layernorm.weight"] = (s.kv_lora_rank,)
    else:
        rows = {"q_proj": s.num_heads, "k_proj": s.num_kv_heads, "v_proj": s.num_kv_heads}
        linear = {name: (heads * s.head_dim, wide) for name, heads in rows.items()}
        linear["o_proj"] = (h, s.num_heads * s.head_dim)
        if s.qk_norm:
            shapes |= {f"self_attn.{name}_norm.weight": (s.head_dim,) for name in "qk"}
    for name, shape in linear.items():
        shapes[f"self_attn.{name}.weight"] = shape
        if s.o_bias if name == "o_proj" else s.qkv_bias:
            shapes[f"self_attn.{name}.bias"] = (shape[0],)
    for name, shape in {"gate_proj": (inner, h), "up_proj": (inner, h), "down_proj": (h, inner)}.items():
        shapes[f"mlp.{name}.weight"] = shape
        if s.mlp_bias:
            shapes[f"mlp.{name}.bias"] = (shape[0],)
    return shapes


class Head:
    """A head: switches, tensors under canonical names (as float32), and the target's tensors it may lean on.

    Raises ValueError when the tensors are not exactly those of the switches, or when the embedding or the vocabulary
    head is neither its own nor given by the target.
    """

    def __init__(
        self,
        switches: Switches,
        weights: dict[str, Tensor],
        target_embed: Tensor | None = None,  # [V, H]
        target_lm_head: Tensor | None = None,  # [V, H]
    ) -> None:
        s, expected = switches, tensor_shapes(switches)
        found = {name: tuple(w.shape) for name, w in weights.items()}
        if found != expected:
            odd = {n: (found.get(n), expected.get(n)) for n in found | expected if found.get(n) != expected.get(n)}
            raise ValueError(f"tensors (found, expected): {odd}")
        self.switches = s
        self.weights = {name: w.float() for name, w in weights.items() if name != "d2t"}
        embed = self.weights["embed_tokens.weight"] if s.own_embedding else target_embed
        lm_head = self.weights["lm_head.weight"] if s.own_head else target_lm_head
        if embed is None or tuple(embed.shape) != (s.vocab_size, s.hidden_size):
            raise ValueError("no embedding of shape [vocab_size, hidden_size]: neither own nor the target's")
        if lm_head is None or tuple(lm_head.shape) != (s.draft_vocab_size, s.hidden_size):
            raise ValueError("no lm_head of shape [draft_vocab_size, hidden_size]: neither own nor the target's")
        self.embed, self.lm_head = embed.float(), lm_head.float()
        self.hot = torch.arange(s.draft_vocab_size)  # target id of each draft id
        if s.vocab_map:
            self.hot = self.hot + weights["d2t"].long()

    def norm(self, name: str, x: Tensor) -> Tensor:
        """RMSNorm with the gain `name` over the last dimension."""
        return (
            self.weights[f"{name}.weight"] * x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.switches.rms_norm_eps)
        )

    def linear(self, name: str, x: Tensor) -> Tensor:
        """x W^T + b, b where there is one."""
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def fuse(self, aux: Tensor) -> Tensor:
        """Target states of the first step -> g [T, H]. aux: [T, k*Ht] ascending boundaries, or [T, Ht] without aux."""
        s = self.switches
        if not s.use_aux_hidden_state:
            return aux
        if s.pre_fc_norm == "input_norm":
            aux = self.norm("input_norm", aux)
        if s.pre_fc_norm == "fc_norm":
            parts = aux.split(s.target_hidden_size, dim=-1)
            aux = torch.cat([self.norm(f"fc_norm.{j}", part) for j, part in enumerate(parts)], dim=-1)
        return self.linear("fc", aux)


class Session:
    """One sequence through a head: a prefill with target states, then draft steps, each adding its keys and values."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.positions = torch.empty(0, dtype=torch.long)  # [S]
        self.kv: list[tuple[Tensor, Tensor]] = []  # per layer: keys [S, heads, d], values [S, heads, dv]

    @torch.no_grad()
    def prefill(self, aux: Tensor, next_ids: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """aux [T, k*Ht] (or [T, Ht] post-norm states without aux), next_ids [T] -> logits [T, Vd], feedback [T, H]."""
        positions = torch.arange(len(next_ids)) if positions is None else positions
        return self._run(self.head.fuse(aux.float()), next_ids, positions)

    @torch.no_grad()
    def step(self, token_id: int, state: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """One draft step: token_id in the TARGET's vocabulary, state [H] -> logits [Vd], feedback [H]."""
        logits, feedback = self._run(state.float()[None], torch.tensor([token_id]), torch.tensor([position]))
        return logits[0], feedback[0]

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` keys, as a round does with what its drafting left behind."""
        self.positions = self.positions[:length]
        self.kv = [(k[:length], v[:length]) for k, v in self.kv]

    def _run(self, g: Tensor, ids: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        head, s = self.head, self.head.switches
        self.positions = torch.cat([self.positions, positions])
        x, h = head.embed[ids], g  # [T, H]
        for i in range(s.num_layers):
            prefix = f"layers.{i}"
            normed = {
                name: head.norm(f"{prefix}.{name}", value) if name in s.norms(i) else value
                for name, value in {"input_layernorm": x if s.takes_embedding(i) else h, "hidden_norm": h}.items()
            }
            if s.double_norm and i == 0:
                normed["hidden_norm"] = head.norm(f"{prefix}.hidden_norm", head.norm(f"{prefix}.input_layernorm", h))
            if s.takes_embedding(i):
                a = torch.cat([normed["input_layernorm"], normed["hidden_norm"]], dim=-1)  # embedding first
            else:
                a = normed[s.later_norm]
            residual = normed["hidden_norm"] if i == 0 and s.residual == "post" else h
            attend = self._mla if s.attention == "mla" else self._gqa
            h = residual + head.linear(f"{prefix}.self_attn.o_proj", attend(i, a, positions))
            h = h + self._mlp(f"{prefix}.mlp", head.norm(f"{prefix}.post_attention_layernorm", h))
        normed_h = head.norm("norm", h) if s.final_norm else h
        logits = F.linear(normed_h if s.logits == "norm" else h, head.lm_head)
        return logits, normed_h if s.feedback == "post" else h

    def _mlp(self, prefix: str, x: Tensor) -> Tensor:
        activations = {"silu": F.silu, "gelu_pytorch_tanh": lambda y: F.gelu(y, approximate="tanh")}
        act = activations[self.head.switches.hidden_act]
        gate, up = self.head.linear(f"{prefix}.gate_proj", x), self.head.linear(f"{prefix}.up_proj", x)
        return self.head.linear(f"{prefix}.down_proj", act(gate) * up)

    def _gqa(self, i: int, a: Tensor, positions: Tensor) -> Tensor:
        head, s = self.head, self.head.switches
        prefix, t = f"layers.{i}.self_attn", len(a)
        q = head.linear(f"{prefix}.q_proj", a).view(t, s.num_heads, s.head_dim)
        k = head.linear(f"{prefix}.k_proj", a).view(t, s.num_kv_heads, s.head_dim)
        v = head.linear(f"{prefix}.v_proj", a).view(t, s.num_kv_heads, s.head_dim)
        if s.qk_norm:
            q, k = head.norm(f"{prefix}.q_norm", q), head.norm(f"{prefix}.k_norm", k)
        q, k = rotate(q, positions, s), rotate(k, positions, s)
        repeats = s.num_heads // s.num_kv_heads
        k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
        return self._attend(i, q, k, v, s.head_dim**-0.5)

    def _mla(self, i: int, a: Tensor, positions: Tensor) -> Tensor:
        head, s = self.head, self.head.switches
        prefix, t, nope, rope = f"layers.{i}.self_attn", len(a), s.qk_nope_head_dim, s.qk_rope_head_dim
        if s.q_lora_rank is None:
            q = head.linear(f"{prefix}.q_proj", a)
        else:
            q = head.linear(
                f"{prefix}.q_b_proj", head.norm(f"{prefix}.q_a_layernorm", head.linear(f"{prefix}.q_a_proj", a))
            )
        q_nope, q_rope = q.view(t, s.num_heads, nope + rope).split([nope, rope], dim=-1)
        latent, k_rope = head.linear(f"{prefix}.kv_a_proj_with_mqa", a).split([s.kv_lora_rank, rope], dim=-1)
        kv = head.linear(f"{prefix}.kv_b_proj", head.norm(f"{prefix}.kv_a_layernorm", latent))
        k_nope, v = kv.view(t, s.num_heads, nope + s.v_head_dim).split([nope, s.v_head_dim], dim=-1)
        k_rope = rotate(k_rope[:, None], positions, s).expand(t, s.num_heads, rope)  # one key for all heads
        q = torch.cat([q_nope, rotate(q_rope, positions, s)], dim=-1)
        return self._attend(i, q, torch.cat([k_nope, k_rope], dim=-1), v, mla_scale(s))

    def _attend(self, i: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """q, k, v: [T, heads, d] of this call; earlier keys and values are the session's. Returns [T, heads * dv]."""
        if i < len(self.kv):
            k, v = torch.cat([self.kv[i][0], k]), torch.cat([self.kv[i][1], v])
            self.kv[i] = (k, v)
        else:
            self.kv.append((k, v))
        t, keys = len(q), len(k)
        query, key = torch.arange(keys - t, keys)[:, None], torch.arange(keys)[None]
        allowed = key <= query  # [T, S]
        window = self.head.switches.sliding_window
        if window is not None:  # the query itself is one of the `window` keys
            allowed &= self.positions[key] > self.positions[query] - window
        scores = torch.einsum("thd,shd->hts", q, k) * scale
        weights = scores.masked_fill(~allowed, -math.inf).softmax(-1)
        return torch.einsum("hts,shd->thd", weights, v).reshape(t, -1)
