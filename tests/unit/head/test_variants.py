"""Every producer's files: recognised by their evidence, read as they were trained, asked only what they cannot tell."""

from __future__ import annotations

import dataclasses

import heads
import pytest
from truth import producers
from truth.producers import VARIANTS

from sglang_eagle31.head.check import resolve
from sglang_eagle31.head.dialects import DIALECTS, read
from sglang_eagle31.head.spec import DrafterSpec

TRIPLES = ((2, 4, 5), (1, 3, 6))
"""The default boundaries of 8 layers, and others."""
MIDLAYER, FORKED = "midlayer.* and t2d", "layers.* and t2d"
SPECFORGE = "architectures LlamaForCausalLMEagle3 with "
FIRST = "config key eagle_config.use_input_layernorm_in_first_layer"
EVIDENCE = {
    "safeailab": ("SafeAILab EAGLE-3", "midlayer.* under a plain Llama config"),
    "specforge": ("SpecForge", SPECFORGE + MIDLAYER),
    "specforge31": ("SpecForge", SPECFORGE + MIDLAYER),
    "specforge31_before_879": ("SpecForge", SPECFORGE + MIDLAYER),
    "specforge31_raw": ("SpecForge", SPECFORGE + MIDLAYER),
    "eagle31_native": ("sglang-eagle31", "config key sglang_eagle31_version"),
    "torchspec": ("TorchSpec", "config key _torchspec_version"),
    "torchspec31": ("TorchSpec", "config key _torchspec_version"),
    "torchspec_vllm": ("TorchSpec", "config key _torchspec_version"),
    "torchspec_mla": ("TorchSpec MLA", "config key _torchspec_version, kv_a_proj_with_mqa"),
    "torchspec_mla31": ("TorchSpec MLA", "config key _torchspec_version, kv_a_proj_with_mqa"),
    "torchspec_mla_vllm_kimi": ("TorchSpec MLA", "config key _torchspec_version, kv_a_proj_with_mqa"),
    "angelslim": ("AngelSlim", "architectures Eagle3LlamaForCausalLM with midlayer.*"),
    "angelslim_tied": ("AngelSlim", "architectures Eagle3LlamaForCausalLM with midlayer.*"),
    "angelslim_cosyvoice": ("AngelSlim", "architectures CosyVoice3Eagle3LlamaForCausalLM with midlayer.*"),
    "specdrift": ("SpecForge", SPECFORGE + FORKED),
    "specdrift_legacy": ("SpecDrift", "config key use_aux_norm"),
    "vllm": ("vLLM", "architectures Eagle3LlamaForCausalLM"),
    "vllm_qwen3": ("vLLM", "architectures Eagle3Qwen3ForCausalLM"),
    **{name: ("speculators", "config key speculators_model_type") for name in VARIANTS if "speculators" in name},
    **{name: ("ModelOpt", FIRST) for name in VARIANTS if name.startswith(("modelopt_", "nvidia"))},
    "nvidia_v3": ("NVIDIA", "config key eagle_config.norm_before_fc"),
    "nvidia_post_norm": ("NVIDIA", "config key eagle_config.return_hidden_post_norm"),
    **{name: ("NeMo AutoModel", "architectures LlamaEagle3DraftModel") for name in VARIANTS if name.startswith("nemo")},
}
"""NVIDIA's heads without TensorRT-LLM's keys are ModelOpt's files; SpecDrift's newer names are SpecForge's."""
OPEN = {
    **dict.fromkeys(("specforge31", "specforge31_before_879", "specforge31_raw", "specdrift"), {"feedback"}),
    **dict.fromkeys(heads.NORMED_TWICE, {"double_norm"}),
    "speculators_unstated": {"residual"},
    "speculators_converted": {"aux_layers"},
    "nvidia_v3": {"aux_layers"},
}
"""What the files of a variant leave open with the default layers."""
OPEN_ELSEWHERE = {**OPEN, "speculators_unstated": {"residual", "aux_layers"}, "speculators_two_layers": {"aux_layers"}}
"""The same with other layers, whose ids may be another trainer's, copied."""


@pytest.mark.parametrize("name", VARIANTS)
def test_each_producer_is_recognised_by_its_evidence(name: str) -> None:
    reading = read(heads.kept(name), heads.target_of())
    assert (reading.producer, reading.evidence) == EVIDENCE[name]


@pytest.mark.parametrize("triple", TRIPLES)
@pytest.mark.parametrize("name", VARIANTS)
def test_each_head_is_read_as_it_was_trained(name: str, triple: tuple[int, ...]) -> None:
    shape = dataclasses.replace(heads.SHAPE, boundaries=triple)
    reading, reasons = resolve(heads.kept(name, shape), heads.target_of(shape), heads.answers(name, shape))
    if VARIANTS[name].refused:
        assert len(reasons) == 1 and "there is no d2t" in reasons[0] and "fix: " in reasons[0]
        return
    assert reasons == []
    facts = VARIANTS[name].facts(shape)
    spec = reading.spec()
    if spec.num_layers == 1:
        del facts["later_norm"]
    assert {field: getattr(spec, field) for field in facts} == facts
    assert spec.double_norm is False
    assert set(spec.sources) == {field.name for field in dataclasses.fields(DrafterSpec)} - {"producer", "sources"}
    assert all(spec.sources.values())
    assert reading.names == VARIANTS[name].names(producers.head(name, shape)) | {
        known: new for known, new in reading.names.items() if new == "d2t"
    }


@pytest.mark.parametrize(("triple", "table"), list(zip(TRIPLES, (OPEN, OPEN_ELSEWHERE), strict=True)))
@pytest.mark.parametrize("name", [name for name in VARIANTS if not VARIANTS[name].refused])
def test_each_head_asks_only_what_its_files_cannot_tell(
    name: str, triple: tuple[int, ...], table: dict[str, set[str]]
) -> None:
    shape = dataclasses.replace(heads.SHAPE, boundaries=triple)
    reading, reasons = resolve(heads.kept(name, shape), heads.target_of(shape), {})
    if VARIANTS[name].ids == "absent" and triple != shape.default_boundaries:
        assert reasons == [] and reading.spec().boundaries == shape.default_boundaries
        return
    assert set(reading.questions) == table.get(name, set()) and reading.refusals == []
    assert reasons == list(reading.questions.values())
    for key, reason in reading.questions.items():
        assert f"fix: --eagle31-override {key}=" in reason


@pytest.mark.parametrize("key", DIALECTS)
def test_a_producer_can_be_named(key: str) -> None:
    head = heads.bend(heads.kept(heads.EXAMPLES[key]), config={"architectures": ["MyDraft"]})
    reading = read(head, heads.target_of(), {"producer": key})
    assert reading.producer == DIALECTS[key].NAME
    assert reading.evidence == f"--eagle31-override producer={key}"


def test_every_dialect_has_an_example_and_a_name() -> None:
    assert set(heads.EXAMPLES) == set(DIALECTS)
    assert len({dialect.NAME for dialect in DIALECTS.values()}) == len(DIALECTS)
    assert {producer for producer, _ in EVIDENCE.values()} == {dialect.NAME for dialect in DIALECTS.values()}
