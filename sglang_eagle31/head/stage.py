"""Canonical staging: a folder with our config.json beside links to the head's own weight files.

SGLang reads the draft path in many places; given a canonical folder, its config and model loading need no patch.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.dialects.native import STAGED, STAGED_NAMES
from sglang_eagle31.head.reading import Reading
from sglang_eagle31.head.spec import DrafterSpec

ARCHITECTURE = "Eagle31LlamaForCausalLM"
LATENT_ARCHITECTURE = "Eagle3DeepseekV2ForCausalLM"
"""A second name, by which SGLang gives the draft a latent KV cache; the class is that of the first."""


def cache_dir(option: str | None = None) -> Path:
    """The cache folder: the option, or ``$SGLANG_EAGLE31_CACHE``, or ``~/.cache/sglang-eagle31``."""
    chosen = option or os.environ.get("SGLANG_EAGLE31_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "sglang-eagle31"


def canonical_config(spec: DrafterSpec, names: dict[str, str], dtype: str) -> dict[str, Any]:
    """The config.json that SGLang reads; everything that decides the computation is in the spec."""
    rope: dict[str, Any] = {"rope_type": "default", **(spec.rope_scaling or {}), "rope_theta": spec.rope_theta}
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "hidden_size": spec.hidden_size,
        "target_hidden_size": spec.target_hidden_size,
        "num_aux_hidden_states": spec.captured,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "hidden_act": spec.hidden_act,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_parameters": rope,
        "max_position_embeddings": spec.max_position_embeddings,
        "vocab_size": spec.vocab_size,
        "draft_vocab_size": spec.draft_vocab_size,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
        "eagle_config": _captured(spec),
        STAGED: spec.to_json(),
        STAGED_NAMES: names,
        **(_latent_config(spec) if spec.attention == "mla" else {}),
    }


def _captured(spec: DrafterSpec) -> dict[str, Any]:
    if not spec.use_aux_hidden_state:
        return {"use_aux_hidden_state": False}
    # Ids of the layer whose output is taken, as most of SGLang's targets read them; what a target really captures is
    # compared with the spec afterwards.
    return {
        "eagle_aux_hidden_state_layer_ids": [boundary - 1 for boundary in spec.boundaries],
        "use_aux_hidden_state": True,
    }


def _latent_config(spec: DrafterSpec) -> dict[str, Any]:
    """What SGLang's model config reads of an MLA draft: the sizes of its cache, and its softmax scale.

    Some GPU backends take the scale from the model config and not from the layer. SGLang derives it from the RoPE
    scaling as ``(0.1 * mscale_all_dim * ln(factor) + 1)**2 / sqrt(nope + rope)``, whatever the trainer did, so the
    scaling written here is the one that gives the spec's scale. The drafter's positions are the spec's.
    """
    assert spec.softmax_scale is not None, "a dialect always states the softmax scale of an MLA head"
    mscale = math.sqrt(spec.softmax_scale * math.sqrt(spec.qk_nope_head_dim + spec.qk_rope_head_dim))
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": spec.rope_theta}
    if not math.isclose(mscale, 1.0, rel_tol=1e-9):
        rope |= {"rope_type": "yarn", "factor": math.e, "mscale_all_dim": 10 * (mscale - 1)}
        rope["original_max_position_embeddings"] = spec.max_position_embeddings
    return {
        "architectures": [ARCHITECTURE, LATENT_ARCHITECTURE],
        "rope_parameters": rope,
        "q_lora_rank": spec.q_lora_rank,
        "kv_lora_rank": spec.kv_lora_rank,
        "qk_nope_head_dim": spec.qk_nope_head_dim,
        "qk_rope_head_dim": spec.qk_rope_head_dim,
        "v_head_dim": spec.v_head_dim,
    }


def stage(head: Checkpoint, reading: Reading, dtype: str, cache: Path) -> Path:
    """Write the staged folder of a head, or find it; the name is a hash of everything in it.

    Returns:
        the folder to give SGLang as the draft path.
    """
    config = json.dumps(canonical_config(reading.spec(), reading.names, dtype), indent=1, sort_keys=True)
    files = sorted({tensor.file for tensor in head.tensors.values()})
    facts = [f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files]
    name = hashlib.sha256("\n".join([config, *facts]).encode()).hexdigest()[:16]
    folder = cache / "staged" / f"{head.folder.name}-{name}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=folder.name, dir=folder.parent))
    (draft / "config.json").write_text(config)
    for file in files:
        (draft / file.name).symlink_to(file.resolve())
    try:
        draft.rename(folder)
    except OSError:  # another process was first, or the disk refuses
        shutil.rmtree(draft)
        if not folder.is_dir():
            raise
    return folder
