"""The Llama-layer drafter on SGLang's layers: every switch of DrafterSpec, tensor-parallel as SGLang's models are."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from sglang.srt.configs.draft_parallel import DraftParallelSpec, DraftTPExecution
from sglang.srt.layers.activation import GeluAndMul, SiluAndMul
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from sglang.srt.model_loader.weight_utils import default_weight_loader
from sglang.srt.runtime_context import get_spec
from sglang.srt.utils import add_prefix
from torch import nn

from sglang_eagle31.head.check import placement
from sglang_eagle31.head.dialects.native import STAGED, STAGED_NAMES
from sglang_eagle31.head.spec import DrafterSpec
from sglang_eagle31.maths.fusion import grouped_rms_norm
from sglang_eagle31.server.drafter.gqa import GqaAttention, window
from sglang_eagle31.server.drafter.mla import MlaAttention


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
        self.act_fn = SiluAndMul() if spec.hidden_act == "silu" else GeluAndMul(approximate="tanh")

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """``[tokens, H]`` to ``[tokens, H]``."""
        gate_up, _ = self.gate_up_proj(states)
        out, _ = self.down_proj(self.act_fn(gate_up))
        return out  # type: ignore[no-any-return]


class Layer(nn.Module):
    """One draft layer; it returns its MLP output and the residual that is still to be added."""

    def __init__(self, spec: DrafterSpec, layer_id: int, config: Any, quant_config: Any, prefix: str) -> None:
        super().__init__()
        self.first, self.wide = layer_id == 0, layer_id in spec.wide_layers
        self.normed_residual = spec.residual == "post"
        self.double_norm = spec.double_norm
        norms = spec.norms(layer_id)
        self.input_layernorm = norm(spec, "input_layernorm" in norms)
        self.hidden_norm = norm(spec, "hidden_norm" in norms)
        self.post_attention_layernorm = norm(spec)
        self.before = self.hidden_norm if self.wide or spec.later_norm == "hidden_norm" else self.input_layernorm
        attention = "self_attn"
        self.self_attn = (
            MlaAttention(spec, layer_id, config, quant_config, add_prefix(attention, prefix))
            if spec.attention == "mla"
            else GqaAttention(spec, layer_id, quant_config, add_prefix(attention, prefix))
        )
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
        if self.first:
            normed = self.before(self.input_layernorm(states) if self.double_norm else states)
            residual = normed if self.normed_residual else states
        else:
            normed, residual = self.before(states, residual)
        if self.wide:
            normed = torch.cat([self.input_layernorm(embeds), normed], dim=-1)
        attended = self.self_attn(positions, normed, forward_batch)
        states, residual = self.post_attention_layernorm(attended, residual)
        return self.mlp(states), residual


class Identity(nn.Module):
    """What stands for a norm that a head does not have, with RMSNorm's calls."""

    def forward(self, states: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        """``states``, or their sum with the residual, twice."""
        if residual is None:
            return states
        both = states + residual
        return both, both


def norm(spec: DrafterSpec, present: bool = True) -> Any:
    """SGLang's RMSNorm over the hidden size, or the identity."""
    return RMSNorm(spec.hidden_size, eps=spec.rms_norm_eps) if present else Identity()


class Drafter(nn.Module):
    """Embedding, fusion, layers and final norm of a draft head."""

    def __init__(self, spec: DrafterSpec, config: Any, quant_config: Any, prefix: str) -> None:
        super().__init__()
        self.spec = spec
        captured = spec.captured
        # A shared embedding is the target's tensor, set after loading, so none is allocated here.
        with torch.device(torch.get_default_device() if spec.own_embedding else "meta"):
            self.embed_tokens = VocabParallelEmbedding(
                spec.vocab_size, spec.hidden_size, prefix=add_prefix("embed_tokens", prefix)
            )
        if spec.use_aux_hidden_state:
            self.fc = nn.Linear(captured * spec.target_hidden_size, spec.hidden_size, bias=spec.fc_bias)
        if spec.pre_fc_norm == "fc_norm":
            self.fc_norm = nn.Parameter(torch.ones(captured, spec.target_hidden_size), requires_grad=False)
        if spec.pre_fc_norm == "input_norm":
            self.input_norm = RMSNorm(captured * spec.target_hidden_size, eps=spec.rms_norm_eps)
        self.layers = nn.ModuleList(
            Layer(spec, index, config, quant_config, add_prefix(f"layers.{index}", prefix))
            for index in range(spec.num_layers)
        )
        self.norm = norm(spec, spec.final_norm)

    def fuse(self, captured: torch.Tensor) -> torch.Tensor:
        """``[tokens, k * target width]`` to ``[tokens, H]``; the final state, without ``fc``, is taken as it is.

        That one is copied: on a GPU a norm with a residual writes to it, and it is what the target returns to users.
        """
        if not self.spec.use_aux_hidden_state:
            return captured.clone()
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
        # An idle rank, padded or not, has nothing to draft, whatever width it was given.
        if states.shape[0] == 0 or forward_batch.forward_mode.is_idle():
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
        self.model = Drafter(self.spec, config, quant_config, add_prefix("model", prefix))
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
                if isinstance(attention, GqaAttention):
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
        """Fill every parameter from the head's own tensors.

        Raises:
            ValueError: a parameter is left out, or a tensor has values that are not numbers.
        """
        parameters = dict(self.named_parameters())
        loaded: set[str] = set()
        for original, tensor in weights:
            canonical = self.names.get(original)
            if canonical is not None and tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise ValueError(
                    f"EAGLE31: tensor {original} has values that are not numbers; fix: fetch the head again"
                )
            if canonical == "d2t":
                self.hot_token_id = tensor.long() + torch.arange(tensor.numel(), device=tensor.device)
            elif canonical is not None:
                loaded.add(self._fill(parameters, canonical, tensor))
        # Parameters on the meta device are the target's, which SGLang sets after loading.
        for layer in self.model.layers:
            if isinstance(layer.self_attn, MlaAttention):
                layer.self_attn.finish()
                loaded |= {name for name in parameters if name.startswith("model.layers.") and ".self_attn." in name}
        missing = sorted(
            name for name, parameter in parameters.items() if parameter.device.type != "meta" and name not in loaded
        )
        if missing or (self.spec.vocab_map and self.hot_token_id is None):
            raise ValueError(f"EAGLE31: the head's files changed while loading; not filled: {missing or ['d2t']}")

    def _fill(self, parameters: dict[str, nn.Parameter], canonical: str, tensor: torch.Tensor) -> str:
        if canonical.startswith("fc_norm."):
            self.model.fc_norm.data[int(canonical.split(".")[1])].copy_(tensor)
            return "model.fc_norm"
        if self.spec.attention == "mla" and ".self_attn." in canonical:
            layer, tail = canonical.removeprefix("layers.").split(".self_attn.")
            attention: Any = self.model.layers[int(layer)].self_attn
            attention.load(tail, tensor)
            return canonical
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
        return self.window if self.window is not None else window(self.spec) if self.spec.sliding_window else None


EntryClass = [Eagle31LlamaForCausalLM]
