"""The command line of a benchmark, its arms and its prompt sets: what is taken, and what is refused with a fix."""

from __future__ import annotations

import argparse
import json
from types import SimpleNamespace

import pytest
from robust_tokenizers import CHATML, tokenizer

from sglang_eagle31.maths.shape import Shape
from sglang_eagle31.tools.bench import arms, prompts, start
from sglang_eagle31.tools.bench import command as bench
from sglang_eagle31.tools.bench.options import Options
from sglang_eagle31.tools.cli import main
from sglang_eagle31.tools.shared.prompts import Renderer


def parse(*words):
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return bench.options(parser.parse_args(list(words)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_defaults(monkeypatch, capsys, dtype):
    monkeypatch.setattr("sglang_eagle31.server.cpu.fast_paths.dtype_here", lambda: (dtype, "because"))
    assert parse() == Options(dtype=dtype, flags=[])
    assert f"[bench] cpu, {dtype}: because" in capsys.readouterr().err
    assert parse("--dtype", "float16").dtype == "float16" and parse("--device", "cuda").dtype == "bfloat16"
    assert parse().kept and not parse("--device", "cuda").kept and not parse("--no-keep-servers").kept


def test_options_are_taken():
    found = parse(
        *("--concurrency", "1,8", "--prompts", "chat,my.jsonl", "--arms", "none,guard", "--shape", "5,4,16"),
        *("--rounds", "2", "--tokens", "9", "--keep-servers", "--", "--context-length", "512"),
    )
    assert (found.concurrency, found.prompts, found.arms) == ([1, 8], ["chat", "my.jsonl"], ["none", "guard"])
    assert (found.shape, found.rounds, found.tokens) == (Shape(5, 4, 16), 2, 9)
    assert found.server_flags(100)[-2:] == ["--context-length", "512"]


def test_quick_is_small_and_what_is_given_wins():
    found = parse("--quick", "--rounds", "2")
    assert (found.prompts, found.concurrency, found.rounds) == (["chat"], [1, 4], 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rounds", "0"], "--rounds 0: expected at least 1"),
        (["--concurrency", "0,4"], "--concurrency 0,4: expected numbers from 1"),
        (["--shape", "0"], "drafts nothing"),
        (["--shape", "x"], "shape 'x'"),
        (["--arm", "a="], "--arm: only for recorded traffic"),
        (["--limit", "3"], "--limit: only for recorded traffic"),
        (["--", "--speculative-eagle-topk", "4"], "--speculative-eagle-topk: the arms have their own"),
        (["--replay", "x.jsonl"], "found 0"),
        (["--replay", "x.jsonl", "--arm", "a="], "found 1"),
        (["--replay", "x.jsonl", "--arm", "a=", "--arm", "a="], "--arm a: given twice"),
        (["--replay", "x.jsonl", "--arm", "no flags", "--arm", "b="], "--arm no flags: expected NAME="),
        (["--replay", "x.jsonl", "--arm", "a=b", "--arm", "b="], "--arm a=b: expected NAME="),
        (["--replay", "x.jsonl", "--arm", "a='", "--arm", "b="], "--arm a=': expected NAME="),
        (["--replay", "x.jsonl", "--arms", "none"], "--arms: not with --replay"),
        (["--replay", "gone.jsonl", "--arm", "a=", "--arm", "b="], "--replay gone.jsonl: cannot be read"),
    ],
)
def test_mistakes_are_refused(words, message):
    with pytest.raises(ValueError, match=message) as refused:
        parse(*words)
    assert "fix: " in str(refused.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--render"], "nothing was measured there"),
        (["--check"], "of which page"),
        (["--dtype", "float32", "--arms", "guard"], "every ratio is to none"),
        (["--arms", "none,guard", "--head", "nowhere"], "holds no config.json"),
        (["--arms", "none,medusa"], "--arms medusa: no such arm"),
    ],
)
def test_mistakes_give_status_2(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(start, "prepare_model", lambda: tmp_path)
    assert main(["bench", "--out", str(tmp_path / "bench.json"), *words]) == 2
    assert message in capsys.readouterr().err


def test_the_size_of_a_cell_follows_the_concurrency():
    assert [Options().count(n) for n in (1, 4, 16, 32, 64, 100)] == [8, 8, 32, 64, 64, 100]
    assert Options(requests=5).count(64) == 5


def test_a_cpu_server_gets_only_the_memory_that_it_needs():
    flags = Options(concurrency=(1, 64)).server_flags(1000)
    assert flags[flags.index("--max-running-requests") + 1] == "64"
    assert int(flags[flags.index("--max-total-tokens") + 1]) >= 64 * 1000
    assert "--max-total-tokens" not in Options(device="cuda").server_flags(1000)


def test_built_in_arms(tmp_path):
    found = {
        arm.name: list(arm.flags)
        for arm in arms.built_in(["guard", "none", "eagle3", "eagle31"], tmp_path, Shape(3, 1, 4))
    }
    assert list(found) == ["none", "eagle3", "eagle31", "guard"] and found["none"] == []
    head = ["--speculative-draft-model-path", str(tmp_path), "--speculative-num-steps", "3"]
    head += ["--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"]
    assert found["eagle3"] == ["--speculative-algorithm", "EAGLE3", *head]
    for name, mode in (("eagle31", "off"), ("guard", "on")):
        assert found[name] == ["--speculative-algorithm", "EAGLE31", *head, "--eagle31-guard", mode]


def test_arms_of_traffic():
    old, plain = arms.parse_arms(['old=--speculative-algorithm EAGLE31 --x "a b"', "plain="])
    assert old == arms.Arm("old", ("--speculative-algorithm", "EAGLE31", "--x", "a b")) and plain == arms.Arm("plain")


def test_eagle3_is_left_out_where_stock_sglang_cannot_run_the_head(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(arms, "stock_can_read", lambda head, target: "wrong: a norm is dropped")
    found, left_out = start._arms(Options(head=tmp_path), tmp_path)
    assert [arm.name for arm in found] == ["none", "eagle31", "guard"]
    assert "a norm is dropped" in left_out["eagle3"]


def test_stock_sglang_by_the_audit(monkeypatch):
    from sglang_eagle31.tools.audit import report

    kinds = iter(
        [SimpleNamespace(kind="exact", reasons=("a note",)), SimpleNamespace(kind="wrong", reasons=("x", "y"))]
    )
    monkeypatch.setattr(report, "audit", lambda head, target: SimpleNamespace(elsewhere={"sglang": next(kinds)}))
    assert [arms.stock_can_read("head", "target") for _ in range(2)] == ["", "wrong: x; y"]


@pytest.fixture(scope="module")
def renderer():
    return Renderer(tokenizer(CHATML))


def test_chat_has_a_prompt_for_every_user(renderer):
    found = prompts.load("chat", renderer, 1024, 64)
    assert len(found.chats) == len({json.dumps(chat) for chat in found.chats}) == 64 == len(found.tokens)
    assert found.tokens[0] == len(renderer.chat(found.chats[0]))
    assert (
        found.digest
        == prompts.load("chat", renderer, 1024, 64).digest
        != prompts.load("chat", renderer, 1024, 63).digest
    )


def test_long_prompts_have_the_length_and_differ(renderer):
    found = prompts.load("long", renderer, 3000, 3)
    assert len({json.dumps(chat) for chat in found.chats}) == 3 and all(2700 <= n <= 3000 for n in found.tokens)
    with pytest.raises(ValueError, match="--long-tokens 64"):
        prompts.load("long", renderer, 64, 3)


def test_a_corpus_is_asked_for_held_out_prompts(renderer, monkeypatch, tmp_path):
    from sglang_eagle31.tools.shared import corpora
    from sglang_eagle31.tools.shared.topic_prompts import single_turn

    def made(folder):
        assert folder == tmp_path
        return iter([single_turn("s", "t", "seen", False), single_turn("s", "u", "held", True)])

    monkeypatch.setattr(corpora, "fetch", lambda name, cache: tmp_path)
    monkeypatch.setitem(corpora.CORPORA, "human-eval", SimpleNamespace(prompts=made))
    assert prompts.load("code", renderer, 0, 9).chats == ([{"role": "user", "content": "held"}],)

    def fails(name, cache):
        raise RuntimeError("no network")

    monkeypatch.setattr(corpora, "fetch", fails)
    with pytest.raises(ValueError, match="no network"):
        prompts.load("code", renderer, 0, 9)


def write(path, *rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_chats_of_a_user(tmp_path, renderer):
    rows = [{"messages": [{"role": "user", "content": text}]} for text in ("one", "two", "three")]
    found = prompts.load(str(write(tmp_path / "mine.jsonl", *rows)), renderer, 0, 2)
    assert (found.name, found.chats) == ("mine", (rows[0]["messages"], rows[1]["messages"]))


SPEED = [
    {"question_id": "1", "category": "low_entropy", "turns": ["first", "second"]},
    {"question_id": "2", "category": "mixed", "turns": ["third"]},
]


def test_speed_bench_as_prepared(tmp_path):
    path = write(tmp_path / "throughput_1k.jsonl", *SPEED)
    assert [chat[0]["content"] for chat in prompts.read_file(path, 9)] == ["first", "third"]
    assert [chat[0]["content"] for chat in prompts.read_file(path, 9, "mixed")] == ["third"]
    with pytest.raises(ValueError, match="fix: of low_entropy, mixed"):
        prompts.read_file(path, 9, "coding")


@pytest.mark.parametrize(
    ("rows", "category", "message"),
    [
        (["not json"], None, "cannot be read"),
        ([SPEED[0], {"category": "x"}], None, "row 2: expected"),
        ([SPEED[0], {"turns": []}], None, "row 2: expected"),
        ([{"turns": [f"{prompts.UNPREPARED} FROM THE SOURCE"]}], None, "not filled in"),
        ([{"messages": [{"role": "user", "content": "a"}]}], "mixed", "has no turns"),
    ],
)
def test_wrong_files_are_refused(tmp_path, rows, category, message):
    with pytest.raises(ValueError, match=message) as refused:
        prompts.read_file(write(tmp_path / "a.jsonl", *rows), 9, category)
    assert "fix: " in str(refused.value)


def test_an_unknown_set_is_refused(renderer):
    with pytest.raises(ValueError, match="no such file or set; fix: a JSONL file, or of chat, code"):
        prompts.load("maths", renderer, 0, 9)


def test_rows_go_round():
    found = prompts.PromptSet("a", ([{"role": "user", "content": "x"}], [{"role": "user", "content": "y"}]), (3, 3))
    rows = found.rows(3, 7)
    assert [row["messages"][0]["content"] for row in rows] == ["x", "y", "x"]
    assert all(row["max_tokens"] == 7 and row["temperature"] == 0 for row in rows)
    assert all(row["stream_options"] == {"include_usage": True} for row in rows)
