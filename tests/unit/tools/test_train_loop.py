"""Optimisation, resumption, evaluation, export."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_train_ttt import VD, H, V, make_head, make_sample
from truth.rounding import assert_exact, in_float64, unit

from sglang_eagle31.tools.train import vocab
from sglang_eagle31.tools.train.data import Sample
from sglang_eagle31.tools.train.evaluate import Score, acceptance, full_accuracy, score_by_source
from sglang_eagle31.tools.train.export import checkpoint_config, export, load_head
from sglang_eagle31.tools.train.initial import closed_form
from sglang_eagle31.tools.train.loop import Data, Trainer
from sglang_eagle31.tools.train.options import Options, epoch_batches, steps_of
from sglang_eagle31.tools.train.plot import plot, read_log
from sglang_eagle31.tools.train.ttt import collate
from sglang_eagle31.tools.train.unroll import Rows, unroll

USED = torch.arange(0, 2 * VD, 2)


@pytest.fixture
def float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with in_float64():
        monkeypatch.setattr("sglang_eagle31.tools.train.loop.collate", partial(collate, dtype=torch.float64))
        yield


def make_data(count: int = 12) -> Data:
    torch.manual_seed(5)
    samples = [make_sample(10 + i % 5, i) for i in range(count)]
    t2d = vocab.maps(USED, V)[1]
    return Data(samples[2:], samples[:2], torch.randn(V, H), torch.randn(VD, H), USED, t2d)


def options(**changes: object) -> Options:
    base = Options(steps=8, ttt=2, lr=3e-3, batch_tokens=40, eval_every=3, eval_depth=3, save_every=4)
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
    text = torch.tensor([[1, 2, 3], [2, 3, 4], [3, 4, 5]])
    drafted = torch.tensor([[1, 2, 3], [2, 3, 9], [9, 4, 5]])
    full = full_accuracy(drafted, text)
    assert full == pytest.approx([2 / 3, 2 / 3, 1 / 3])
    score = Score(3, full)
    assert score.accept_length() == pytest.approx(1 + 5 / 3)
    assert score.accept_length(1) == pytest.approx(1 + 2 / 3)
    assert score.conditional == pytest.approx([2 / 3, 1.0, 0.5])


def test_the_score_by_source_is_that_of_each_source_and_of_all_rows() -> None:
    data, head = make_data(), make_head()
    for i, sample in enumerate(data.train):
        sample.info["source"] = "ab"[i % 2]
    score = score_by_source(head, data.train, data.embedding, data.used, 2)
    whole = acceptance(head, data.train, data.embedding, data.used, 2)
    assert score.full == pytest.approx(whole.full) and score.rows == whole.rows
    assert set(score.sources) == {"a", "b"} == set(score.to_dict()["sources"])
    alone = acceptance(head, data.train[::2], data.embedding, data.used, 2)
    assert score.sources["a"].full == pytest.approx(alone.full)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_two_runs_of_one_seed_are_the_same_bit_for_bit_over_epochs(dropout: float, tmp_path: Path) -> None:
    heads = []
    for name in ("a", "b"):
        torch.manual_seed(3)
        trainer = Trainer(make_head(), make_data(), options(epochs=2, dropout=dropout), tmp_path / name)
        trainer.run()
        heads.append(trainer.head.state_dict())
        lengths = [len(s.ids) for s in trainer.data.train]
        assert trainer.step == trainer.steps == sum(len(epoch_batches(lengths, 40, 0, e)) for e in (0, 1))
    assert all(torch.equal(heads[0][k], heads[1][k]) for k in heads[0])


def test_the_length_of_a_run_in_epochs_counts_accumulated_batches() -> None:
    lengths = [10] * 12
    assert steps_of(options(epochs=3), lengths) == 9  # four samples of ten tokens fit into 40
    assert steps_of(options(epochs=3, accumulate=2), lengths) == 4
    assert steps_of(options(), lengths) == 8
    with pytest.raises(ValueError, match="--epochs 1 and --minutes 2"):
        options(epochs=1, minutes=2.0)


@pytest.mark.usefixtures("float64")
def test_accumulated_batches_make_the_step_of_one_big_batch(tmp_path: Path) -> None:
    data, updated = make_data(), []
    for groups in ([[0, 1, 2, 3, 4, 5]], [[0, 1], [2], [3, 4, 5]]):
        head = make_head()
        Trainer(head, data, options(), tmp_path / str(len(groups)))._optimise(groups)
        updated.append({name: p.grad.clone() for name, p in head.named_parameters() if p.grad is not None})
    assert updated[0].keys() == updated[1].keys() and len(updated[0]) > 10
    for name, gradient in updated[0].items():
        assert_exact(updated[1][name], gradient)


def test_twins_see_the_same_batches(tmp_path: Path) -> None:
    seen: dict[str, list[list[int]]] = {}
    for variant in ("eagle3", "eagle31"):
        trainer = Trainer(make_head(variant), make_data(), options(epochs=2), tmp_path / variant)
        optimise, order = trainer._optimise, seen.setdefault(variant, [])
        trainer._optimise = lambda groups, run=optimise, order=order: (order.extend(groups), run(groups))[1]
        trainer.run()
        seen[f"{variant} digest"] = trainer.data.digest()
    assert seen["eagle3"] == seen["eagle31"] and len(seen["eagle3"]) > 4
    assert seen["eagle3 digest"] == seen["eagle31 digest"]


def test_the_log_has_every_depth_and_is_drawn(tmp_path: Path) -> None:
    Trainer(make_head(), make_data(), options(ttt=3), tmp_path).run()
    train, held_out = read_log(tmp_path)
    assert [entry["step"] for entry in train] == list(range(1, 9))
    assert [entry["step"] for entry in held_out] == [3, 6, 8]
    for entry in train:
        assert all(len(entry[name]) == 3 for name in ("losses", "accuracy", "full_accuracy", "conditional"))
        assert entry["accept_length"] == pytest.approx(1 + sum(entry["full_accuracy"]))
    assert len(held_out[0]["held_out"]["conditional"]) == 3
    picture = plot(tmp_path)
    assert picture.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="no log.jsonl"):
        plot(tmp_path / "nothing")


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
    same = Sample(constant, sample.mask, sample.states, sample.final, constant, {"id": "same", "source": "x"})
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


@pytest.mark.usefixtures("float64")
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
    rows = Rows.of(torch.ones(1, 6, dtype=torch.bool))
    ours = head.lm_head(next(unroll(head, rows, states, embeds, 1)))
    assert_exact(_first_step(tensors, config, states[0], embeds[0]), ours)


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
    # fc, qkv, o_proj, gate and up, down_proj and lm_head each round what comes out of the one before.
    assert losses[0] == pytest.approx(losses[1], rel=6 * unit(torch.bfloat16))
