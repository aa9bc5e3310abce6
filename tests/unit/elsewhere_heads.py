"""Heads in memory, by header only, for the tests of what other engines would do with them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from sglang_eagle31.head.checkpoint import Checkpoint, Tensor
from sglang_eagle31.head.reading import Target
from sglang_eagle31.head.spec import DrafterSpec
from sglang_eagle31.tools.audit.engines import Outcome, predict

H, INNER, HEADS, KV, DIM, VOCAB, DRAFT, DEPTH = 64, 96, 4, 2, 16, 512, 128, 12
IDS = "eagle_aux_hidden_state_layer_ids"
OUT = {IDS: [1, 5, 8]}
MLA_DIMS = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": H,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "vocab_size": VOCAB,
    "draft_vocab_size": DRAFT,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "rope_theta": 5e5,
    "eagle_config": OUT,
}
SPEC = DrafterSpec(
    producer="test",
    hidden_size=H,
    target_hidden_size=H,
    intermediate_size=INNER,
    num_layers=1,
    num_heads=HEADS,
    num_kv_heads=KV,
    head_dim=DIM,
    vocab_size=VOCAB,
    draft_vocab_size=DRAFT,
    boundaries=(2, 6, 9),
    rms_norm_eps=1e-5,
    vocab_map=True,
    rope_theta=5e5,
)
TARGET = Target("LlamaForCausalLM", DEPTH, H, VOCAB, 512, "bfloat16")


def layer(
    prefix: str, width: int = 2 * H, norms: tuple[str, ...] = ("input_layernorm", "hidden_norm")
) -> dict[str, Any]:
    rows = {"q": HEADS * DIM, "k": KV * DIM, "v": KV * DIM}
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": (H,) for name in (*norms, "post_attention_layernorm")}
    shapes |= {f"self_attn.{name}_proj.weight": (count, width) for name, count in rows.items()}
    shapes |= {"self_attn.o_proj.weight": (H, HEADS * DIM), "mlp.gate_proj.weight": (INNER, H)}
    shapes |= {"mlp.up_proj.weight": (INNER, H), "mlp.down_proj.weight": (H, INNER)}
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


SHAPES: dict[str, tuple[int, ...]] = {
    "fc.weight": (H, 3 * H),
    "norm.weight": (H,),
    "lm_head.weight": (DRAFT, H),
    "d2t": (DRAFT,),
    "t2d": (VOCAB,),
    **layer("midlayer"),
}
FC_NORM: dict[str, Any] = {f"fc_norm.{k}.weight": (H,) for k in range(3)}


def head(
    config: dict[str, Any] | None = None,
    *,
    without: tuple[str, ...] = (),
    add: dict[str, Any] | None = None,
    drop_keys: tuple[str, ...] = (),
    shapes: dict[str, Any] | None = None,
) -> Checkpoint:
    """The healthy Llama head with changes; ``without`` are beginnings of tensor names."""
    raw = {key: value for key, value in (CONFIG | (config or {})).items() if key not in drop_keys}
    kept = {name: shape for name, shape in (shapes or SHAPES).items() if not name.startswith(without or ("\0",))}
    tensors = {name: Tensor(tuple(shape), "BF16", Path("x")) for name, shape in (kept | (add or {})).items()}
    return Checkpoint(Path("x"), raw, tensors, {})


def spec(**changes: Any) -> DrafterSpec:
    return dataclasses.replace(SPEC, **changes)


def sglang(checkpoint: Checkpoint, wanted: DrafterSpec | None, target: Target = TARGET, **seen: Any) -> Outcome:
    return predict(checkpoint, target, wanted, **seen)["sglang"]


def vllm(checkpoint: Checkpoint, wanted: DrafterSpec | None, target: Target = TARGET, **seen: Any) -> Outcome:
    return predict(checkpoint, target, wanted, **seen)["vllm"]


def mla_head(config: dict[str, Any] | None = None, **changes: Any) -> Checkpoint:
    rows = {
        "q_a_proj": (24, 2 * H),
        "q_a_layernorm": (24,),
        "q_b_proj": (HEADS * 12, 24),
        "kv_a_proj_with_mqa": (20, 2 * H),
        "kv_a_layernorm": (16,),
        "kv_b_proj": (HEADS * 16, 16),
        "o_proj": (H, HEADS * 8),
    }
    shapes = {name: shape for name, shape in SHAPES.items() if "self_attn" not in name}
    shapes |= {f"midlayer.self_attn.{name}.weight": shape for name, shape in rows.items()}
    arch = {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2"}
    return head(arch | MLA_DIMS | (config or {}), shapes=shapes, **changes)


MLA_SPEC = spec(attention="mla", head_dim=12, **MLA_DIMS)
KIMI = dataclasses.replace(TARGET, architecture="KimiK25ForConditionalGeneration")
TWO_LAYERS = {**layer("layers.1", H, ("hidden_norm",))}
