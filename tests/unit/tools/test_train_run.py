"""The commands data and train from their arguments to a head, with a tiny random target."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from test_train_data import tiny_model, tiny_tokenizer

from sglang_eagle31.tools.audit.report import audit
from sglang_eagle31.tools.cli import main
from sglang_eagle31.tools.train.data import Sample
from sglang_eagle31.tools.train.export import load_head
from sglang_eagle31.tools.train.generate import TorchEngine
from sglang_eagle31.tools.train.target import Target

SHAPE = "--layers 2,3,4 --draft-vocab 20"
QUICK = "--steps 3 --ttt 2 --eval-every 2 --eval-depth 2 --batch-tokens 64"


@pytest.fixture(autouse=True)
def no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than everything else of a run this small."""
    if "pair" not in request.node.name:
        monkeypatch.setattr("sglang_eagle31.tools.train.run.plot", lambda folder: folder)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def data(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the command data, by the engine in torch: 20 prompts, one topic in four held out."""
    folder = tmp_path_factory.mktemp("data")
    chats = [{"id": str(i), "topic": str(i), "messages": [{"role": "user", "content": f"w{i} w3"}]} for i in range(20)]
    (folder / "mine.jsonl").write_text("\n".join(map(json.dumps, chats)))
    assert make(target, folder / "data", f"--prompts {folder / 'mine.jsonl'} --hold-out 4") == 0
    return folder / "data"


def make(target: Path, out: Path, more: str) -> int:
    fixed = f"data --target {target} --out {out} --engine torch --layers 2,3,4 --batch 8 --max-new-tokens 30"
    return main(shlex.split(f"{fixed} {more}"))


def train(target: Path, out: Path, more: str) -> int:
    return main(shlex.split(f"train --target {target} --out {out} {SHAPE} {QUICK} {more}"))


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_data_is_recorded_and_bound_to_its_request(
    data: Path, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = read(data / "provenance.json")
    assert record["engine"] == "torch" and record["files"] == ["mine.jsonl"] and record["corpora"] == {}
    assert record["train"]["kept"] > record["held_out"]["kept"] > 0
    assert record["held_out"]["samples_by_temperature"] == {"0.0": record["held_out"]["samples"]}
    assert str(data.parent) not in json.dumps(record)
    prompts = f"--prompts {data.parent / 'mine.jsonl'} --hold-out 4"
    assert make(target, data, prompts) == 0
    assert make(target, data, f"{prompts} --seed 1") == 2
    assert "made with another prompts, seed; fix: choose a new folder" in capsys.readouterr().err


def test_a_pair_is_trained_from_one_folder_of_data(data: Path, target: Path, tmp_path: Path) -> None:
    assert train(target, tmp_path / "pair", f"--data {data} --pair --seed 3") == 0
    record = read(tmp_path / "pair" / "pair.json")
    assert record["steps"] == {"eagle3": 3, "eagle31": 3} and record["seed"] == 3
    made = {}
    for variant in ("eagle3", "eagle31"):
        folder = tmp_path / "pair" / variant
        head, used = load_head(folder / "head")
        made[variant] = head, used
        assert head.config.variant == variant and head.config.trained_depth == 2 and len(used) == 20
        provenance = read(folder / "head" / "provenance.json")
        assert provenance["training"]["data_digest"] == record["data_digest"]
        assert set(provenance["evaluation"]["sources"]) == {"mine"}
        assert str(tmp_path) not in json.dumps(provenance)
        assert (folder / "curves.png").exists()
    assert torch.equal(made["eagle3"][1], made["eagle31"][1])
    resumed = f"--data {data} --pair --seed 3 --resume"
    before = record
    assert train(target, tmp_path / "pair", resumed) == 0
    assert read(tmp_path / "pair" / "pair.json")["evaluation"] == before["evaluation"]


def test_training_on_features_made_on_the_fly_is_that_on_cached_ones(
    data: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the losses: three steps of AdamW move a weight by 0.003 at most, whatever they are given.

    Features are kept in bfloat16. Float32 sums of another batch may round some of them the other way; losses differ by
    1e-4 if that happens to all, and by 7e-3 if each state is that of the token before.
    """

    def losses(name: str, kind: str) -> list[float]:
        assert train(target, tmp_path / name, f"--data {data} --features {kind} --init random") == 0
        lines = map(json.loads, (tmp_path / name / "log.jsonl").read_text().splitlines())
        return [loss for entry in lines for loss in entry.get("losses", ())]

    cached = losses("cache", "cache")
    assert len(cached) == 6 and losses("fly", "fly") == pytest.approx(cached, rel=1e-3)
    made = Target.complete

    def of_the_token_before(*given: Any) -> list[Sample]:
        return [replace(sample, states=sample.states.roll(1, 0)) for sample in made(*given)]

    monkeypatch.setattr(Target, "complete", of_the_token_before)
    assert losses("before", "fly") != pytest.approx(cached, rel=1e-3)


def test_a_window_is_read_back_by_loader_and_audit(data: Path, target: Path, tmp_path: Path) -> None:
    assert train(target, tmp_path / "run", f"--data {data} --window 5 --variant eagle3 --trained-depth 7") == 0
    report = audit(str(tmp_path / "run" / "head"), str(target))
    assert report.verdict == "exact", report.reasons
    assert report.spec["sliding_window"][0] == 5
    assert any("7 unrolled draft steps" in note for note in report.notes)
    assert load_head(tmp_path / "run" / "head")[0].config.window == 5


@pytest.mark.parametrize("variant", ["eagle3", "eagle31"])
def test_a_head_is_continued_where_it_was(variant: str, data: Path, target: Path, tmp_path: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    assert train(target, first, f"--data {data} --variant {variant} --window 9") == 0
    assert train(target, again, f"--data {data} --variant {variant} --init {first / 'head'} --lr 1e-30") == 0
    old, new = load_head(first / "head"), load_head(again / "head")
    assert torch.equal(old[1], new[1]) and old[0].config == new[0].config
    for name, value in old[0].state_dict().items():
        assert torch.equal(new[0].state_dict()[name], value), name
    assert read(again / "head" / "provenance.json")["continued_from"] == "head"


def test_heads_that_this_trainer_cannot_continue_are_refused_by_name(
    data: Path, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(target, tmp_path / "run", f"--data {data} --variant eagle3") == 0
    head = tmp_path / "run" / "head"

    def refused(name: str, more: str = "") -> str:
        assert train(target, tmp_path / name, f"--data {data} --init {head} {more}") == 2
        return capsys.readouterr().err.splitlines()[-1]

    assert "an eagle3 head, expected eagle31; fix: --variant eagle3" in refused("a")
    config, tensors = read(head / "config.json"), load_file(head / "model.safetensors")
    (head / "config.json").write_text(json.dumps({**config, "norm_output": True}))
    assert "pre_fc_norm='none' with feedback='post'" in refused("b")
    (head / "config.json").write_text(json.dumps(config))
    save_file({**tensors, "fc.bias": torch.zeros(16)}, head / "model.safetensors")
    assert "fc_bias=True (expected False)" in refused("c", "--variant eagle3")
    save_file({**tensors, "embed_tokens.weight": torch.randn(40, 16)}, head / "model.safetensors")
    assert "differs from the target's embedding" in refused("d", "--variant eagle3")


@pytest.mark.parametrize("kind", ["specforge", "torchspec"])
def test_another_trainers_config_has_the_numbers_of_the_run(
    kind: str, data: Path, target: Path, tmp_path: Path
) -> None:
    more = f"--emit {kind} {tmp_path / kind} --data {data} --lr 3e-4 --accumulate 4 --seed 7 --warmup 0.1"
    assert train(target, tmp_path / "run", more) == 0
    config = yaml.safe_load((tmp_path / kind / "run.yaml").read_text())
    training = config["training"]
    numbers = {"learning_rate": 3e-4, "ttt_length": 2, "seed": 7, "warmup_ratio": 0.1, "max_grad_norm": 0.5}
    assert {name: training[name] for name in numbers} == numbers
    steps = training["max_steps" if kind == "specforge" else "num_train_steps"]
    assert (steps, training["accumulation_steps" if kind == "specforge" else "draft_accumulation_steps"]) == (3, 4)
    layers = config["model"]["aux_hidden_state_layer_ids"] if kind == "specforge" else None
    assert (layers or config["inference"]["aux_hidden_states_layers"]) == [1, 2, 3]
    draft = read(tmp_path / kind / "draft.json")
    assert draft["fc_norm"] and draft["norm_output"] and draft["draft_vocab_size"] == 20
    assert not any("sglang_eagle31" in name for name in draft)
    lines = (tmp_path / kind / "conversations.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["conversations"][-1]["role"] == "assistant"
    assert not (tmp_path / "run").exists()


def test_conversations_with_answers_need_no_generation(target: Path, tmp_path: Path) -> None:
    answers = [" ".join(f"w{(i * k) % 36}" for i in range(14)) for k in (1, 5, 7)]
    turns = [[{"role": "user", "content": "w9"}, {"role": "assistant", "content": answer}] for answer in answers]
    (tmp_path / "chats.jsonl").write_text("\n".join(json.dumps({"messages": turn}) for turn in turns))
    assert make(target, tmp_path / "data", f"--conversations {tmp_path / 'chats.jsonl'}") == 0
    assert train(target, tmp_path / "run", f"--data {tmp_path / 'data'} --variant eagle3 --init random") == 0
    assert load_head(tmp_path / "run" / "head")[0].config.variant == "eagle3"


def test_held_out_prompts_are_answered_and_left_out(data: Path, target: Path, tmp_path: Path) -> None:
    shards = data / "samples"
    asked = {"id": "other", "messages": [{"role": "user", "content": f"w{_trained(data)} w3"}]}
    (tmp_path / "held.jsonl").write_text(json.dumps(asked))
    assert train(target, tmp_path / "run", f"--samples {shards} --held-out {tmp_path / 'held.jsonl'}") == 0
    record = read(tmp_path / "run" / "head" / "provenance.json")
    assert record["data"]["dropped"] >= 1 and record["held_out"]["samples"] == 1


def _trained(data: Path) -> str:
    """The number of a prompt that was trained on."""
    first = (data / "answers" / "0000.jsonl").read_text().splitlines()
    kept = [json.loads(line) for line in first]
    return next(x["id"] for x in kept if len(x["ids"]) - x["prompt_length"] >= 12)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("", "--data / --samples"),
        ("--data {data} --ttt 0", "--ttt 0"),
        ("--data {data} --layers 2,3,9", "--layers"),
        ("--data {data} --layers two", "--layers two"),
        ("--data {data} --resume", "leave --resume out"),
        ("--data {data} --target nowhere", "--target nowhere"),
        ("--data {data} --draft-vocab 99", "--draft-vocab 99"),
        ("--data {data} --variant eagle31 --init nowhere", "nowhere"),
        ("--data {data} --pair --minutes 3", "--pair with --minutes"),
        ("--data {data} --pair --resume", "leave --resume out"),
        ("--data {data} --emit other x", "--emit other"),
        ("--data nowhere --emit specforge x", "nowhere/answers"),
        ("--data {data} --window 4 --emit torchspec x", "--window 4"),
        ("--data {data} --override x --init {data}", "--override x"),
    ],
)
def test_a_mistake_is_one_line_and_status_two(
    data: Path, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, message: str
) -> None:
    assert train(target, tmp_path / "out", more.format(data=data)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert message in error and "fix: " in error


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--corpora x,template", "--corpora x,template: x unknown"),
        ("--batch 0", "--batch 0"),
        ("--sampled 2", "--sampled 2"),
        ("--prompts nowhere.jsonl", "nowhere.jsonl: no such file"),
        ("--conversations x.jsonl --features fly", "--features fly"),
    ],
)
def test_a_mistake_in_the_data_is_one_line(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, message: str
) -> None:
    assert make(target, tmp_path / "out", more) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert message in error and "fix: " in error


def test_a_folder_with_a_checkpoint_is_not_overwritten(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "checkpoint.pt").touch()
    assert train(target, tmp_path, "") == 2
    assert "add --resume" in capsys.readouterr().err


def test_one_engine_answers_everything_and_is_ended(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is trained on and what is held out; and none is made when all is answered."""
    made: list[TorchEngine] = []
    ended: list[TorchEngine] = []
    start, stop = TorchEngine.__enter__, TorchEngine.__exit__
    monkeypatch.setattr(TorchEngine, "__enter__", lambda self: (made.append(self), start(self))[1])
    monkeypatch.setattr(TorchEngine, "__exit__", lambda self, *a: (ended.append(self), stop(self, *a))[1])
    chats = [{"id": str(i), "messages": [{"role": "user", "content": f"w{i} w3"}]} for i in range(12)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, chats)))
    for _ in range(2):
        assert make(target, tmp_path / "data", f"--prompts {tmp_path / 'mine.jsonl'} --hold-out 3 --features fly") == 0
    assert (tmp_path / "data" / "held_out" / "answers" / "0000.jsonl").exists()
    assert len(made) == 1 and ended == made
