"""Optimisation, resumption, evaluation, export."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_train_ttt import VD, H, V, make_head, make_sample

from sglang_eagle31.train import vocab
from sglang_eagle31.train.data import Sample
from sglang_eagle31.train.evaluate import Acceptance, acceptance, full_accuracy
from sglang_eagle31.train.export import checkpoint_config, export, load_head
from sglang_eagle31.train.initial import closed_form
from sglang_eagle31.train.loop import Data, Options, Trainer, epoch_batches

USED = torch.arange(0, 2 * VD, 2)


def make_data(count: int = 12) -> Data:
    torch.manual_seed(5)
    samples = [make_sample(10 + i % 5, i) for i in range(count)]
    t2d = vocab.maps(USED, V)[1]
    return Data(samples[2:], samples[:2], torch.randn(V, H), torch.randn(VD, H), USED, t2d)


def options(**changes: object) -> Options:
    base = Options(steps=8, ttt=2, lr=3e-3, batch_tokens=40, eval_every=3, save_every=4)
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_resuming_gives_the_weights_of_an_uninterrupted_run_bit_for_bit(dropout: float, tmp_path: Path) -> None:
    whole = Trainer(make_head(), make_data(), options(dropout=dropout), tmp_path / "whole")
    torch.manual_seed(5)
    whole.run()
    first = Trainer(make_head(), make_data(), options(dropout=dropout), tmp_path / "parts")
    torch.manual_seed(5)
    first.run(stop_at=4)
    second = Trainer(make_head(seed=9), make_data(), options(dropout=dropout), tmp_path / "parts")
    second.resume()
    assert second.step == 4
    assert [part["from_step"] for part in second.parts] == [0, 4]
    second.run()
    assert second.step == whole.step == 8
    for name, value in whole.head.state_dict().items():
        assert torch.equal(value, second.head.state_dict()[name]), name


def test_a_few_steps_reduce_the_loss_and_are_logged(tmp_path: Path) -> None:
    trainer = Trainer(make_head(), make_data(), options(steps=60, lr=1e-2, eval_every=30), tmp_path)
    trainer.run()
    entries = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    losses = [e["losses"][0] for e in entries if "losses" in e]
    assert len(losses) == 60
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    scores = [e["held_out"] for e in entries if "held_out" in e]
    assert [len(s["full"]) for s in scores] == [3, 3]


def test_every_epoch_visits_every_sample_once_within_the_budget() -> None:
    lengths = [5 + i % 17 for i in range(50)]
    first, again, second = (epoch_batches(lengths, 64, 0, e) for e in (0, 0, 1))
    assert first == again != second
    assert sorted(i for b in first for i in b) == list(range(50))
    assert all(max(lengths[i] for i in b) * len(b) <= 64 for b in first)


def test_the_learning_rate_warms_up_and_ends_at_zero(tmp_path: Path) -> None:
    trainer = Trainer(make_head(), make_data(), options(steps=100, warmup=0.1, lr=1.0), tmp_path)
    rates = []
    for step in (0, 5, 10, 55, 100):
        trainer.step = step
        rates.append(trainer.learning_rate())
    assert rates[0] < rates[1] == pytest.approx(0.501)
    assert rates[2:] == pytest.approx([1.0, 0.5, 0.0])


def test_full_accuracy_of_a_hand_made_case() -> None:
    text = torch.tensor([[[1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6]]])
    drafted = torch.tensor([[[1, 2, 3], [2, 3, 9], [9, 4, 5], [9, 9, 9]]])
    counted = torch.tensor([[True, True, True, False]])
    full = full_accuracy(drafted, text, counted)
    assert full == pytest.approx([2 / 3, 2 / 3, 1 / 3])
    score = Acceptance(3, full)
    assert score.accept_length() == pytest.approx(1 + 5 / 3)
    assert score.accept_length(1) == pytest.approx(1 + 2 / 3)
    assert score.conditional == pytest.approx([2 / 3, 1.0, 0.5])


def test_acceptance_of_a_head_that_repeats_its_input_token() -> None:
    """A head whose logits show the embedding it was given drafts that token again and again."""
    head = make_head()
    embedding = torch.eye(V, H)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        for norm in (head.norm, head.midlayer.input_layernorm, head.midlayer.hidden_norm):
            norm.weight.fill_(1.0)
        attention = head.midlayer.self_attn
        attention.v_proj.weight[:, :H] = torch.eye(8, H)  # width of the value heads
        attention.o_proj.weight.copy_(torch.eye(H)[:, [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7]])
        head.lm_head.weight.copy_(torch.eye(VD, H))
    used = torch.arange(VD)
    constant, n = torch.full((8,), 3, dtype=torch.int32), 8
    sample = make_sample(n, 1, start=2)
    same = Sample(constant, sample.mask, sample.states, sample.final, constant, {"id": "same"})
    score = acceptance(head, [same], embedding, used, steps=2)
    assert score.full == [1.0, 1.0]
    assert score.rows == 8 - 2 - 2  # rows 1..4: x_{t+1} is the answer's, and x_{t+3} exists
    other = Sample(torch.arange(n, dtype=torch.int32), sample.mask, sample.states, sample.final, constant, {"id": "o"})
    assert acceptance(head, [other], embedding, used, steps=2).full == [0.0, 0.0]


def test_draft_vocabulary_maps_invert_each_other() -> None:
    counts = torch.tensor([0, 5, 1, 5, 0, 9, 2])
    used = vocab.choose(counts, 4)
    assert used.tolist() == [1, 3, 5, 6]
    d2t, t2d = vocab.maps(used, 7)
    assert d2t.tolist() == [1, 2, 3, 3]
    assert d2t.dtype == torch.int64 and t2d.dtype == torch.bool
    assert torch.equal(vocab.used_ids(d2t), used)
    assert torch.equal(t2d.nonzero()[:, 0], used)
    assert vocab.coverage(counts, used) == pytest.approx(21 / 22)
    with pytest.raises(ValueError, match="--draft-vocab 8"):
        vocab.choose(counts, 8)


@pytest.mark.parametrize("variant", ["eagle3", "eagle31"])
def test_the_exported_tensors_alone_give_the_same_first_step(variant: str, tmp_path: Path) -> None:
    head = make_head(variant)
    export(tmp_path, head, USED, {"note": 1}, dtype=torch.float32)
    tensors, config = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    assert config == checkpoint_config(head.config)
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2]
    assert config.get("fc_norm", False) is config.get("norm_output", False) is (variant == "eagle31")
    assert "embed_tokens.weight" not in tensors
    reloaded, used = load_head(tmp_path)
    assert torch.equal(used, USED) and reloaded.config == head.config
    states, embeds = torch.randn(1, 6, 3 * H), torch.randn(1, 6, H)
    from sglang_eagle31.train.ttt import unroll

    ours = head.lm_head(next(unroll(head, states, lambda i, _: embeds, 1)))[0]
    torch.testing.assert_close(_first_step(tensors, config, states[0], embeds[0]), ours, atol=1e-5, rtol=1e-4)


def _rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def _first_step(t: dict[str, torch.Tensor], c: dict, states: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
    """The published equations on the bare tensors: embedding half first, residual un-normed."""
    eps, heads, kv, d, n = c["rms_norm_eps"], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], 6
    if c.get("fc_norm"):
        states = torch.cat([_rms(s, t[f"fc_norm.{i}.weight"], eps) for i, s in enumerate(states.chunk(3, -1))], -1)
    g = states @ t["fc.weight"].T
    x = torch.cat(
        [_rms(embeds, t["midlayer.input_layernorm.weight"], eps), _rms(g, t["midlayer.hidden_norm.weight"], eps)], -1
    )
    q, k, v = ((x @ t[f"midlayer.self_attn.{p}_proj.weight"].T).view(n, -1, d).transpose(0, 1) for p in "qkv")
    angle = torch.arange(n)[:, None] * c["rope_theta"] ** (-torch.arange(0, d, 2) / d)
    angle = torch.cat([angle, angle], -1)
    q, k = (y * angle.cos() + torch.cat([-y[..., d // 2 :], y[..., : d // 2]], -1) * angle.sin() for y in (q, k))
    k, v = (y.repeat_interleave(heads // kv, dim=0) for y in (k, v))
    attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    h = g + attended.transpose(0, 1).reshape(n, -1) @ t["midlayer.self_attn.o_proj.weight"].T
    y = _rms(h, t["midlayer.post_attention_layernorm.weight"], eps)
    gate, up = (y @ t[f"midlayer.mlp.{p}_proj.weight"].T for p in ("gate", "up"))
    h = h + (torch.nn.functional.silu(gate) * up) @ t["midlayer.mlp.down_proj.weight"].T
    return _rms(h, t["norm.weight"], eps) @ t["lm_head.weight"].T


@pytest.mark.parametrize("variant", ["eagle3", "eagle31"])
def test_the_closed_form_start_finds_a_linear_target(variant: str) -> None:
    """Where the next final state is a linear function of what fc reads, the start values predict it."""
    torch.manual_seed(0)
    head, mix = make_head(variant), torch.randn(3 * H, H) / 8
    samples = [make_sample(20, i) for i in range(40)]
    for s in samples:
        read = s.states / s.states.view(-1, 3, H).square().mean(-1).sqrt().repeat_interleave(H, -1)
        s.final[1:] = ((read if variant == "eagle31" else s.states) @ mix)[:-1]
    rows, gain = torch.randn(VD, H), torch.ones(H)
    explained = closed_form(head, samples, torch.randn(V, H), rows, gain, seed=0)
    assert explained > 0.98
    assert torch.equal(head.lm_head.weight, rows)
    assert torch.equal(head.norm.weight, torch.ones(H))


def test_autocast_to_bf16_trains_to_a_similar_loss(tmp_path: Path) -> None:
    losses = []
    for name, bf16 in (("a", False), ("b", True)):
        Trainer(make_head(), make_data(), options(bf16=bf16), tmp_path / name).run()
        losses.append(json.loads((tmp_path / name / "log.jsonl").read_text().splitlines()[0])["losses"])
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
