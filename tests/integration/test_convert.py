"""Converted heads compute what they computed before: read back by our loader, against the original's reference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from exact import TOLERANCE, answers, compare, facts_of, target_of
from harness import build
from truth import producers, readers

from sglang_eagle31.head.check import resolve
from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.stage import stage
from sglang_eagle31.tools.convert.formats import FORMATS
from sglang_eagle31.tools.convert.run import convert

SHAPE = producers.Shape()
VARIANTS = [name for name, variant in producers.VARIANTS.items() if not variant.refused]
EXPRESSIBLE = {
    "sglang": {"specforge31", "nvidia_v3", "nvidia_no_head", "nvidia_no_aux", "modelopt_mla", "modelopt_megatron_deep"},
    "vllm": {"speculators", "speculators_qwen3", "speculators_two_layers", "nemo_bias", "torchspec_mla31", "nvidia_v3"},
    "specforge": {"specforge31", "safeailab", "specdrift_legacy", "eagle31_native", "modelopt_hf"},
}
"""A choice of heads that each format has words for; others may be refused."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target's config.json."""
    return producers.write_target(tmp_path_factory.mktemp("target"), SHAPE)


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_converted_head_computes_the_same_or_is_refused(to: str, variant: str, target: Path, tmp_path: Path) -> None:
    folder, out = producers.write(tmp_path / "head", variant, SHAPE), tmp_path / "out"
    try:
        convert(str(folder), out, to, str(target), answers(variant, SHAPE))
    except ValueError as error:
        assert f"the format {to} cannot express this head:\n  - " in str(error)
        assert variant not in EXPRESSIBLE[to], error
        assert not out.exists() and not list(tmp_path.glob(".out-*"))
        return
    generator = torch.Generator().manual_seed(7)
    embed = torch.randn(SHAPE.vocab, SHAPE.hidden, generator=generator)
    lm_head = torch.randn(SHAPE.vocab, SHAPE.hidden, generator=generator)
    facts = readers.TargetFacts(
        SHAPE.target_layers, SHAPE.target_hidden, SHAPE.vocab, SHAPE.target_architecture, embed, lm_head
    )
    producer = producers.VARIANTS[variant].producer
    reference = readers.read(folder, producer, target=facts, facts=facts_of(variant, SHAPE, None))
    made = Checkpoint.read(out)
    reading, reasons = resolve(made, target_of(SHAPE), {})
    assert reasons == []
    module = build(stage(made, reading, "float32", tmp_path / "cache"), embed, lm_head)
    assert compare(module, reference, SHAPE, generator) < TOLERANCE
