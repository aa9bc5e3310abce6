"""Whose lm_head and whose embedding, and the map from draft tokens to the target's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import heads
import pytest
import torch
from heads import SHAPE, Case
from truth import producers

from sglang_eagle31.head.check import resolve
from sglang_eagle31.head.checkpoint import Checkpoint

V, VD, H = SHAPE.vocab, SHAPE.draft_vocab, SHAPE.hidden
OFFSETS = producers.head("specforge")["d2t"]
USED = OFFSETS + torch.arange(VD)
T2D = torch.isin(torch.arange(V), USED)
NO_HEAD = {"lm_head.weight": None, "d2t": None}
TIED: dict[str, Any] = {"tie_word_embeddings": True}


def written(folder: Path, variant: str = "specforge", **how: Any) -> tuple[Any, list[str]]:
    return resolve(Checkpoint.read(producers.write(folder, variant, **how)), heads.target_of(), {})


BROKEN_MAPS: dict[str, tuple[dict[str, Any], str]] = {
    "absolute ids": ({"d2t": USED}, "it looks like absolute ids"),
    "negative": ({"d2t": OFFSETS - 300}, "not in offset form over 512 target tokens"),
    "beyond the target": ({"d2t": OFFSETS + 300}, "not in offset form over 512 target tokens"),
    "not ascending": ({"d2t": OFFSETS.flip(0)}, "not in offset form"),
    "one token twice": (
        {"d2t": torch.where(torch.arange(VD) == 5, OFFSETS.roll(1) - 1, OFFSETS)},
        "not in offset form",
    ),
    "another t2d": ({"t2d": T2D.roll(1)}, "d2t and t2d name different tokens"),
    "a t2d of all": ({"t2d": torch.ones(V, dtype=torch.bool)}, "d2t and t2d name different tokens"),
    "a t2d of none": ({"t2d": torch.zeros(V, dtype=torch.bool)}, "d2t and t2d name different tokens"),
    "a t2d of another target": ({"t2d": torch.ones(V - 1, dtype=torch.bool)}, "t2d has shape [511], the target 512"),
    "a t2d of ids": ({"t2d": torch.zeros(V, 2, dtype=torch.bool)}, "t2d has shape [512, 2], the target 512"),
    "all zeros": ({"d2t": torch.zeros(VD, dtype=torch.int64)}, "d2t and t2d name different tokens"),
    "missing": ({"d2t": None}, "384 of the target's 512 tokens and there is no d2t"),
    "floats": ({"d2t": OFFSETS.float()}, "d2t in model.safetensors is F32"),
    "bytes": ({"d2t": OFFSETS.to(torch.uint8)}, "d2t in model.safetensors is U8"),
    "too short": ({"d2t": OFFSETS[:-1]}, "d2t in model.safetensors has shape [383], expected [384]"),
    "two columns": ({"d2t": OFFSETS[:, None]}, "d2t in model.safetensors has shape [384, 1], expected [384]"),
}


@pytest.mark.parametrize(("change", "named"), BROKEN_MAPS.values(), ids=BROKEN_MAPS.keys())
def test_a_broken_map_is_refused(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    _, reasons = written(tmp_path, "vllm", change=change)
    assert len(reasons) == 1 and named in reasons[0] and "fix: " in reasons[0]


@pytest.mark.parametrize("change", [{}, {"t2d": None}, {"d2t": OFFSETS.int()}, {"t2d": T2D.to(torch.uint8)}])
def test_a_good_map_is_read(tmp_path: Path, change: dict[str, Any]) -> None:
    reading, reasons = written(tmp_path, "vllm", change=change)
    assert reasons == [] and reading.spec().vocab_map and reading.spec().draft_vocab_size == VD


def test_a_map_of_a_full_vocabulary_is_zero_or_refused(tmp_path: Path) -> None:
    full = producers.head("specforge", reduced=False)
    reading, reasons = written(tmp_path / "zero", weights=full)
    assert reasons == [] and not reading.spec().vocab_map and "d2t" not in reading.names
    moved = torch.zeros(V, dtype=torch.int64)
    moved[7] = 1
    _, reasons = written(tmp_path / "moved", weights=full, change={"d2t": moved})
    assert len(reasons) == 1 and "maps to other tokens although" in reasons[0] and "fix: " in reasons[0]


OWNERS = [
    # variant, bent, own head, own embedding, map
    ("specforge", {}, True, False, True),
    ("specforge", {"config": TIED}, True, False, True),
    ("nemo", {}, True, True, True),
    ("nemo", {"config": TIED}, True, True, True),
    ("angelslim_tied", {}, True, True, True),
    ("nvidia_no_head", {}, False, False, False),
    ("nvidia_no_head", {"config": TIED}, False, False, False),
    ("nvidia_no_head", {"config": {"draft_vocab_size": ...}}, False, False, False),
    ("nvidia_no_head", {"tensors": {"embed_tokens.weight": (V, H)}}, False, True, False),
    ("modelopt_mla", {}, True, False, False),
    ("modelopt_megatron_full_vocab", {"config": {"draft_vocab_size": None}}, True, False, False),
]


@pytest.mark.parametrize(("variant", "bent", "head", "embedding", "mapped"), OWNERS)
def test_a_shipped_head_or_embedding_is_the_one_that_is_used(
    variant: str, bent: dict[str, Any], head: bool, embedding: bool, mapped: bool
) -> None:
    """Whatever ``tie_word_embeddings`` says: a head of its own is never tied over."""
    reading, reasons = resolve(heads.bend(heads.kept(variant), **bent), heads.target_of(), heads.answers(variant))
    assert reasons == []
    spec = reading.spec()
    assert (spec.own_head, spec.own_embedding, spec.vocab_map) == (head, embedding, mapped)
    expected = spec.expected_tensors()
    assert ("lm_head.weight" in expected, "embed_tokens.weight" in expected, "d2t" in expected) == (
        head,
        embedding,
        mapped,
    )


REFUSED = [
    Case(
        "nvidia_no_head",
        ("ties lm_head to an embedding of the head's own",),
        {"config": TIED, "tensors": {"embed_tokens.weight": (V, H)}},
    ),
    Case("specforge", ("draft_vocab_size=384", "should be there and is not"), {"tensors": {"lm_head.weight": None}}),
    Case(
        "nvidia_no_head", ("draft_vocab_size=512", "should be there and is not"), {"config": {"draft_vocab_size": 512}}
    ),
    Case("specforge", ("draft_vocab_size=383", "lm_head.weight has 384 rows"), {"config": {"draft_vocab_size": 383}}),
    Case("modelopt_megatron_full_vocab", ("512 tokens, the target only 500",), target={"vocab_size": 500}),
    Case("modelopt_megatron", ("384 of the target's 512 tokens", "no d2t")),
    Case(
        "nemo",
        ("embed_tokens.weight in model.safetensors has shape [512, 32], expected [512, 64]",),
        {"tensors": {"model.embed_tokens.weight": (V, 32)}},
    ),
    Case(
        "nemo",
        ("embed_tokens.weight", "[500, 64], expected [512, 64]"),
        {"tensors": {"model.embed_tokens.weight": (500, H)}},
    ),
    Case(
        "specforge",
        ("lm_head.weight in model.safetensors has shape [384, 32]",),
        {"tensors": {"lm_head.weight": (VD, 32)}},
    ),
    Case("specforge", ("is F8_E4M3: quantised",), {"tensors": {"lm_head.weight": ((VD, H), "F8_E4M3")}}),
]


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_a_vocabulary_that_does_not_fit_is_refused(case: Case) -> None:
    case.reason()


def test_a_head_of_another_width_cannot_share(tmp_path: Path) -> None:
    shape = replace(SHAPE, target_hidden=96)
    head = Checkpoint.read(producers.write(tmp_path, "nvidia_no_head", shape))
    _, reasons = resolve(head, heads.target_of(shape), {})
    assert len(reasons) == 2
    for reason, name in zip(reasons, ("embed_tokens.weight", "lm_head.weight"), strict=True):
        assert "hidden size 64" in reason and name in reason and "width 96" in reason and "fix: " in reason
    wide = Checkpoint.read(producers.write(tmp_path / "own", "torchspec", shape))
    reading, reasons = resolve(wide, heads.target_of(shape), {})
    assert reasons == [] and reading.spec().target_hidden_size == 96
    _, reasons = resolve(wide, heads.target_of(shape), {"own_embedding": "false"})
    assert len(reasons) == 1 and "ships no embed_tokens.weight" in reasons[0]
