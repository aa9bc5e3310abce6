"""Canonical staging: a folder with our config.json beside links to the head's own weight files.

SGLang reads the draft path in many places; given a canonical folder, its config and model loading need no patch.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from sglang_eagle31.drafter.checkpoint import Checkpoint
from sglang_eagle31.drafter.dialects.native import STAGED, STAGED_NAMES
from sglang_eagle31.drafter.reading import Reading
from sglang_eagle31.drafter.spec import DrafterSpec

ARCHITECTURE = "Eagle31LlamaForCausalLM"


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
        "num_aux_hidden_states": len(spec.boundaries),
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
        # Ids of the layer whose output is taken, as most of SGLang's targets read them; what a target really captures
        # is compared with the spec afterwards.
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [boundary - 1 for boundary in spec.boundaries],
            "use_aux_hidden_state": True,
        },
        STAGED: spec.to_json(),
        STAGED_NAMES: names,
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
