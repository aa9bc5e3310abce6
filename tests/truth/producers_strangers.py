"""Drafts that are no EAGLE-3 chain: parallel heads, Medusa, EAGLE-1 and -2, multi-token prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from truth.producers_layout import IDS, Config, Head, latent, llama, plain
from truth.producers_speculators import trained
from truth.producers_trainers import specforge
from truth.producers_vendors import model_prefix, modelopt, nemo, target_config
from truth.producers_weights import Shape, canonical


@dataclass(frozen=True)
class Stranger:
    """A draft of another kind; ``kind`` is the word that a refusal has to say."""

    name: str
    kind: str
    build: Callable[[Shape, int], tuple[Config, dict[str, Tensor]]]


def _random(seed: int, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) / shape[-1] ** 0.5 for name, shape in shapes.items()}


def _parallel(
    config: Callable[[Head], Config], keys: Config, rename: Callable[[str], str] = plain, **knobs: Any
) -> Callable[[Shape, int], tuple[Config, dict[str, Tensor]]]:
    """P-EAGLE: layers of an EAGLE-3 head, ``mask_hidden`` ``[1, 1, k * Ht]`` for the slots after the first."""

    def build(shape: Shape, seed: int) -> tuple[Config, dict[str, Tensor]]:
        weights = canonical(shape, seed, layers=2, own_embedding=True, **knobs)
        mask = _random(seed, {"mask_hidden": (1, 1, len(shape.boundaries) * shape.target_hidden)})
        tensors = {rename(name): value for name, value in {**weights, **mask}.items()}
        used = weights["d2t"] + torch.arange(shape.draft_vocab)
        tensors["t2d"] = torch.zeros(shape.vocab, dtype=torch.bool).index_fill_(0, used, True)
        return {**config(Head(shape, weights)), **keys}, tensors

    return build


def _p_eagle_speculators(head: Head) -> Config:
    config = trained(head, norm_before_residual=True, architectures=["PEagleSpeculator"], mask_token_id=3)
    config["speculators_model_type"] = config["speculators_config"]["algorithm"] = "peagle"
    return config


def _layer(shape: Shape, at: str) -> dict[str, tuple[int, ...]]:
    """A Llama layer of the target's width."""
    hidden, queries, keys = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return {
        f"{at}.self_attn.q_proj.weight": (queries, hidden),
        f"{at}.self_attn.k_proj.weight": (keys, hidden),
        f"{at}.self_attn.v_proj.weight": (keys, hidden),
        f"{at}.self_attn.o_proj.weight": (hidden, queries),
        f"{at}.mlp.gate_proj.weight": (shape.inner, hidden),
        f"{at}.mlp.up_proj.weight": (shape.inner, hidden),
        f"{at}.mlp.down_proj.weight": (hidden, shape.inner),
        f"{at}.post_attention_layernorm.weight": (hidden,),
    }


def _eagle(
    architecture: str, *, bias: bool, embedding: bool
) -> Callable[[Shape, int], tuple[Config, dict[str, Tensor]]]:
    """EAGLE-1 and -2: ``fc`` ``[H, 2H]`` joins embedding and state before a layer without its first norm."""

    def build(shape: Shape, seed: int) -> tuple[Config, dict[str, Tensor]]:
        shapes: dict[str, tuple[int, ...]] = {"fc.weight": (shape.hidden, 2 * shape.hidden)}
        shapes |= {"fc.bias": (shape.hidden,)} if bias else {}
        shapes |= {"embed_tokens.weight": (shape.vocab, shape.hidden)} if embedding else {}
        tensors = _random(seed, {**shapes, **_layer(shape, "layers.0")})
        return llama(Head(shape, tensors), architecture, bias=bias, draft_vocab_size=...), tensors

    return build


def _medusa(shape: Shape, seed: int) -> tuple[Config, dict[str, Tensor]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for index in range(3):
        shapes[f"medusa_head.{index}.0.linear.weight"] = (shape.hidden, shape.hidden)
        shapes[f"medusa_head.{index}.0.linear.bias"] = (shape.hidden,)
        shapes[f"medusa_head.{index}.1.weight"] = (shape.vocab, shape.hidden)
    config = {"base_model_name_or_path": "target", "medusa_num_heads": 3, "medusa_num_layers": 1}
    return {**config, "transformers_version": "4.31.0"}, _random(seed, shapes)


def _mtp(shape: Shape, seed: int) -> tuple[Config, dict[str, Tensor]]:
    """A DeepSeek V3 model's next-token layer, stored behind the target's own layers."""
    at, hidden = f"model.layers.{shape.target_layers}", shape.hidden
    shapes: dict[str, tuple[int, ...]] = {
        f"{at}.eh_proj.weight": (hidden, 2 * hidden),
        f"{at}.enorm.weight": (hidden,),
        f"{at}.hnorm.weight": (hidden,),
        f"{at}.embed_tokens.weight": (shape.vocab, hidden),
        f"{at}.input_layernorm.weight": (hidden,),
        f"{at}.shared_head.norm.weight": (hidden,),
        f"{at}.shared_head.head.weight": (shape.vocab, hidden),
        **_layer(shape, at),
    }
    shapes = {name: size for name, size in shapes.items() if ".self_attn." not in name}
    latent_weights = canonical(shape, seed, attention="mla")
    for name, value in latent_weights.items():
        if ".self_attn." in name:
            rows, columns = value.shape[0], value.shape[-1]
            wide = name.endswith(("q_a_proj.weight", "kv_a_proj_with_mqa.weight", "q_proj.weight"))
            size = (rows,) if value.dim() == 1 else (rows, hidden if wide else columns)
            shapes[name.replace("layers.0", at, 1)] = size
    tensors = _random(seed, shapes)
    head = Head(shape, tensors)
    keys = {"architectures": ["DeepseekV3ForCausalLMNextN"], "num_nextn_predict_layers": 1}
    return {**target_config(head, "deepseek_v3"), **latent(head), **keys}, tensors


def _modelopt_narrow(shape: Shape, seed: int) -> tuple[Config, dict[str, Tensor]]:
    """ModelOpt's Hugging Face export without captured states: layer 0 is H wide and never sees the embedding."""
    weights = canonical(shape, seed, first_norms=("input_layernorm",), use_aux_hidden_state=False)
    attention = {name: size for name, size in _layer(shape, "layers.0").items() if ".self_attn." in name}
    return modelopt(Head(shape, weights), aux=False), {**weights, **_random(seed, attention)}


STRANGERS: Mapping[str, Stranger] = {
    stranger.name: stranger
    for stranger in (
        Stranger("p_eagle_speculators", "P-EAGLE", _parallel(_p_eagle_speculators, {})),
        Stranger(
            "p_eagle_specforge",
            "P-EAGLE",
            _parallel(specforge, {"architectures": ["PEagleDraftModel"], "norm_before_residual": False}),
        ),
        Stranger(
            "p_eagle_aws",
            "P-EAGLE",
            _parallel(
                lambda head: llama(head, "LlamaForCausalLMEagle3", **{IDS: head.boundaries}), {"ptd_token_id": 3}
            ),
        ),
        Stranger(
            "p_eagle_nemo",
            "P-EAGLE",
            _parallel(
                lambda head: nemo(head, num_hidden_layers=head.layers),
                {"parallel_drafting": True, "mask_token_id": 3, "num_depths": 8, "down_sample_ratio": 0.7},
                model_prefix,
            ),
        ),
        Stranger("medusa", "Medusa", _medusa),
        Stranger("eagle1", "EAGLE-1", _eagle("LlamaForCausalLM", bias=True, embedding=True)),
        Stranger("eagle2", "EAGLE-1", _eagle("LlamaForCausalLM", bias=False, embedding=True)),
        Stranger("baldeagle", "EAGLE-1", _eagle("LlamaForCausalLMEagle", bias=True, embedding=True)),
        Stranger("mtp", "MTP", _mtp),
        Stranger("modelopt_no_aux_narrow", "q_proj", _modelopt_narrow),
    )
}
