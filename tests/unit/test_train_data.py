"""From prompts to samples to an exported head, with a tiny random target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from sglang_eagle31.cli import main
from sglang_eagle31.train.data import Sample, load_shards, loop_start, read_jsonl, save_shard, tokenize_chat
from sglang_eagle31.train.export import load_head
from sglang_eagle31.train.generate import answer_batch, use_grouped_attention
from sglang_eagle31.train.prompts import template_prompts
from sglang_eagle31.train.target import Target, default_boundaries

WORDS = ["<pad>", "<eos>", "<user>", "<bot>", *(f"w{i}" for i in range(36))]
TEMPLATE = (
    "{% for m in messages %}{{ '<user> ' if m['role'] == 'user' else '<bot> ' }}{{ m['content'] + ' <eos> ' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<bot> ' }}{% endif %}"
)


def tiny_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=len(WORDS),
        max_position_embeddings=128,
        eos_token_id=1,
        pad_token_id=0,
        initializer_range=0.4,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", pad_token="<pad>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def test_the_states_kept_while_answering_are_those_of_a_single_pass() -> None:
    target = Target(tiny_model(), (2, 3, 4))
    prompts = [[2, 5, 6, 1, 3], [2, 9, 1, 3], [2, 7, 8, 9, 10, 11, 1, 3]]
    eager = [target.model.generate(torch.tensor([p]), max_new_tokens=24, do_sample=False)[0].tolist() for p in prompts]
    eos = next(t for t in eager[0][len(prompts[0]) + 4 :] if t not in eager[1][len(prompts[1]) :])
    eager = [_until(e, eos, len(p)) for e, p in zip(eager, prompts, strict=True)]
    use_grouped_attention(target.model)
    answers = answer_batch(target, prompts, 24, eos=eos)
    target.model.config._attn_implementation = "eager"
    assert len(answers[0].ids) - len(prompts[0]) < 24 == len(answers[1].ids) - len(prompts[1])
    for answer, prompt, expected in zip(answers, prompts, eager, strict=True):
        n = len(answer.ids)
        assert answer.ids.tolist() == expected
        assert answer.finished == (expected[-1] == eos)
        states, final, argmax = target.features(answer.ids)
        torch.testing.assert_close(answer.states[: n - 1], states[: n - 1], atol=2e-2, rtol=2e-2)
        torch.testing.assert_close(answer.final[: n - 1], final[: n - 1], atol=2e-2, rtol=2e-2)
        assert torch.equal(answer.argmax[len(prompt) - 1 : n - 1], argmax[len(prompt) - 1 : n - 1])
        assert set(answer.argmax[: len(prompt) - 1].tolist()) | {int(answer.argmax[-1])} == {-1}


def _until(ids: list[int], eos: int, start: int) -> list[int]:
    return ids[: ids.index(eos, start) + 1] if eos in ids[start:] else ids


def test_captured_boundaries_are_the_hidden_states_of_that_index() -> None:
    target = Target(tiny_model(), (1, 3, 5))
    ids = torch.tensor([2, 5, 6, 7, 1, 3])
    states, final, _ = target.features(ids)
    hidden = target.model(ids[None], output_hidden_states=True).hidden_states
    torch.testing.assert_close(states, torch.cat([hidden[b][0] for b in (1, 3, 5)], dim=-1).bfloat16())
    torch.testing.assert_close(final, hidden[6][0].bfloat16())


@pytest.mark.parametrize("boundaries", [(0, 1, 2), (2, 2, 3), (3, 2, 4), (2, 3, 6)])
def test_boundaries_outside_the_target_are_refused(boundaries: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="--layers"):
        Target(tiny_model(), boundaries)


def test_the_default_triple_needs_a_deep_enough_target() -> None:
    assert default_boundaries(30) == (2, 15, 27)
    with pytest.raises(ValueError, match="6 layers"):
        default_boundaries(6)


def test_the_mask_covers_each_answer_and_its_end_token() -> None:
    messages = [
        {"role": "user", "content": "w1 w2"},
        {"role": "assistant", "content": "w3 w4"},
        {"role": "user", "content": "w5"},
        {"role": "assistant", "content": "w6"},
    ]
    ids, mask = tokenize_chat(tiny_tokenizer(), messages)
    shown = [WORDS[i] + ("*" if m else "") for i, m in zip(ids, mask, strict=True)]
    assert shown == "<user> w1 w2 <eos> <bot> w3* w4* <eos>* <user> w5 <eos> <bot> w6* <eos>*".split()


def test_shards_keep_samples_and_refuse_another_number_of_layers(tmp_path: Path) -> None:
    samples = [
        Sample(
            torch.arange(n, dtype=torch.int32),
            torch.arange(n) > 1,
            torch.randn(n, 6).bfloat16(),
            torch.randn(n, 2).bfloat16(),
            torch.full((n,), -1, dtype=torch.int32),
            {"id": str(n)},
        )
        for n in (3, 5)
    ]
    save_shard(tmp_path / "shard-a.safetensors", samples)
    for got, put in zip(load_shards(tmp_path, 3), samples, strict=True):
        assert got.info["id"] == put.info["id"]
        for name in ("ids", "mask", "states", "final", "argmax"):
            assert torch.equal(getattr(got, name), getattr(put, name))
    with pytest.raises(ValueError, match="--layers"):
        load_shards(tmp_path, 2)
    with pytest.raises(ValueError, match="--make-data"):
        load_shards(tmp_path / "nothing", 3)


def test_loops_are_found_where_the_repetition_starts() -> None:
    text = list(range(100, 120))
    phrase = list(range(8))
    assert loop_start(text) == 20
    assert loop_start(text + phrase * 2) == 36
    assert loop_start(text + phrase * 3) == 28


def test_held_out_topics_share_no_prompt_with_the_others() -> None:
    prompts = list(template_prompts())
    assert not {p.topic for p in prompts if p.held_out} & {p.topic for p in prompts if not p.held_out}
    assert len({p.id for p in prompts}) == len(prompts) > 3000
    demo = read_jsonl(Path(__file__).parents[2] / "sglang_eagle31" / "demo" / "prompts.jsonl")
    trained = {p.id for p in prompts if not p.held_out}
    assert not {entry["id"] for entry in demo} & trained


def test_a_line_without_messages_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "a"}]}\n{"prompt": "b"}\n')
    with pytest.raises(ValueError, match="x.jsonl:2"):
        list(read_jsonl(path))


def _target_folder(path: Path) -> Path:
    tiny_model().save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


def _train(tmp_path: Path, target: Path, *more: str) -> int:
    fixed = f"train --target {target} --out {tmp_path / 'out'} --layers 2,3,4 --draft-vocab 20 --steps 3 --ttt 2"
    return main([*fixed.split(), *more])


def test_the_command_makes_data_trains_and_writes_a_head(tmp_path: Path) -> None:
    target, lines = _target_folder(tmp_path / "target"), tmp_path / "prompts.jsonl"
    asked = [{"id": str(i), "messages": [{"role": "user", "content": f"w{i} w{i + 1}"}]} for i in range(12)]
    lines.write_text("\n".join(json.dumps(a) for a in asked))
    (tmp_path / "held.jsonl").write_text("\n".join(json.dumps(a) for a in asked[:3]))
    more = ["--prompts", str(lines), "--held-out", str(tmp_path / "held.jsonl"), "--eval-every", "2"]
    assert _train(tmp_path, target, *more) == 0
    head, used = load_head(tmp_path / "out" / "head")
    assert head.config.boundaries == (2, 3, 4) and len(used) == 20
    provenance = json.loads((tmp_path / "out" / "head" / "provenance.json").read_text())
    assert provenance["data"]["samples"] <= 9, "held-out prompts were trained on"
    assert provenance["training"]["parts"][0]["options"]["ttt"] == 2
    assert str(tmp_path) not in json.dumps(provenance)


def test_conversations_with_answers_need_no_generation(tmp_path: Path) -> None:
    target, lines = _target_folder(tmp_path / "target"), tmp_path / "chats.jsonl"
    answer = " ".join(f"w{i}" for i in range(14))
    chat = {"messages": [{"role": "user", "content": "w9"}, {"role": "assistant", "content": answer}]}
    lines.write_text("\n".join([json.dumps(chat)] * 3))
    assert _train(tmp_path, target, "--data", str(lines), "--variant", "eagle3", "--init", "random") == 0
    assert load_head(tmp_path / "out" / "head")[0].config.variant == "eagle3"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "--data / --prompts"),
        (["--worker", "2/2", "--prompts", "x.jsonl"], "--worker 2/2"),
        (["--prompts", "x.jsonl"], "x.jsonl: no such file"),
        (["--ttt", "0"], "--ttt 0"),
        (["--layers", "2,3,9"], "--layers"),
        (["--layers", "two"], "--layers two"),
        (["--resume"], "leave --resume out"),
        (["--target", "nowhere"], "--target nowhere"),
        (["--draft-vocab", "99"], "--draft-vocab 99"),
    ],
)
def test_a_mistake_is_one_line_and_status_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    answer = " ".join(f"w{i}" for i in range(14))
    chat = {"messages": [{"role": "user", "content": "w9"}, {"role": "assistant", "content": answer}]}
    (tmp_path / "chats.jsonl").write_text(json.dumps(chat))
    if more and "--prompts" not in more:
        more = [*more, "--data", str(tmp_path / "chats.jsonl")]
    assert _train(tmp_path, _target_folder(tmp_path / "target"), *more) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_folder_with_a_checkpoint_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "checkpoint.pt").touch()
    assert _train(tmp_path, _target_folder(tmp_path / "target")) == 2
    assert "add --resume" in capsys.readouterr().err
