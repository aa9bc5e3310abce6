"""Every producer's files through our loader and the served module, against the independent reader and reference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from exact import TOLERANCE, answers, difference, resolved
from harness import batch_of, build
from truth import producers, readers

from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.stage import stage

SHAPE = producers.Shape()
EXACT = [name for name, variant in producers.VARIANTS.items() if not variant.refused]


@pytest.mark.parametrize("variant", EXACT)
def test_the_served_module_computes_what_the_producer_trained(variant: str, tmp_path: Path) -> None:
    folder = producers.write(tmp_path / "head", variant, SHAPE)
    reading, reasons = resolved(folder, SHAPE, answers(variant, SHAPE))
    assert reasons == []
    assert difference(folder, reading, variant, SHAPE, tmp_path) < TOLERANCE


@pytest.mark.parametrize("variant", EXACT)
def test_the_spec_says_what_the_producer_trained(variant: str, tmp_path: Path) -> None:
    folder = producers.write(tmp_path / "head", variant, SHAPE)
    reading, _ = resolved(folder, SHAPE, answers(variant, SHAPE))
    spec = reading.spec().to_json()
    wrong = {
        name: (spec[name], value)
        for name, value in producers.VARIANTS[variant].facts(SHAPE).items()
        if spec[name] != value and not (name == "later_norm" and spec["num_layers"] == 1)
    }
    assert wrong == {}


def test_the_comparison_sees_one_wrong_switch(tmp_path: Path) -> None:
    folder = producers.write(tmp_path / "head", "torchspec31", SHAPE)
    reading, _ = resolved(folder, SHAPE, {"feedback": "pre"})
    assert difference(folder, reading, "torchspec31", SHAPE, tmp_path) > 100 * TOLERANCE


def test_one_norm_more(tmp_path: Path) -> None:
    """ModelOpt's double norm is a switch of its own."""
    folder = producers.write(tmp_path / "head", "modelopt_hf", SHAPE)
    twice, _ = resolved(folder, SHAPE, {**answers("modelopt_hf", SHAPE), "double_norm": "true"})
    assert difference(folder, twice, "modelopt_hf", SHAPE, tmp_path, {"double_norm": True}) < TOLERANCE
    assert difference(folder, twice, "modelopt_hf", SHAPE, tmp_path) > 100 * TOLERANCE


def test_padded_rows_of_an_idle_rank_are_not_fused(tmp_path: Path) -> None:
    """With data-parallel attention SGLang pads the states of a rank without requests, as wide as the draft's own."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    folder = producers.write(tmp_path / "head", "eagle31_native", SHAPE)
    reading, _ = resolved(folder, SHAPE, answers("eagle31_native", SHAPE))
    embed = torch.randn(SHAPE.vocab, SHAPE.hidden)
    module = build(stage(Checkpoint.read(folder), reading, "float32", tmp_path), embed, embed)
    ids, states = torch.zeros(3, dtype=torch.long), torch.zeros(3, SHAPE.hidden)
    assert module.spec.captured * SHAPE.target_hidden != SHAPE.hidden
    batch = batch_of(ForwardMode.IDLE, ids, 0, states)
    with torch.inference_mode():
        logits, fed = module.model(ids, batch.positions, batch, None)
    assert logits.shape == fed.shape == states.shape


def test_the_reader_is_not_ours() -> None:
    source = "".join(path.read_text() for path in Path(readers.__file__).parent.glob("*.py"))
    assert "import sglang" not in source and "from sglang" not in source and torch.__name__ == "torch"
