"""Start from a finished head: its weights, draft vocabulary and shape, read as the server reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sglang_eagle31.head.check import resolve
from sglang_eagle31.head.checkpoint import Checkpoint, local_folder
from sglang_eagle31.head.reading import Reading
from sglang_eagle31.head.spec import FIRST_NORMS, DrafterSpec
from sglang_eagle31.head.target import read_target
from sglang_eagle31.tools.train.model import DraftConfig, DraftHead

VARIANTS: Mapping[tuple[str, str], str] = {("none", "pre"): "eagle3", ("fc_norm", "post"): "eagle31"}
TRAINED: Mapping[str, Any] = {
    "attention": "gqa",
    "num_layers": 1,
    "hidden_act": "silu",
    "use_aux_hidden_state": True,
    "residual": "pre",
    "logits": "norm",
    "first_norms": FIRST_NORMS,
    "double_norm": False,
    "final_norm": True,
    "fc_bias": False,
    "qkv_bias": False,
    "o_bias": False,
    "mlp_bias": False,
    "qk_norm": False,
    "own_head": True,
    "rope_scaling": None,
    "partial_rotary_factor": 1.0,
    "softmax_scale": None,
}
"""What this trainer computes; a head with another value of one of these is refused."""


def read_head(
    path: str, target: str, overrides: Mapping[str, str], embedding: Tensor, window: int | None, trained_depth: int
) -> tuple[DraftHead, Tensor]:
    """The head at ``path`` in float32 and its ``used [V_d]``; ``embedding [V, H]`` is the target's.

    Raises:
        ValueError: the head is refused, needs an override, or computes what this trainer does not.
    """
    checkpoint = Checkpoint.read(local_folder(path))
    reading, reasons = resolve(checkpoint, read_target(target), overrides)
    if reasons:
        raise ValueError(f"--init {path}: " + "\n".join(reasons))
    spec = reading.spec()
    _check(path, spec)
    tensors = {new: checkpoint.load(old) for old, new in reading.names.items()}
    own = tensors.pop("embed_tokens.weight", None)
    if own is not None and not torch.equal(own.to(torch.bfloat16), embedding.to(torch.bfloat16)):
        has = "embed_tokens.weight differs from the target's embedding, and this trainer shares the target's"
        raise ValueError(f"--init {path}: {has}; fix: train it with the trainer that made it")
    d2t = tensors.pop("d2t", torch.zeros(spec.draft_vocab_size, dtype=torch.int64))
    head = DraftHead(_config(spec, reading, window, trained_depth))
    renamed = {name.replace("layers.0.", "midlayer.", 1): value.float() for name, value in tensors.items()}
    head.load_state_dict(renamed)
    return head, d2t.long() + torch.arange(len(d2t))


def _check(path: str, spec: DrafterSpec) -> None:
    found = {name: getattr(spec, name) for name in TRAINED}
    odd = [f"{name}={value!r} (expected {TRAINED[name]!r})" for name, value in found.items() if value != TRAINED[name]]
    if (spec.pre_fc_norm, spec.feedback) not in VARIANTS:
        odd.append(f"pre_fc_norm={spec.pre_fc_norm!r} with feedback={spec.feedback!r}")
    if odd:
        what = "; ".join(odd)
        raise ValueError(f"--init {path}: this trainer has no {what}; fix: train it with the trainer that made it")


def _config(spec: DrafterSpec, reading: Reading, window: int | None, trained_depth: int) -> DraftConfig:
    return DraftConfig(
        variant=VARIANTS[spec.pre_fc_norm, spec.feedback],
        boundaries=spec.boundaries,
        hidden_size=spec.hidden_size,
        target_hidden_size=spec.target_hidden_size,
        intermediate_size=spec.intermediate_size,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        vocab_size=spec.vocab_size,
        draft_vocab_size=spec.draft_vocab_size,
        max_position_embeddings=spec.max_position_embeddings,
        rms_norm_eps=spec.rms_norm_eps,
        rope_theta=spec.rope_theta,
        window=spec.sliding_window if window is None else window,
        trained_depth=trained_depth,
    )
