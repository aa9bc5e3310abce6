"""A tiny target that mostly follows a fixed successor of its last token, and heads that know that successor.

The target's layers disturb the rule, so that some drafts are right and some are wrong; a head whose weights were loaded
or wired wrongly is never right.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

HIDDEN, VOCAB, DRAFT, LAYERS = 64, 512, 384, 8
BOUNDARIES = (2, 4, 5)


@dataclass(frozen=True)
class Rule:
    """Embeddings ``[V, H]``, draft tokens ``[Vd]``, the successor of each token ``[V]``, output rows ``[V, H]``."""

    embed: torch.Tensor
    used: torch.Tensor
    successor: torch.Tensor
    head: torch.Tensor


def rule(seed: int = 0) -> Rule:
    """The same rule for the target and for every head."""
    generator = torch.Generator().manual_seed(seed)
    embed = torch.randn(VOCAB, HIDDEN, generator=generator)
    used = torch.randperm(VOCAB, generator=generator)[:DRAFT].sort().values
    successor = used[torch.randint(DRAFT, (VOCAB,), generator=generator)]
    head = torch.zeros(VOCAB, HIDDEN).index_add_(0, successor, embed)
    return Rule(embed, used, successor, head + 0.6 * torch.randn(VOCAB, HIDDEN, generator=generator))


def write_target(folder: Path, dtype: torch.dtype = torch.float32, noise: float = 0.45) -> Path:
    """A Llama target with grouped-query attention; ``noise`` is the weight of its layers against the rule."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config)
    known = rule()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and "layers" in name:
            parameter.data.normal_(0, 0.125)
            if "o_proj" in name or "down_proj" in name:
                parameter.data.mul_(noise)
    model.model.embed_tokens.weight.data.copy_(known.embed)
    model.lm_head.weight.data.copy_(known.head)
    model.to(dtype).save_pretrained(folder)
    return folder


def head_tensors(variant: str = "eagle31") -> dict[str, torch.Tensor]:
    """A head in SpecForge's layout: attention finds the own token, its value carries the embedding to ``lm_head``."""
    generator = torch.Generator().manual_seed(3)
    known, heads, kv_heads, width = rule(), 8, 4, 16
    eye, none = torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)
    look = torch.cat([3 * eye, none], dim=1)  # [64, 128]: only the embedding half
    spread = eye.view(kv_heads, width, HIDDEN).repeat_interleave(heads // kv_heads, 0).reshape(heads * width, HIDDEN)
    tensors = {
        "fc.weight": 0.02 * torch.randn(HIDDEN, 3 * HIDDEN, generator=generator),
        "midlayer.input_layernorm.weight": torch.ones(HIDDEN),
        "midlayer.hidden_norm.weight": torch.ones(HIDDEN),
        "midlayer.post_attention_layernorm.weight": torch.ones(HIDDEN),
        "midlayer.self_attn.q_proj.weight": spread @ look,
        "midlayer.self_attn.k_proj.weight": look,
        "midlayer.self_attn.v_proj.weight": torch.cat([4 * eye, none], dim=1),
        "midlayer.self_attn.o_proj.weight": spread.T / (heads // kv_heads),
        "midlayer.mlp.gate_proj.weight": 0.1 * torch.randn(96, HIDDEN, generator=generator),
        "midlayer.mlp.up_proj.weight": 0.1 * torch.randn(96, HIDDEN, generator=generator),
        "midlayer.mlp.down_proj.weight": 0.1 * torch.randn(HIDDEN, 96, generator=generator),
        "norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": known.head[known.used],
        "d2t": known.used - torch.arange(DRAFT),
        "t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, known.used, True),
    }
    if variant == "eagle31":
        tensors |= {f"fc_norm.{k}.weight": torch.ones(HIDDEN) for k in range(3)}
    return {name: tensor.clone().contiguous() for name, tensor in tensors.items()}


def head_config(variant: str = "eagle31", **changes: Any) -> dict[str, Any]:
    """config.json of `head_tensors`, marked as our trainer's."""
    flags = {"fc_norm": True, "norm_output": True} if variant == "eagle31" else {}
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "target_hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 8192,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [boundary - 1 for boundary in BOUNDARIES],
            "use_aux_hidden_state": True,
        },
        "sglang_eagle31_version": "0.1.0",
        **flags,
        **changes,
    }


def write_head(folder: Path, variant: str = "eagle31", dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    """`head_tensors` with `head_config` on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.to(dtype) if t.is_floating_point() else t for name, t in head_tensors(variant).items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(head_config(variant, **changes)))
    return folder


def write_wide_head(folder: Path) -> Path:
    """A staged head with every other switch: two layers, q/k norms, biases, input_norm, own embedding, a window."""
    from sglang_eagle31.head.spec import DrafterSpec

    known = rule()
    spec = DrafterSpec(
        producer="test",
        hidden_size=HIDDEN,
        target_hidden_size=HIDDEN,
        intermediate_size=96,
        num_layers=2,
        num_heads=8,
        num_kv_heads=4,
        head_dim=16,
        vocab_size=VOCAB,
        draft_vocab_size=DRAFT,
        boundaries=(1, 3, 5, 7),
        pre_fc_norm="input_norm",
        residual="post",
        feedback="post",
        later_norm="input_layernorm",
        fc_bias=True,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        qk_norm=True,
        vocab_map=True,
        own_embedding=True,
        max_position_embeddings=8192,
        sliding_window=64,
    )
    # What is not part of the plain head is neutral: zero matrices and biases, unit norms.
    tensors = {
        name: torch.ones(shape) if name.endswith("norm.weight") else torch.zeros(shape)
        for name, shape in spec.expected_tensors().items()
    }
    for name, tensor in head_tensors("eagle3").items():
        tensors.update({name.replace("midlayer", "layers.0"): tensor} if name not in ("fc.weight", "t2d") else {})
    for name in ("q_norm", "k_norm"):
        tensors[f"layers.0.self_attn.{name}.weight"] = torch.full((16,), 3.0)
    tensors["embed_tokens.weight"] = known.embed.clone()
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    config = {"eagle31_spec": replace(spec).to_json(), "eagle31_names": {name: name for name in tensors}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_eagle1_head(folder: Path) -> Path:
    """An EAGLE-1 head for stock ``EAGLE``: the state is the embedding, the target's ``lm_head`` does the rest."""
    eye, none = torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)
    tensors = {
        "fc.weight": torch.cat([eye, none], dim=1),
        "layers.0.post_attention_layernorm.weight": torch.ones(HIDDEN),
        "layers.0.self_attn.q_proj.weight": eye.clone(),
        "layers.0.self_attn.k_proj.weight": torch.eye(32, HIDDEN),
        "layers.0.self_attn.v_proj.weight": torch.eye(32, HIDDEN),
        "layers.0.self_attn.o_proj.weight": none.clone(),
        "layers.0.mlp.gate_proj.weight": torch.zeros(96, HIDDEN),
        "layers.0.mlp.up_proj.weight": torch.zeros(96, HIDDEN),
        "layers.0.mlp.down_proj.weight": torch.zeros(HIDDEN, 96),
    }
    config = head_config("eagle3", architectures=["LlamaForCausalLMEagle"], num_attention_heads=4)
    config |= {"num_key_value_heads": 2, "draft_vocab_size": None}
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder
