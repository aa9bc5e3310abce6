"""An MLA head that knows the successor rule of `models`, and a tiny MLA target that mostly follows it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import torch
from models import BOUNDARIES, DRAFT, HIDDEN, LAYERS, VOCAB, head_tensors, rule
from safetensors.torch import save_file
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from sglang_eagle31.head.spec import DrafterSpec

HEADS, NOPE, ROPE, VALUE, QUERY_RANK = 4, 16, 8, 32, 80
SCALING = {
    "rope_type": "yarn",
    "factor": 4.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 2048,
}


def write_mla_head(folder: Path) -> Path:
    """A staged head: attention finds the own token in the latent, whose value carries the embedding to ``lm_head``."""
    mscale = 0.1 * math.log(4.0) + 1.0
    spec = DrafterSpec(
        producer="test",
        hidden_size=HIDDEN,
        target_hidden_size=HIDDEN,
        intermediate_size=96,
        num_layers=1,
        num_heads=HEADS,
        num_kv_heads=HEADS,
        head_dim=NOPE + ROPE,
        vocab_size=VOCAB,
        draft_vocab_size=DRAFT,
        boundaries=BOUNDARIES,
        vocab_map=True,
        rope_scaling=SCALING,
        max_position_embeddings=8192,
        attention="mla",
        q_lora_rank=QUERY_RANK,
        kv_lora_rank=HIDDEN,
        qk_nope_head_dim=NOPE,
        qk_rope_head_dim=ROPE,
        v_head_dim=VALUE,
        softmax_scale=mscale**2 / math.sqrt(NOPE + ROPE),
    )
    tensors = {
        name.replace("midlayer", "layers.0"): tensor
        for name, tensor in head_tensors("eagle3").items()
        if "self_attn" not in name and name != "t2d"
    }
    tensors |= {f"layers.0.self_attn.{name}.weight": tensor for name, tensor in _attention().items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    config = {"eagle31_spec": spec.to_json(), "eagle31_names": {name: name for name in tensors}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _attention() -> dict[str, torch.Tensor]:
    """Head j looks for its 16 of the 64 elements of the embedding, and carries them and the next head's.

    Every space between two projections is turned at random, so that rows out of place are noise.
    """
    generator = torch.Generator().manual_seed(8)

    def turn(*shape: int) -> torch.Tensor:
        return torch.linalg.qr(torch.randn(*shape, generator=generator))[0]

    eye, asked, kept = torch.eye(HIDDEN), turn(HIDDEN, HIDDEN), turn(HIDDEN, HIDDEN)
    slices = eye.view(HEADS, NOPE, HIDDEN)
    sought = 3 * turn(HEADS, NOPE, NOPE) @ slices
    carried = turn(HEADS, VALUE, VALUE) @ torch.cat([slices, slices.roll(-1, 0)], dim=1)
    down = 0.5 * torch.randn(QUERY_RANK, 2 * HIDDEN, generator=generator) / math.sqrt(2 * HIDDEN)
    down[:HIDDEN] = torch.cat([asked, torch.zeros(HIDDEN, HIDDEN)], dim=1)  # of [embedding; state], the embedding
    latent = torch.randn(HIDDEN + ROPE, 2 * HIDDEN, generator=generator) / math.sqrt(2 * HIDDEN)
    latent[:HIDDEN] = torch.cat([kept, torch.zeros(HIDDEN, HIDDEN)], dim=1)
    query = 0.1 * torch.randn(HEADS, NOPE + ROPE, QUERY_RANK, generator=generator)
    query[:, :NOPE] = torch.cat([sought @ asked.T, torch.zeros(HEADS, NOPE, QUERY_RANK - HIDDEN)], dim=2)
    return {
        "q_a_proj": down,
        "q_a_layernorm": torch.ones(QUERY_RANK),
        "q_b_proj": query.view(-1, QUERY_RANK),
        "kv_a_proj_with_mqa": latent,
        "kv_a_layernorm": torch.ones(HIDDEN),
        "kv_b_proj": torch.cat([sought, 4 * carried], dim=1).view(-1, HIDDEN) @ kept.T,
        "o_proj": carried.reshape(-1, HIDDEN).T / 2,
    }


def write_mla_target(folder: Path, noise: float = 0.45) -> tuple[Path, Callable[[list[int], int], list[int]]]:
    """A DeepSeek-V3 target with dense layers in float32; `models.write_target` says what ``noise`` is.

    Returns:
        the folder, and transformers' greedy continuation of a prompt by so many tokens.
    """
    torch.manual_seed(1)
    config = DeepseekV3Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=128,
        moe_intermediate_size=32,
        num_hidden_layers=LAYERS,
        first_k_dense_replace=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=4,
        moe_layer_freq=1,
        n_routed_experts=4,
        n_group=1,
        topk_group=1,
        num_experts_per_tok=2,
        q_lora_rank=48,
        kv_lora_rank=32,
        qk_nope_head_dim=NOPE,
        qk_rope_head_dim=ROPE,
        v_head_dim=NOPE,
        max_position_embeddings=8192,
        rope_parameters={**SCALING, "rope_theta": 10000.0},
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = DeepseekV3ForCausalLM(config).eval()
    known = rule()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and "layers" in name:
            parameter.data.normal_(0, 0.125)
            if "o_proj" in name or "down_proj" in name:
                parameter.data.mul_(noise)
    model.model.embed_tokens.weight.data.copy_(known.embed)
    model.lm_head.weight.data.copy_(known.head)
    model.save_pretrained(folder)

    def truth(ids: list[int], tokens: int) -> list[int]:
        out = model.generate(
            torch.tensor([ids]), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, eos_token_id=None
        )
        return [int(token) for token in out[0, len(ids) :]]

    return folder, truth
