"""MLA heads: the layer against an independent one, its parts on two ranks, and real servers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import harness
import pytest
import torch
from conftest import Models, Plain, ask_everything, generate, prompt, speculate
from mla_models import write_mla_head, write_mla_target
from safetensors.torch import save_file
from selection import core
from truth import reference
from truth.rounding import gamma, network

from sglang_eagle31.head.spec import DrafterSpec
from sglang_eagle31.head.stage import canonical_config

YARN = {
    "rope_type": "yarn",
    "factor": 8.0,
    "mscale": 0.7,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "no query rank": {"q_lora_rank": None},
    "yarn": {"rope_scaling": YARN},
    "yarn without mscale": {"rope_scaling": {**YARN, "mscale": None, "mscale_all_dim": None}},
    "yarn with a stated factor": {"rope_scaling": {**YARN, "attention_factor": 1.3}},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
    "two layers, fed back normed": {"num_layers": 2, "residual": "post", "feedback": "post"},
}


def switches(**changes: Any) -> reference.Switches:
    sizes = {
        "hidden_size": 48,
        "target_hidden_size": 40,
        "intermediate_size": 64,
        "num_heads": 4,
        "num_kv_heads": 4,
        "head_dim": 24,
        "vocab_size": 100,
        "draft_vocab_size": 64,
        "boundaries": (1, 3, 5),
        "own_embedding": True,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5000.0,
        "max_position_embeddings": 512,
        "attention": "mla",
        "q_lora_rank": 32,
        "kv_lora_rank": 20,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
    }
    return reference.Switches(**{**sizes, **changes})


ATTENTION = 6 * gamma(2 * 48, torch.float32)
"""Of the largest element, for the attention alone: down, norm, up, scores, values, o_proj."""


def drafter_spec(of: reference.Switches) -> DrafterSpec:
    fields = {**dataclasses.asdict(of), "producer": "test", "softmax_scale": reference.mla_scale(of)}
    return DrafterSpec(**fields)


def weights(spec: DrafterSpec) -> dict[str, torch.Tensor]:
    """Random tensors, large enough in the attention that positions and the softmax scale matter."""
    generator = torch.Generator().manual_seed(4)
    out = {}
    for name, shape in spec.expected_tensors().items():
        drawn = torch.randn(shape, generator=generator)
        wide = 2.0 if ".q_" in name or ".kv_" in name else 1.0
        out[name] = 1 + 0.2 * drawn if len(shape) == 1 else wide * drawn / shape[-1] ** 0.5
    out["d2t"] = torch.zeros(spec.draft_vocab_size, dtype=torch.long)
    return out


def staged(folder: Path, spec: DrafterSpec, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(canonical_config(spec, {name: name for name in tensors}, "float32")))
    return folder


def apart(ours: torch.Tensor, truth: torch.Tensor) -> float:
    return float((ours - truth).abs().max() / truth.abs().max())


@pytest.mark.parametrize("name", CASES)
def test_the_layer_computes_what_the_reference_does(name: str, tmp_path: Path) -> None:
    of = switches(**CASES[name])
    spec = drafter_spec(of)
    tensors = weights(spec)
    truth = reference.Session(reference.Head(of, tensors))
    run = harness.Run(harness.build(staged(tmp_path, spec, tensors)))
    generator = torch.Generator().manual_seed(5)
    captured = torch.randn(11, 3 * of.target_hidden_size, generator=generator)
    ids = torch.randint(of.vocab_size, (16,), generator=generator)
    logits, feedback = run.prefill(captured, ids[:11])
    expected, state = truth.prefill(captured, ids[:11])
    worst = [apart(logits, expected), apart(feedback, state)]
    for position in range(11, 16):
        logits, feedback = run.step(int(ids[position]), state[-1] if state.dim() == 2 else state)
        expected, state = truth.step(int(ids[position]), state[-1] if state.dim() == 2 else state, position)
        worst += [apart(logits[0], expected), apart(feedback[0], state)]
    bound = network(of.num_layers, 3 * of.target_hidden_size, sums=10)  # down, norm and up in place of qkv
    assert max(worst) < bound, worst
    latent = spec.kv_lora_rank + spec.qk_rope_head_dim
    assert run.backend.keys[0].shape == (16, 1, latent)  # what is cached is the latent, not the heads' keys


def test_positions_and_scale_decide_the_result(tmp_path: Path) -> None:
    """The comparison above would notice: the same tensors with another base or scale are far from the reference."""
    of = switches(rope_scaling=YARN)
    tensors = weights(drafter_spec(of))
    truth = reference.Session(reference.Head(of, tensors))
    captured, ids = torch.randn(11, 120, generator=torch.Generator().manual_seed(6)), torch.arange(11)
    expected, _ = truth.prefill(captured, ids)
    for index, change in enumerate(({"rope_theta": 100.0}, {"softmax_scale": 24**-0.5}, {"rope_scaling": None})):
        spec = dataclasses.replace(drafter_spec(of), **change)
        run = harness.Run(harness.build(staged(tmp_path / str(index), spec, tensors)))
        assert apart(run.prefill(captured, ids)[0], expected) > 1e-3, change


@contextmanager
def as_rank(rank: int) -> Iterator[None]:
    """Layers that are built here are those of one of two ranks."""
    from sglang.srt.runtime_context import get_parallel

    group = SimpleNamespace(rank_in_group=rank, world_size=2)
    names = ("tp", "attn_tp", "moe_tp")
    both = {f"{name}_size": 2 for name in names} | {f"{name}_rank": rank for name in names}
    with get_parallel().override(**both, tp_group=group, attn_tp_group=group):
        yield


def attention(spec: DrafterSpec, tensors: dict[str, torch.Tensor]) -> Any:
    from sglang_eagle31.server.drafter.mla import MlaAttention

    layer = MlaAttention(spec, 0, None, None, "")
    for name, tensor in tensors.items():
        if name.startswith("layers.0.self_attn."):
            layer.load(name.removeprefix("layers.0.self_attn."), tensor)
    layer.finish()
    return layer


@pytest.mark.parametrize("rank_of_query", [32, None])
def test_two_ranks_together_are_the_layer(rank_of_query: int | None) -> None:
    harness.start_runtime()
    spec = drafter_spec(switches(q_lora_rank=rank_of_query))
    tensors = weights(spec)
    states = torch.randn(7, 96, generator=torch.Generator().manual_seed(7))
    parts = []
    for rank in range(2):
        with as_rank(rank):
            layer = attention(spec, tensors)
        layer.o_proj.reduce_results = False  # the sum is taken here
        assert layer.w_kc.shape == (2, 16, 20) and layer.w_vc.shape == (2, 20, 12)
        parts.append(harness.attend(layer, states)[0])
    whole, _ = harness.attend(attention(spec, tensors), states)
    assert apart(parts[0] + parts[1], whole) < ATTENTION
    assert apart(parts[0], whole) > 0.1


@pytest.mark.parametrize("rank_of_query", [32, None])
def test_a_prompt_in_heads_is_the_same_as_in_latents(rank_of_query: int | None) -> None:
    """GPU backends attend to a prompt's own keys and values, made by ``kv_b_proj``, and cache the same latents."""
    harness.start_runtime()
    spec = drafter_spec(switches(q_lora_rank=rank_of_query, rope_scaling=YARN))
    layer = attention(spec, weights(spec))
    states = torch.randn(7, 96, generator=torch.Generator().manual_seed(9))
    calls: list[int] = []
    layer.attn_mha.register_forward_pre_hook(lambda *_: calls.append(1))
    latent, absorbed = harness.attend(layer, states)
    assert not calls
    whole, cached = harness.attend(layer, states, prompt=True)
    assert calls
    assert apart(whole, latent) < ATTENTION
    assert apart(cached.keys[0], absorbed.keys[0]) < ATTENTION


def test_the_cpu_backend_over_sglangs_latent_cache() -> None:
    """A prompt in two chunks, a draft extend and a draft step, in slots of no order; without our choice it fails."""
    harness.start_runtime()
    from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry
    from sglang.srt.runtime_context import get_spec

    from sglang_eagle31.server.cpu import attention as cpu

    spec = drafter_spec(switches(rope_scaling=YARN))
    layer = attention(spec, weights(spec))
    pool = MLATokenToKVPool(64, 1, torch.float32, spec.kv_lora_rank, spec.qk_rope_head_dim, 1, "cpu", False)
    slots = torch.randperm(40, generator=torch.Generator().manual_seed(10)).view(2, 20) + 1
    requests = SimpleNamespace(req_to_token=slots.int())
    runner = SimpleNamespace(
        req_to_token_pool=requests, token_to_kv_pool=pool, model_config=SimpleNamespace(context_len=20)
    )
    backend = cpu.TreeAttentionBackend(runner)
    backend.prefill_attention_backend_str = backend.decode_attention_backend_str = cpu.NAME
    states = torch.randn(12, 96, generator=torch.Generator().manual_seed(11))

    def forward(mode: Any, start: int, end: int) -> torch.Tensor:
        batch = harness.batch_of(mode, torch.zeros(end - start, dtype=torch.long), start, states)
        batch.out_cache_loc = slots[0, start:end]
        backend.init_forward_metadata(batch)
        with torch.inference_mode(), harness.attending(backend):
            return layer(batch.positions, states[start:end], batch)

    stock = AttentionBackendRegistry.get_handler(cpu.NAME)
    with pytest.raises(RuntimeError, match="Expected size"):
        forward(ForwardMode.EXTEND, 0, 5)
    try:
        cpu.register_latent()
        with get_spec().override(speculative_algorithm="EAGLE3"):
            parts = [forward(ForwardMode.EXTEND, 0, 5), forward(ForwardMode.EXTEND, 5, 8)]
            parts += [forward(ForwardMode.DRAFT_EXTEND_V2, 8, 11), forward(ForwardMode.DECODE, 11, 12)]
    finally:
        AttentionBackendRegistry.register(cpu.NAME, stock)
    assert apart(torch.cat(parts), harness.attend(layer, states)[0]) < ATTENTION


def test_what_is_left_out_is_named() -> None:
    harness.start_runtime()
    spec = drafter_spec(switches())
    tensors = weights(spec)
    del tensors["layers.0.self_attn.kv_b_proj.weight"]
    with pytest.raises(ValueError, match=r"not filled in layers\.0\.self_attn: \['kv_b_proj\.weight'\]"):
        attention(spec, tensors)


@pytest.mark.parametrize(
    ("tail", "shape", "found"),
    [("q_proj.weight", (96, 96), "no such tensor"), ("o_proj.weight", (48, 47), r"expected \[48, 48\]")],
)
def test_what_does_not_belong_is_refused(tail: str, shape: tuple[int, int], found: str) -> None:
    harness.start_runtime()
    with pytest.raises(ValueError, match=found):
        attention(drafter_spec(switches()), {f"layers.0.self_attn.{tail}": torch.zeros(shape)})


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"softmax_scale": None}, "softmax_scale=None"),
        ({"sliding_window": 16}, "sliding_window=16"),
        ({"rope_scaling": {**YARN, "truncate": False}}, "truncate=false"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
    ],
)
def test_what_sglang_does_not_compute_is_refused(change: dict[str, Any], found: str) -> None:
    harness.start_runtime()
    with pytest.raises(ValueError, match=found):
        attention(dataclasses.replace(drafter_spec(switches()), **change), {})


@pytest.mark.parametrize("tree", core([(3, 1, 4), (4, 2, 8)], [(4, 2, 8)]), ids=["chain", "topk2"])
def test_a_head_with_latent_cache_on_a_target_without(
    tree: tuple[int, int, int], start: Any, plain: Plain, tmp_path: Path
) -> None:
    head = write_mla_head(tmp_path / "mla")
    with start(f"mla-{tree[1]}", *speculate("EAGLE31", head, *tree)) as server:
        answers = ask_everything(server)
        log = server.log_path.read_text()
    assert answers.ids == plain.answers.ids
    assert answers.accept_length() > 1.5, answers.accept_length()
    assert "KV size: " in log  # one buffer: a latent cache, which the target has not


@pytest.mark.parametrize("head", core(["mla", "llama"], ["mla"]))
def test_a_target_with_latent_cache(head: str, start: Any, tiny: Models, tmp_path: Path) -> None:
    """Stock SGLang cannot serve such a target on a CPU without AMX, so the truth is that of transformers."""
    target, truth = write_mla_target(tmp_path / "target")
    folder = write_mla_head(tmp_path / "mla") if head == "mla" else tiny.eagle31
    prompts = [prompt(length, length) for length in (4, 60, 33, 300)]
    with start(f"mla-target-{head}", *speculate("EAGLE31", folder, 4, 2, 8), target=target) as server:
        answers = [generate(server, [ids], 32)[0] for ids in prompts] + generate(server, prompts, 32)
    expected = [truth(ids, 32) for ids in prompts]
    assert [answer["output_ids"] for answer in answers] == 2 * expected
    steps = sum(answer["meta_info"]["spec_verify_ct"] for answer in answers)
    assert sum(answer["meta_info"]["completion_tokens"] for answer in answers) / steps > 1.5
