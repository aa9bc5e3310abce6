"""Whether a head belongs to its target, by what both ship: the tokenizer, and rows of the embedding.

Headers and a few rows are read, never a whole tensor, so that it takes as long for a large target as for a small one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sglang_eagle31.drafter.checkpoint import Checkpoint, tensor_files

ROWS = 64
UNRELATED = 0.15
"""Mean absolute cosine below which rows of the two embeddings are called unrelated: that of random rows of width 576 is
0.03, that of a fine-tuned embedding is near 1."""
DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
"""safetensors' names of the dtypes that a head may have, and torch's."""
LOSES = {"BF16": ("float16",), "F16": ("bfloat16",), "F32": ("bfloat16", "float16")}
EMBEDDINGS = ("model.embed_tokens.weight", "embed_tokens.weight", "language_model.model.embed_tokens.weight")


def tokenizer_reasons(head: Path, target: Path) -> list[str]:
    """A reason to refuse when both folders have a tokenizer.json and a token has another id in the head's."""
    ours, theirs = (_tokens(folder / "tokenizer.json") for folder in (head, target))
    if not ours or not theirs:
        return []
    moved = [token for token, number in ours.items() if theirs.get(token, number) != number]
    if not moved:
        return []
    token = moved[0]
    return [
        f"tokenizer.json gives {len(moved)} tokens other ids than the target's, e.g. {token!r} {ours[token]} instead "
        f"of {theirs[token]}; fix: use a head trained with the target's tokenizer"
    ]


def embedding_notes(head: Checkpoint, name: str, target: Path) -> list[str]:
    """A note when a shipped embedding ``name`` is unrelated to the target's of the same width and size."""
    cosine = embedding_cosine(head, name, target)
    if cosine is None or cosine >= UNRELATED:
        return []
    return [
        f"tensor {name} is unrelated to the target's embedding (mean cosine {cosine:.2f} over sampled rows). It is "
        "used, as it was shipped; if it was never trained, acceptance will be near 1.0: then --eagle31-override "
        "own_embedding=false shares the target's"
    ]


def dtype_notes(head: Checkpoint, dtype: str) -> list[str]:
    """A note when the draft, which runs in the target's dtype, loses something of the head's weights."""
    kinds = sorted({tensor.dtype for tensor in head.tensors.values()} & set(DTYPES))
    lossy = [kind for kind in kinds if dtype in LOSES[kind]]
    if not lossy:
        return []
    return [f"weights of the head are {', '.join(lossy)}, and the draft runs in the target's {dtype}: they are rounded"]


def embedding_cosine(head: Checkpoint, name: str, target: Path) -> float | None:
    """Mean absolute cosine of sampled rows of the head's embedding and the target's; 0 if some are not numbers.

    None when the target ships no embedding of the same shape.
    """
    import torch

    try:
        files = tensor_files(target)
    except ValueError:  # whether the target's own files are whole is its loader's affair
        return None
    found = next((item for item in EMBEDDINGS if item in files), None)
    if found is None or files[found].shape != head.tensors[name].shape:
        return None
    if not {files[found].dtype, head.tensors[name].dtype} <= {"BF16", "F16", "F32"}:
        return None
    step = max(1, files[found].shape[0] // ROWS)
    mine, its = (_rows(file, key, step) for file, key in ((head.tensors[name].file, name), (files[found].file, found)))
    cosine = torch.nn.functional.cosine_similarity(mine, its, dim=-1).abs().mean()
    return float(torch.nan_to_num(cosine))


def _rows(file: Path, name: str, step: int) -> Any:
    import torch
    from safetensors import safe_open

    with safe_open(file, framework="pt") as handle:
        view = handle.get_slice(name)
        count = view.get_shape()[0]
        return torch.stack([view[row] for row in range(0, count, step)]).float()


def _tokens(file: Path) -> dict[str, int]:
    """Token to id of a tokenizer.json, added tokens included; empty when there is none that can be read."""
    if not file.is_file():
        return {}
    try:
        raw = json.loads(file.read_text())
        vocabulary = raw["model"]["vocab"]
        if isinstance(vocabulary, list):  # unigram: [token, score], the id is the place
            vocabulary = {item[0]: number for number, item in enumerate(vocabulary)}
        added = {item["content"]: item["id"] for item in raw.get("added_tokens") or ()}
    except (ValueError, KeyError, TypeError, IndexError):
        return {}
    return {str(token): int(number) for token, number in {**vocabulary, **added}.items()}
