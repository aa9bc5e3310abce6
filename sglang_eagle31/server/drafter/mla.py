"""Multi-head latent attention of a draft layer, on SGLang's own: its latent cache, forward methods and GPU backends.

With heads h, positions t, and ``a`` the layer's input (DeepSeek-V2, arXiv 2405.04434, section 2.1):

    q = W_qb LN(W_qa a)  or  W_q a;   [q_nope; q_rope] = q,  q_rope rotated by pairs (2i, 2i + 1)
    [c; k_rope] = W_kva a;   c = LN(c), k_rope rotated and shared by all heads
    [k_nope; v] = W_kvb c;   out = W_o softmax(scale * (q_nope k_nope + q_rope k_rope)) v

Only ``c`` and the rotated ``k_rope`` are cached: decoding attends in the latent space with ``W_kvb`` split and absorbed
into the query and the output, which is the same function.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.layers.layer_boundary import AttentionInputs, get_attn_tp_context
from sglang.srt.layers.linear import RowParallelLinear
from sglang.srt.layers.rotary_embedding import get_rope
from sglang.srt.model_loader.weight_utils import default_weight_loader
from sglang.srt.models.deepseek_v2 import DeepseekV2AttentionMLA
from sglang.srt.utils import BumpAllocator, add_prefix

from sglang_eagle31.head.spec import DrafterSpec

YARN = ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
FUSED = ("q_a_proj.weight", "kv_a_proj_with_mqa.weight")
"""Rows of SGLang's one down-projection, in this order."""


class MlaAttention(DeepseekV2AttentionMLA):
    """Self-attention of one MLA draft layer; wide layers read ``[embedding; state]``."""

    def __init__(self, spec: DrafterSpec, layer_id: int, config: Any, quant_config: Any, prefix: str) -> None:
        """``config`` is SGLang's for the draft, which decides nothing here: everything is in the spec.

        Raises:
            ValueError: a spec that is not MLA, states no softmax scale, or has what SGLang's MLA does not compute.
        """
        _check(spec)
        super().__init__(
            config=SimpleNamespace(architectures=[], rms_norm_eps=spec.rms_norm_eps),
            # SGLang has one width for input and output; the output projection is made again below.
            hidden_size=(2 if layer_id in spec.wide_layers else 1) * spec.hidden_size,
            num_heads=spec.num_heads,
            qk_nope_head_dim=spec.qk_nope_head_dim,
            qk_rope_head_dim=spec.qk_rope_head_dim,
            v_head_dim=spec.v_head_dim,
            q_lora_rank=spec.q_lora_rank,
            kv_lora_rank=spec.kv_lora_rank,
            max_position_embeddings=spec.max_position_embeddings,
            quant_config=quant_config,
            layer_id=layer_id,
            prefix=prefix,
            skip_rope=True,  # it knows deepseek_yarn only
        )
        self.hidden_size = spec.hidden_size
        self.o_proj = RowParallelLinear(
            spec.num_heads * spec.v_head_dim,
            spec.hidden_size,
            bias=False,
            quant_config=quant_config,
            prefix=add_prefix("o_proj", prefix),
            parallel_group="attn_tp",
        )
        self.rotary_emb = rotary(spec)
        self.scaling = spec.softmax_scale
        for name in ("attn_mqa", "attn_mha", "attn_mqa_for_dcp_decode"):
            if hasattr(self, name):
                getattr(self, name).scaling = spec.softmax_scale
        names = spec.expected_tensors()
        start = f"layers.{layer_id}.self_attn."
        self.expected = {name.removeprefix(start): shape for name, shape in names.items() if name.startswith(start)}
        self.filled: set[str] = set()
        self.halves: dict[str, torch.Tensor] = {}

    def forward(self, positions: torch.Tensor, states: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        """``states`` is ``[tokens, 2H]`` in a wide layer and ``[tokens, H]`` in others; gives ``[tokens, H]``."""
        context = get_attn_tp_context()
        with context.maybe_input_scattered(forward_batch):
            # SGLang's forward fetches the down-projection from here rather than from its argument.
            context.set_attn_inputs(AttentionInputs(states, forward_batch, self.prepare_qkv_latent))
            out = super().forward(
                positions=positions,
                hidden_states=states,
                forward_batch=forward_batch,
                zero_allocator=BumpAllocator(buffer_size=2, dtype=torch.float32, device=states.device),
            )
        return out[0] if isinstance(out, tuple) else out  # type: ignore[no-any-return]

    def load(self, tail: str, tensor: torch.Tensor) -> None:
        """Fill one tensor, named as after ``layers.{i}.self_attn.``; a rank keeps its part.

        Raises:
            ValueError: a name or a shape that this layer does not have.
        """
        shape = self.expected.get(tail)
        if shape is None or tuple(tensor.shape) != shape:
            raise ValueError(
                f"EAGLE31: self_attn.{tail} of layer {self.layer_id} is {list(tensor.shape)}, expected "
                f"{list(shape) if shape else 'no such tensor'}; fix: use the head's own files"
            )
        self.filled.add(tail)
        if self.q_lora_rank is None or tail not in FUSED:
            self._fill(tail, tensor)
            return
        self.halves[tail] = tensor
        if len(self.halves) == len(FUSED):
            self._fill("fused_qkv_a_proj_with_mqa.weight", torch.cat([self.halves.pop(name) for name in FUSED]))

    def finish(self) -> None:
        """Absorb ``kv_b_proj`` after every tensor was loaded.

        Raises:
            ValueError: tensors that were not loaded.
        """
        missing = sorted(set(self.expected) - self.filled)
        self.filled.clear()
        self.halves.clear()
        if missing:
            raise ValueError(f"EAGLE31: not filled in layers.{self.layer_id}.self_attn: {missing}")
        weight = self.kv_b_proj.weight.data
        if not weight.is_floating_point() or weight.element_size() < 2:
            raise ValueError(
                f"EAGLE31: kv_b_proj of an MLA head is {weight.dtype}, and it is split and absorbed in full precision; "
                "fix: drop --speculative-draft-model-quantization"
            )
        heads = weight.view(self.num_local_heads, self.qk_nope_head_dim + self.v_head_dim, self.kv_lora_rank)
        key, value = heads.split([self.qk_nope_head_dim, self.v_head_dim], dim=1)
        # [heads, nope, latent] and [heads, latent, v], stored as SGLang's batched kernels read them: transposed.
        self.w_kc = key.mT.contiguous().mT
        self.w_vc = value.contiguous().mT

    def _fill(self, name: str, tensor: torch.Tensor) -> None:
        parameter = self.get_parameter(name)
        getattr(parameter, "weight_loader", default_weight_loader)(parameter, tensor)


def rotary(spec: DrafterSpec) -> Any:
    """RoPE over the rotated part, by pairs (2i, 2i + 1), which SGLang calls not neox.

    Raises:
        ValueError: a kind of scaling, or of yarn, that SGLang does not compute for pairs.
    """
    scaling: dict[str, Any] | None = dict(spec.rope_scaling or {})
    assert scaling is not None
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind in ("yarn", "deepseek_yarn"):
        scaling = _yarn(scaling)
    elif kind in ("default", "dynamic"):
        # Dynamic scaling changes nothing up to max_position_embeddings, where the head ends; SGLang's changes all.
        scaling = None
    elif kind not in ("linear", "llama3"):
        raise ValueError(
            f"EAGLE31: an MLA head with rope_scaling of type {kind!r}, expected default, linear, dynamic, llama3 or "
            "yarn; fix: serve it where that type is known"
        )
    return get_rope(
        spec.qk_rope_head_dim,
        rotary_dim=spec.qk_rope_head_dim,
        max_position=spec.max_position_embeddings,
        base=spec.rope_theta,
        is_neox_style=False,
        rope_scaling=scaling,
    )


def _yarn(scaling: dict[str, Any]) -> dict[str, Any]:
    """SGLang's name for DeepSeek's yarn: cos and sin times mscale(``mscale``) over mscale(``mscale_all_dim``)."""
    if scaling.get("truncate") is False:
        raise ValueError(
            "EAGLE31: an MLA head with rope_scaling.truncate=false, expected true: SGLang rounds yarn's range for MLA; "
            "fix: serve it without EAGLE31"
        )
    known = {name: scaling[name] for name in YARN if scaling.get(name) is not None}
    if scaling.get("attention_factor") is not None:
        known |= {"mscale": 1.0, "mscale_all_dim": 1.0, "attn_factor": float(scaling["attention_factor"])}
    return {"rope_type": "deepseek_yarn", **known}


def _check(spec: DrafterSpec) -> None:
    if spec.attention != "mla" or spec.softmax_scale is None:
        raise ValueError(
            f"EAGLE31: attention={spec.attention!r}, softmax_scale={spec.softmax_scale}, expected an MLA head that "
            "states its scale; fix: stage the head again"
        )
    if spec.sliding_window is not None:
        raise ValueError(
            f"EAGLE31: an MLA head with sliding_window={spec.sliding_window}, expected none: with MLA SGLang "
            "attends to every key; fix: serve it where windows are known for MLA"
        )
