"""The Llama-layer drafter on SGLang's layers: every switch of DrafterSpec, tensor-parallel as SGLang's models are."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from sglang.srt.configs.draft_parallel import DraftParallelSpec, DraftTPExecution
from sglang.srt.layers.activation import SiluAndMul
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.layers.rotary_embedding import get_rope
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from sglang.srt.model_loader.weight_utils import default_weight_loader
from sglang.srt.runtime_context import get_parallel, get_spec
from sglang.srt.utils import add_prefix
from torch import nn

from sglang_eagle31.drafter.dialects.native import STAGED, STAGED_NAMES
from sglang_eagle31.drafter.fusion import grouped_rms_norm
from sglang_eagle31.drafter.load import placement
from sglang_eagle31.drafter.spec import DrafterSpec


class Attention(nn.Module):
    """Self-attention of one draft layer; the first layer reads ``[embedding; state]`` and is twice as wide."""

    def __init__(self, spec: DrafterSpec, layer_id: int, quant_config: Any, prefix: str) -> None:
        super().__init__()
        tp_size = get_parallel().tp_size
        self.head_dim = spec.head_dim
        self.num_heads = spec.num_heads // tp_size
        self.num_kv_heads = max(1, spec.num_kv_heads // tp_size)
        width_in = 2 * spec.hidden_size if layer_id == 0 else spec.hidden_size
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
        self.rotary_emb = get_rope(
            spec.head_dim,
            rotary_dim=spec.head_dim,
            max_position=spec.max_position_embeddings,
            base=spec.rope_theta,
            rope_scaling=dict(spec.rope_scaling) if spec.rope_scaling else None,
        )
        self.attn = RadixAttention(
            self.num_heads,
            self.head_dim,
            spec.head_dim**-0.5,
            num_kv_heads=self.num_kv_heads,
            layer_id=layer_id,
            sliding_window_size=_window(spec),
            prefix=add_prefix("attn", prefix),
        )

    def forward(self, positions: torch.Tensor, states: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        """``states`` is ``[tokens, 2H]`` in the first layer and ``[tokens, H]`` later; gives ``[tokens, H]``."""
        qkv, _ = self.qkv_proj(states)
        sizes = [self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim, self.num_kv_heads * self.head_dim]
        q, k, v = qkv.split(sizes, dim=-1)
        if self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q.reshape(-1, self.head_dim)).view(q.shape)
            k = self.k_norm(k.reshape(-1, self.head_dim)).view(k.shape)
        q, k = self.rotary_emb(positions, q, k)
        out, _ = self.o_proj(self.attn(q, k, v, forward_batch))
        return out  # type: ignore[no-any-return]


class Mlp(nn.Module):
    """Gated MLP of one draft layer."""

    def __init__(self, spec: DrafterSpec, quant_config: Any, prefix: str) -> None:
        super().__init__()
        common = {"bias": spec.mlp_bias, "quant_config": quant_config}
        self.gate_up_proj = MergedColumnParallelLinear(
            spec.hidden_size, [spec.intermediate_size] * 2, prefix=add_prefix("gate_up_proj", prefix), **common
        )
        self.down_proj = RowParallelLinear(
            spec.intermediate_size, spec.hidden_size, prefix=add_prefix("down_proj", prefix), **common
        )
        self.act_fn = SiluAndMul()

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """``[tokens, H]`` to ``[tokens, H]``."""
        gate_up, _ = self.gate_up_proj(states)
        out, _ = self.down_proj(self.act_fn(gate_up))
        return out  # type: ignore[no-any-return]


class Layer(nn.Module):
    """One draft layer; it returns its MLP output and the residual that is still to be added."""

    input_layernorm: Any

    def __init__(self, spec: DrafterSpec, layer_id: int, quant_config: Any, prefix: str) -> None:
        super().__init__()
        self.first = layer_id == 0
        self.normed_residual = spec.residual == "post"
        norms = ("input_layernorm", "hidden_norm") if self.first else (spec.later_norm,)
        for name in norms:
            self.add_module(name, RMSNorm(spec.hidden_size, eps=spec.rms_norm_eps))
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, eps=spec.rms_norm_eps)
        self.before = norms[-1]
        self.self_attn = Attention(spec, layer_id, quant_config, add_prefix("self_attn", prefix))
        self.mlp = Mlp(spec, quant_config, add_prefix("mlp", prefix))

    def forward(
        self,
        positions: torch.Tensor,
        embeds: torch.Tensor,
        states: torch.Tensor,
        residual: torch.Tensor | None,
        forward_batch: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """All tensors ``[tokens, H]``; ``residual`` is None in the first layer."""
        norm = getattr(self, self.before)
        if self.first:
            normed = norm(states)
            residual = normed if self.normed_residual else states
            both = torch.cat([self.input_layernorm(embeds), normed], dim=-1)
            attended = self.self_attn(positions, both, forward_batch)
        else:
            states, residual = norm(states, residual)
            attended = self.self_attn(positions, states, forward_batch)
        states, residual = self.post_attention_layernorm(attended, residual)
        return self.mlp(states), residual


class Drafter(nn.Module):
    """Embedding, fusion, layers and final norm of a draft head."""

    def __init__(self, spec: DrafterSpec, quant_config: Any, prefix: str) -> None:
        super().__init__()
        self.spec = spec
        captured = len(spec.boundaries)
        # A shared embedding is the target's tensor, set after loading, so none is allocated here.
        with torch.device(torch.get_default_device() if spec.own_embedding else "meta"):
            self.embed_tokens = VocabParallelEmbedding(
                spec.vocab_size, spec.hidden_size, prefix=add_prefix("embed_tokens", prefix)
            )
        self.fc = nn.Linear(captured * spec.target_hidden_size, spec.hidden_size, bias=spec.fc_bias)
        if spec.pre_fc_norm == "fc_norm":
            self.fc_norm = nn.Parameter(torch.ones(captured, spec.target_hidden_size), requires_grad=False)
        if spec.pre_fc_norm == "input_norm":
            self.input_norm = RMSNorm(captured * spec.target_hidden_size, eps=spec.rms_norm_eps)
        self.layers = nn.ModuleList(
            Layer(spec, index, quant_config, add_prefix(f"layers.{index}", prefix)) for index in range(spec.num_layers)
        )
        self.norm = RMSNorm(spec.hidden_size, eps=spec.rms_norm_eps)

    def fuse(self, captured: torch.Tensor) -> torch.Tensor:
        """``[tokens, k * target width]`` to ``[tokens, H]``."""
        if self.spec.pre_fc_norm == "fc_norm":
            captured = grouped_rms_norm(captured, self.fc_norm, self.spec.rms_norm_eps)
        elif self.spec.pre_fc_norm == "input_norm":
            captured = self.input_norm(captured)
        return self.fc(captured)  # type: ignore[no-any-return]

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any, input_embeds: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The state that ``lm_head`` reads and the state that the next step is fed, both ``[tokens, H]``."""
        embeds = self.embed_tokens(input_ids) if input_embeds is None else input_embeds
        states = forward_batch.spec_info.hidden_states
        if states.shape[0] == 0:  # an idle rank: nothing to draft, whatever width it was given
            return embeds, embeds
        # Draft decoding is fed the drafter's own state; every other forward reads what the target captured. The width
        # cannot tell them apart: k * target width may equal H.
        if not forward_batch.forward_mode.is_decode():
            states = self.fuse(states)
        residual = None
        for layer in self.layers:
            states, residual = layer(positions, embeds, states, residual, forward_batch)
        normed, raw = self.norm(states, residual)
        to_logits = normed if self.spec.logits == "norm" else raw
        return to_logits, normed if self.spec.feedback == "post" else raw


class Eagle31LlamaForCausalLM(nn.Module):
    """A staged EAGLE-3 or EAGLE 3.1 head with Llama layers, as SGLang's draft model."""

    draft_parallel_spec = DraftParallelSpec(tp_execution=DraftTPExecution.SINGLE_GROUP)

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__()
        self.config = config
        self.quant_config = quant_config
        self.spec = DrafterSpec.from_json(getattr(config, STAGED))
        self.names: dict[str, str] = getattr(config, STAGED_NAMES)
        self.model = Drafter(self.spec, quant_config, add_prefix("model", prefix))
        with torch.device(torch.get_default_device() if self.spec.own_head else "meta"):
            self.lm_head = ParallelLMHead(
                self.spec.draft_vocab_size,
                self.spec.hidden_size,
                quant_config=quant_config,
                prefix=add_prefix("lm_head", prefix),
            )
        reduced = copy.deepcopy(config)
        reduced.vocab_size = self.spec.draft_vocab_size
        self.logits_processor = LogitsProcessor(reduced)
        self.capture_aux_hidden_states = True
        self.load_lm_head_from_target = not self.spec.own_head
        self.hot_token_id: torch.Tensor | None = None
        self.window = get_spec().speculative_draft_window_size
        if self.window is not None:
            for attention in self.modules():
                if isinstance(attention, Attention):
                    attention.attn.sliding_window_size = self.window

    @torch.no_grad()
    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        forward_batch: Any,
        input_embeds: torch.Tensor | None = None,
        pp_proxy_tensors: Any = None,
    ) -> Any:
        """SGLang's logits output; its ``hidden_states`` are what the next draft step is fed."""
        to_logits, feedback = self.model(input_ids, positions, forward_batch, input_embeds)
        return self.logits_processor(input_ids, to_logits, self.lm_head, forward_batch, [feedback])

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Fill every parameter from the head's own tensors. Raises ValueError if one is left over or left out."""
        parameters = dict(self.named_parameters())
        loaded: set[str] = set()
        for original, tensor in weights:
            canonical = self.names.get(original)
            if canonical == "d2t":
                self.hot_token_id = tensor.long() + torch.arange(tensor.numel(), device=tensor.device)
            elif canonical is not None:
                loaded.add(self._fill(parameters, canonical, tensor))
        # Parameters on the meta device are the target's, which SGLang sets after loading.
        missing = sorted(
            name for name, parameter in parameters.items() if parameter.device.type != "meta" and name not in loaded
        )
        if missing or (self.spec.vocab_map and self.hot_token_id is None):
            raise ValueError(f"EAGLE31: the head's files changed while loading; not filled: {missing or ['d2t']}")

    def _fill(self, parameters: dict[str, nn.Parameter], canonical: str, tensor: torch.Tensor) -> str:
        if canonical.startswith("fc_norm."):
            self.model.fc_norm.data[int(canonical.split(".")[1])].copy_(tensor)
            return "model.fc_norm"
        name, shard = placement(canonical)
        name = name if name.startswith("lm_head") else f"model.{name}"
        parameter = parameters[name]
        loader = getattr(parameter, "weight_loader", default_weight_loader)
        loader(parameter, tensor) if shard is None else loader(parameter, tensor, shard)
        return name

    def set_embed(self, embed: torch.Tensor) -> None:
        """Share the target's embedding ``[V, H]``, unless the head ships its own."""
        if not self.spec.own_embedding:
            self.model.embed_tokens.weight = embed

    def set_embed_and_head(self, embed: torch.Tensor, head: torch.Tensor) -> None:
        """Share the target's embedding and ``lm_head``, each unless the head ships its own."""
        self.set_embed(embed)
        if not self.spec.own_head:
            self.lm_head.weight = head

    def get_embed(self) -> torch.Tensor:
        """The embedding in use, ``[V, H]``."""
        return self.model.embed_tokens.weight  # type: ignore[no-any-return]

    def get_hot_token_id(self) -> torch.Tensor | None:
        """Target token of each draft token, ``[Vd]``, or None when the vocabularies are the same."""
        return self.hot_token_id

    def get_attention_sliding_window_size(self) -> int | None:
        """The window of the draft's layers in SGLang's convention, or None for full attention."""
        return self.window if self.window is not None else _window(self.spec) if self.spec.sliding_window else None


def _window(spec: DrafterSpec) -> int:
    """SGLang's window counts the keys *before* the query, so a head trained to see W keys with itself needs W - 1."""
    return spec.sliding_window - 1 if spec.sliding_window else -1


EntryClass = [Eagle31LlamaForCausalLM]
