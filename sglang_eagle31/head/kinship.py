"""Whether a head belongs to its target, by what both ship: the tokenizer, and rows of the embedding.

Headers and a few rows are read, never a whole tensor, so that it takes as long for a large target as for a small one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_eagle31.head.checkpoint import Checkpoint, Tensor, tensor_files

ROWS = 64
UNRELATED = 0.15
"""Mean absolute cosine below which rows of the two embeddings are called unrelated: that of random rows of width 576 is
0.03, that of a fine-tuned embedding is near 1."""
DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
"""safetensors' names of the dtypes that a head may have, and torch's."""
LOSES = {"BF16": ("float16",), "F16": ("bfloat16",), "F32": ("bfloat16", "float16")}
STORED = {"BF16": "<u2", "F16": "<f2", "F32": "<f4"}
"""safetensors' names and how numpy reads the bytes; it has no bfloat16, which is the upper half of a float32."""
SHORTEST = 1e-8
"""Rows of a smaller norm count as rows of this norm, so that a row of zeros has cosine 0 with all."""
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
    try:
        files = tensor_files(target)
    except ValueError:  # whether the target's own files are whole is its loader's affair
        return None
    found = next((item for item in EMBEDDINGS if item in files), None)
    if found is None or files[found].shape != head.tensors[name].shape:
        return None
    if not {files[found].dtype, head.tensors[name].dtype} <= set(STORED):
        return None
    step = max(1, files[found].shape[0] // ROWS)
    mine, its = (_directions(_rows(*one, step)) for one in ((head.tensors[name], name), (files[found], found)))
    return float(np.nan_to_num(np.abs((mine * its).sum(1)).mean()))


def _rows(tensor: Tensor, name: str, step: int) -> NDArray[np.float64]:
    """Every ``step``-th row, from where it lies in the file: an 8-byte length, the JSON header, then the data."""
    with tensor.file.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        start = 8 + length + json.loads(file.read(length))[name]["data_offsets"][0]
    rows: NDArray[Any] = np.memmap(tensor.file, STORED[tensor.dtype], "r", start, tensor.shape)[::step]
    if tensor.dtype == "BF16":
        rows = (rows.astype(np.uint32) << 16).view(np.float32)
    return rows.astype(np.float64)


def _directions(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows of norm 1; NaN in those that have a NaN or an infinity."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True).clip(SHORTEST)
    with np.errstate(invalid="ignore"):
        directions: NDArray[np.float64] = rows / norms
    return directions


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
