"""Write a trained head in the SpecForge layout, with a record of how it was made."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sglang_eagle31 import __version__
from sglang_eagle31.tools.train.model import DraftConfig, DraftHead
from sglang_eagle31.tools.train.vocab import maps

DEPTH_KEY = "sglang_eagle31_trained_depth"
COMPUTED = ("variant", "boundaries", "window", "trained_depth")


def checkpoint_config(config: DraftConfig) -> dict[str, Any]:
    """The head's ``config.json``. Layer ids count outputs: id = boundary - 1."""
    flags: dict[str, Any] = {"fc_norm": True, "norm_output": True} if config.variant == "eagle31" else {}
    if config.window is not None:  # transformers' rule: so many keys, a query's own included
        flags |= {"sliding_window": config.window, "layer_types": ["sliding_attention"]}
    if config.trained_depth:
        flags[DEPTH_KEY] = config.trained_depth
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": config.hidden_size,
        "target_hidden_size": config.target_hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "max_position_embeddings": config.max_position_embeddings,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [b - 1 for b in config.boundaries],
            "use_aux_hidden_state": True,
        },
        **flags,
        "sglang_eagle31_version": __version__,
    }


def read_config(folder: Path) -> DraftConfig:
    """Inverse of ``checkpoint_config`` for heads of this trainer."""
    raw = json.loads((folder / "config.json").read_text())
    return DraftConfig(
        variant="eagle31" if raw.get("norm_output") else "eagle3",
        boundaries=tuple(i + 1 for i in raw["eagle_config"]["eagle_aux_hidden_state_layer_ids"]),
        window=raw.get("sliding_window"),
        trained_depth=raw.get(DEPTH_KEY, 0),
        **{name: raw[name] for name in DraftConfig.__dataclass_fields__ if name not in COMPUTED},
    )


def export(
    folder: Path, head: DraftHead, used: Tensor, provenance: dict[str, Any], dtype: torch.dtype = torch.bfloat16
) -> None:
    """Write config.json, model.safetensors and provenance.json; each file appears only when complete.

    used ``[V_d]``: target id of each draft id. The embedding is the target's and is not written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    d2t, t2d = maps(used.cpu(), head.config.vocab_size)
    tensors = {name: value.detach().to("cpu", dtype).contiguous() for name, value in head.state_dict().items()}
    with tempfile.TemporaryDirectory(dir=folder, prefix=".export-") as scratch:
        new = Path(scratch)
        save_file({**tensors, "d2t": d2t, "t2d": t2d}, new / "model.safetensors", metadata={"format": "pt"})
        (new / "config.json").write_text(json.dumps(checkpoint_config(head.config), indent=2) + "\n")
        (new / "provenance.json").write_text(json.dumps(provenance, indent=2) + "\n")
        for name in ("model.safetensors", "config.json", "provenance.json"):
            os.chmod(new / name, 0o644)
            os.replace(new / name, folder / name)


def load_head(folder: Path) -> tuple[DraftHead, Tensor]:
    """A head of this trainer in fp32, and its ``used [V_d]``."""
    tensors = load_file(folder / "model.safetensors")
    d2t = tensors.pop("d2t")
    tensors.pop("t2d")
    head = DraftHead(read_config(folder))
    head.load_state_dict(tensors)
    return head.float(), d2t + torch.arange(len(d2t))
