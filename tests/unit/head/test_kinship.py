"""Whether a head belongs to its target: the tokenizers' ids, and how alike the embeddings are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import heads
import pytest
import torch
from heads import SHAPE
from safetensors.torch import save_file
from truth import producers
from truth.rounding import gamma

from sglang_eagle31.head.check import resolve
from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.kinship import UNRELATED, dtype_notes, embedding_cosine

NAME = "model.embed_tokens.weight"
VOCABULARY = {"a": 0, "b": 1, "c": 2}


def tokenizer(folder: Path, vocab: Any, added: Any = (), kind: str = "BPE") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    raw = {"model": {"type": kind, "vocab": vocab}, "added_tokens": added}
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    return folder


def embedding(seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(SHAPE.vocab, SHAPE.hidden, generator=torch.Generator().manual_seed(seed)).to(dtype)


def pair(folder: Path, mine: torch.Tensor, its: torch.Tensor | None, name: str = NAME) -> tuple[Checkpoint, Path]:
    """A head with the embedding ``mine``, and the folder of a target with ``its``."""
    weights = {**producers.head("nemo"), "embed_tokens.weight": mine}
    head = Checkpoint.read(producers.write(folder / "head", "nemo", weights=weights, dtype=mine.dtype))
    target = folder / "target"
    target.mkdir()
    save_file({name: its} if its is not None else {"lm_head.weight": torch.ones(1)}, target / "model.safetensors")
    return head, target


MOVED: dict[str, tuple[Any, Any]] = {
    "swapped": ({"a": 1, "b": 0, "c": 2}, ()),
    "shifted": ({"a": 1, "b": 2, "c": 3}, ()),
    "an added token": (VOCABULARY, [{"id": 7, "content": "<s>"}]),
    "added over": (VOCABULARY, [{"id": 9, "content": "b"}]),
    "as a list": ([["b", 0.0], ["a", -1.0]], ()),
}


@pytest.mark.parametrize(("vocab", "added"), MOVED.values(), ids=MOVED.keys())
def test_a_tokenizer_with_other_ids_is_refused(tmp_path: Path, vocab: Any, added: Any) -> None:
    folder = producers.write(tmp_path / "head", "specforge")
    tokenizer(folder, vocab, added)
    target = tokenizer(tmp_path / "target", VOCABULARY, [{"id": 3, "content": "<s>"}])
    _, reasons = resolve(Checkpoint.read(folder), heads.target_of(folder=target), {})
    assert len(reasons) == 1 and "tokenizer.json gives" in reasons[0] and "other ids than the target's" in reasons[0]
    assert "fix: use a head trained with the target's tokenizer" in reasons[0]


def test_the_reason_names_a_token_and_both_ids(tmp_path: Path) -> None:
    folder = tokenizer(producers.write(tmp_path / "head", "specforge"), {"a": 0, "b": 5})
    _, reasons = resolve(
        Checkpoint.read(folder), heads.target_of(folder=tokenizer(tmp_path / "target", VOCABULARY)), {}
    )
    assert "gives 1 tokens other ids" in reasons[0] and "'b' 5 instead of 1" in reasons[0]


KIN: dict[str, Any] = {
    "the same": VOCABULARY,
    "fewer tokens": {"a": 0},
    "a token that the target has not": {**VOCABULARY, "new": 9},
    "unigram": [["a", 0.0], ["b", -1.0], ["c", -2.0]],
    "empty": {},
}


@pytest.mark.parametrize("vocab", KIN.values(), ids=KIN.keys())
def test_a_tokenizer_with_the_same_ids_is_kin(tmp_path: Path, vocab: Any) -> None:
    folder = tokenizer(producers.write(tmp_path / "head", "specforge"), vocab)
    target = tokenizer(tmp_path / "target", VOCABULARY)
    assert resolve(Checkpoint.read(folder), heads.target_of(folder=target), {})[1] == []


@pytest.mark.parametrize("text", [None, "", "[]", "{", '{"model": 3}', '{"model": {"vocab": [3]}}', "null"])
def test_a_tokenizer_that_cannot_be_read_says_nothing(tmp_path: Path, text: str | None) -> None:
    folder = producers.write(tmp_path / "head", "specforge")
    if text is not None:
        (folder / "tokenizer.json").write_text(text)
    target = tokenizer(tmp_path / "target", VOCABULARY)
    assert resolve(Checkpoint.read(folder), heads.target_of(folder=target), {})[1] == []


def test_without_a_target_s_folder_nothing_is_compared(tmp_path: Path) -> None:
    folder = tokenizer(producers.write(tmp_path / "head", "specforge"), {"a": 7})
    assert resolve(Checkpoint.read(folder), heads.target_of(), {})[1] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [NAME, "embed_tokens.weight", "language_model.model.embed_tokens.weight"])
def test_a_copied_or_fine_tuned_embedding_is_related(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    mine = embedding(dtype=dtype)
    tuned = (mine.float() + 0.3 * embedding(1)).to(dtype)
    head, target = pair(tmp_path, mine, tuned, name)
    cosine = embedding_cosine(head, NAME, target)
    assert cosine is not None and cosine > 0.9
    reading, reasons = resolve(head, heads.target_of(folder=target), {})
    assert reasons == [] and reading.notes == []


@pytest.mark.parametrize("mine", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("its", [torch.float32, torch.bfloat16, torch.float16])
def test_the_cosine_is_torch_s(tmp_path: Path, mine: torch.dtype, its: torch.dtype) -> None:
    """Over every eighth of 512 rows, a row of zeros among them."""
    ours, theirs = embedding(1, mine), (embedding(1) + 2 * embedding(2)).to(its)
    ours[8] = 0
    head, target = pair(tmp_path, ours, theirs)
    expected = torch.nn.functional.cosine_similarity(ours[::8].float(), theirs[::8].float(), dim=-1).abs().mean()
    assert SHAPE.vocab == 512 and 0.2 < float(expected) < 0.8
    assert embedding_cosine(head, NAME, target) == pytest.approx(float(expected), abs=1e-6)


def test_an_unrelated_embedding_is_noted_and_used_as_it_was_shipped(tmp_path: Path) -> None:
    head, target = pair(tmp_path, embedding(1), embedding(2))
    reading, reasons = resolve(head, heads.target_of(folder=target), {})
    assert reasons == [] and reading.spec().own_embedding
    (note,) = reading.notes
    for part in (f"tensor {NAME}", "unrelated to the target's embedding", "--eagle31-override own_embedding=false"):
        assert part in note


def test_the_override_drops_the_embedding_and_the_note(tmp_path: Path) -> None:
    head, target = pair(tmp_path, embedding(1), embedding(2))
    reading, reasons = resolve(head, heads.target_of(folder=target), {"own_embedding": "false"})
    assert reasons == [] and reading.notes == [] and not reading.spec().own_embedding
    assert NAME not in reading.names


@pytest.mark.parametrize("fill", [0.0, float("nan")])
def test_an_embedding_of_zeros_or_of_no_numbers_is_unrelated(tmp_path: Path, fill: float) -> None:
    head, target = pair(tmp_path, torch.full((SHAPE.vocab, SHAPE.hidden), fill), embedding())
    cosine = embedding_cosine(head, NAME, target)
    assert cosine is not None and cosine < UNRELATED
    assert len(resolve(head, heads.target_of(folder=target), {})[0].notes) == 1


@pytest.mark.parametrize(
    "its",
    [
        None,
        torch.ones(SHAPE.vocab, 32),
        torch.ones(SHAPE.vocab - 1, SHAPE.hidden),
        torch.ones(512, 64, dtype=torch.int8),
    ],
    ids=["none", "narrower", "fewer tokens", "quantised"],
)
def test_an_embedding_of_another_kind_is_not_compared(tmp_path: Path, its: torch.Tensor | None) -> None:
    head, target = pair(tmp_path, embedding(1), its)
    assert embedding_cosine(head, NAME, target) is None
    reading, reasons = resolve(head, heads.target_of(folder=target), {})
    assert reasons == [] and reading.notes == []


def test_a_target_in_shards_is_read_by_its_index(tmp_path: Path) -> None:
    head, target = pair(tmp_path, embedding(1), embedding(1))
    (target / "model.safetensors").rename(target / "model-1.safetensors")
    save_file({"lm_head.weight": torch.ones(1)}, target / "model-2.safetensors")
    index = {"weight_map": {NAME: "model-1.safetensors", "lm_head.weight": "model-2.safetensors"}}
    (target / "model.safetensors.index.json").write_text(json.dumps(index))
    rounding = gamma(SHAPE.hidden + 4, torch.float32)  # a dot product, two norms, and their quotient
    assert embedding_cosine(head, NAME, target) == pytest.approx(1.0, abs=rounding)


@pytest.mark.parametrize(
    ("made", "served", "rounded"),
    [
        (torch.float32, "bfloat16", "F32"),
        (torch.float16, "bfloat16", "F16"),
        (torch.bfloat16, "float16", "BF16"),
        (torch.bfloat16, "float32", None),
        (torch.float32, "float32", None),
    ],
)
def test_rounded_weights_are_noted(tmp_path: Path, made: torch.dtype, served: str, rounded: str | None) -> None:
    head = Checkpoint.read(producers.write(tmp_path / "head", "specforge", dtype=made))
    notes = dtype_notes(head, served)
    assert bool(notes) == (rounded is not None)
    assert rounded is None or (rounded in notes[0] and served in notes[0])


def test_a_target_whose_files_cannot_be_read_is_not_compared(tmp_path: Path) -> None:
    head = Checkpoint.read(producers.write(tmp_path / "head", "torchspec"))
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "model.safetensors").write_bytes(b"cut off")
    assert embedding_cosine(head, "embed_tokens.weight", tmp_path / "target") is None
