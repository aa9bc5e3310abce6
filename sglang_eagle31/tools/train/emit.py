"""The same run for trainers made for larger jobs: their run config, the head's config, and the conversations.

Keys and value kinds are those of SpecForge's ``specforge/config/schema.py`` (commit 0145bec, its ``Config``) and of
TorchSpec's ``torchspec/config/train_config.py`` and ``inference_config.py`` (commits 071a035, 2519160). Only what this
run states is written; the rest keeps those trainers' defaults.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sglang_eagle31.tools.train.export import checkpoint_config
from sglang_eagle31.tools.train.model import DraftConfig, config_for
from sglang_eagle31.tools.train.options import Options
from sglang_eagle31.tools.train.target import default_boundaries, parse_boundaries, read_config

OURS = ("sglang_eagle31_version", "sglang_eagle31_trained_depth")
NOTES = {
    "specforge": (
        "specforge train --config run.yaml",
        "SpecForge captures online on patched SGLang servers: adapt deployment (GPUs, ports) to your machine.",
        "norm_output means post-norm feedback only since its PR 879; older versions train EAGLE-3 feedback.",
    ),
    "torchspec": (
        "python -m torchspec.train_entry --config run.yaml",
        "fc_norm and norm_output need TorchSpec with its PR 97; adapt inference and training GPUs to your machine.",
    ),
}


def emit(kind: str, out: Path, args: argparse.Namespace, options: Options) -> list[Path]:
    """Write ``out/run.yaml``, ``out/draft.json`` and, with --data, ``out/conversations.jsonl``; returns the paths.

    Raises ValueError for an unknown trainer, for a head that it cannot train, and for a run without --samples data.
    """
    if kind not in WRITERS:
        raise ValueError(f"--emit {kind}: unknown trainer; fix: one of {', '.join(WRITERS)}")
    if args.window is not None:
        raise ValueError(f"--emit {kind} with --window {args.window}: no such key there; fix: leave --window out")
    target = read_config(args.target)
    boundaries = parse_boundaries(args.layers) or default_boundaries(int(target.num_hidden_layers))
    head = config_for(target, args.variant, boundaries, args.draft_vocab)
    answers = None if args.data is None else _answers(args.data / "answers")
    out.mkdir(parents=True, exist_ok=True)
    draft = {name: value for name, value in checkpoint_config(head).items() if name not in OURS}
    config = {"run.yaml": WRITERS[kind](args, options, head), "draft.json": draft}
    lines = [f"# {line}\n" for line in NOTES[kind]]
    size = f"{options.accumulate} x {options.batch_tokens} tokens"
    lines.append(f"# A step here has {size}; batches there are counted in conversations.\n")
    if args.data is None:
        lines.append('# conversations.jsonl: {"id": ..., "conversations": [{"role": ..., "content": ...}]} a line.\n')
    import yaml

    written = [out / "run.yaml", out / "draft.json"]
    written[0].write_text("".join(lines) + yaml.safe_dump(config["run.yaml"], sort_keys=False))
    written[1].write_text(json.dumps(config["draft.json"], indent=2) + "\n")
    if answers is not None:
        written.append(_conversations(answers, out / "conversations.jsonl"))
    return written


def _answers(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise ValueError(f"{folder}: no answers in it; fix: make them (python -m sglang_eagle31 data --out ...)")
    return files


def _conversations(files: list[Path], path: Path) -> Path:
    """``{"id", "conversations": [{"role", "content"}]}`` a line, which both trainers read."""
    with path.open("w", encoding="utf-8") as out:
        for line in (json.loads(text) for file in files for text in file.read_text(encoding="utf-8").splitlines()):
            out.write(json.dumps({"id": line["id"], "conversations": line["messages"]}, ensure_ascii=False) + "\n")
    return path


def _specforge(args: argparse.Namespace, options: Options, head: DraftConfig) -> dict[str, Any]:
    ids = [b - 1 for b in head.boundaries]
    return {
        "model": {
            "target_model_path": args.target,
            "draft_model_config": "draft.json",
            "target_backend": "sglang",
            "aux_hidden_state_layer_ids": ids,
            "torch_dtype": "bfloat16",
        },
        "data": {
            "train_data_path": "conversations.jsonl",
            "max_length": min(head.max_position_embeddings, 4096),
            "chat_template": args.chat_template,
        },
        "training": {
            "strategy": "eagle3",
            **({"num_epochs": options.epochs} if options.epochs else {"max_steps": options.steps}),
            "accumulation_steps": options.accumulate,
            "learning_rate": options.lr,
            "warmup_ratio": options.warmup,
            "max_grad_norm": options.clip,
            "ttt_length": options.ttt,
            "save_interval": options.save_every,
            "role": "auto",
            "seed": options.seed,
        },
        "deployment": {
            "mode": "disaggregated",
            "disaggregated": {
                "control_dir": "control",
                "backend": "mooncake",
                "managed_local": {
                    "trainer_cuda_visible_devices": ["0"],
                    "capture_servers": [{"port": 31000, "cuda_visible_devices": ["1"]}],
                },
            },
        },
        "run_id": f"{head.variant}-seed{options.seed}",
        "output_dir": "output",
    }


def _torchspec(args: argparse.Namespace, options: Options, head: DraftConfig) -> dict[str, Any]:
    return {
        "model": {
            "target_model_path": args.target,
            "draft_model_config": "draft.json",
            "target_model_backend": "sglang",
        },
        "dataset": {
            "train_data_path": "conversations.jsonl",
            "chat_template": args.chat_template,
            "prompt_key": "conversations",
        },
        "training": {
            **({"num_epochs": options.epochs} if options.epochs else {"num_train_steps": options.steps}),
            "draft_accumulation_steps": options.accumulate,
            "learning_rate": options.lr,
            "warmup_ratio": options.warmup,
            "max_grad_norm": options.clip,
            "max_seq_length": min(head.max_position_embeddings, 4096),
            "ttt_length": options.ttt,
            "save_interval": options.save_every,
            "seed": options.seed,
        },
        "inference": {
            "aux_hidden_states_layers": [b - 1 for b in head.boundaries],
            "inference_engine_type": "sgl",
            "sglang": {"tp_size": 1},
        },
        "output_dir": "output",
    }


WRITERS: Mapping[str, Callable[[argparse.Namespace, Options, DraftConfig], dict[str, Any]]] = {
    "specforge": _specforge,
    "torchspec": _torchspec,
}
