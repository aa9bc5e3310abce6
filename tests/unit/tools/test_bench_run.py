"""A run with fake servers: turns, interruption, going on, a server that dies; and real processes that are stopped."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
import requests
from bench_fakes import CONDITIONS, FakeSender, FakeTurns, load
from logprob_fakes import input_logprobs, serving

from sglang_eagle31.tools.bench import run as bench
from sglang_eagle31.tools.bench import turns as turning
from sglang_eagle31.tools.bench.arms import Arm
from sglang_eagle31.tools.bench.load import Timing, of_bench_serving, summarise
from sglang_eagle31.tools.bench.plan import Cell
from sglang_eagle31.tools.bench.results import Results
from sglang_eagle31.tools.bench.serving import Client
from sglang_eagle31.tools.shared.client import Answer, Run
from sglang_eagle31.tools.shared.same_answers.ties import tie_rule
from sglang_eagle31.tools.shared.server_process import ServerFailed, _group_members, popen

ARMS = [Arm("none"), Arm("guard", ("--speculative-algorithm", "EAGLE31"))]
RATES = {"none": 10.0, "guard": 20.0}


@pytest.fixture(autouse=True)
def no_server(monkeypatch):
    monkeypatch.setattr(bench, "server_info", lambda url: {})


def go(tmp_path, turns, sender, asker=None, resume=False):
    results = Results(tmp_path / "bench.json", "none", CONDITIONS)
    if resume:
        results.resume()
    options = {"turns": turns, "sender": sender, "results": results, "asker": asker}
    bench.sweep(ARMS, ["chat"], [1, 2], 2, **options)
    return results


def test_kept_servers_take_turns_cell_by_cell(tmp_path):
    turns, sender = FakeTurns(), FakeSender(RATES)
    record = go(tmp_path, turns, sender).to_json()
    assert turns.log == ["guard", "none"] * 2 + ["none", "guard"] * 2
    assert sender.warmed == [f"fake:{cell.arm}" for cell in sender.measured]
    assert [entry["ratio"] for entry in record["sweep"]] == [1, 2, 1, 2]


def test_a_round_keeps_what_the_guard_ran_meanwhile(tmp_path, monkeypatch):
    plain = iter(range(0, 1000, 3))

    def info(url):
        guard = {"rounds": {"plain": next(plain), "drafted": 5}, "running": {"1": "3,1,4"}}
        return {"internal_states": [{"eagle31": {"guard": guard}}]}

    monkeypatch.setattr(bench, "server_info", info)
    raw = go(tmp_path, FakeTurns(), FakeSender(RATES)).to_json()["sweep"][0]["rounds"][0]
    assert (raw["plain_rounds"], raw["drafted_rounds"], raw["running"]) == (3, 0, {"1": "3,1,4"})


def test_other_servers_have_one_turn_a_round(tmp_path):
    turns = FakeTurns(keep=False)
    go(tmp_path, turns, FakeSender(RATES))
    assert turns.log == ["guard", "none", "none", "guard"]


def test_what_was_measured_before_a_failure_is_kept_and_not_measured_again(tmp_path):
    failing = Cell("none", "chat", 2, 2)
    with pytest.raises(RuntimeError, match="a request failed"):
        go(tmp_path, FakeTurns(), FakeSender(RATES, failing))
    sender = FakeSender(RATES)
    record = go(tmp_path, FakeTurns(), sender, resume=True).to_json()
    assert sender.measured == [failing, Cell("guard", "chat", 2, 2)]
    assert all([raw["round"] for raw in entry["rounds"]] == [1, 2] for entry in record["sweep"])


def test_a_dead_server_is_named_with_its_log(tmp_path):
    with pytest.raises(ServerFailed, match=r"(?s)server guard is gone; last words") as failed:
        go(tmp_path, FakeTurns(alive=False), FakeSender(RATES, Cell("guard", "chat", 1, 1)))
    assert failed.value.exit_code == 7


def test_a_server_that_does_not_answer_any_more_is_named_too(tmp_path, monkeypatch):
    def gone(url):
        raise ValueError("no SGLang server answers")

    monkeypatch.setattr(bench, "server_info", gone)
    with pytest.raises(ServerFailed, match="server guard is gone"):
        go(tmp_path, FakeTurns(alive=False), FakeSender(RATES))
    with pytest.raises(ValueError, match="no SGLang server"):
        go(tmp_path, FakeTurns(), FakeSender(RATES))


def test_a_request_that_a_living_server_refuses_is_told_with_the_log(tmp_path, monkeypatch):
    def refuses(url):
        raise requests.HTTPError("status 400")

    monkeypatch.setattr(bench, "server_info", refuses)
    with pytest.raises(RuntimeError, match="server guard: status 400; log: fake.log"):
        go(tmp_path, FakeTurns(), FakeSender(RATES))


def answer(tokens, histogram=()):
    steps = sum(histogram)
    return Answer("p", "t", (1, 2), tuple(tokens), 1.0, "stop", steps, tuple(histogram))


def test_answers_are_compared_with_the_first_arms_and_every_token_is_checked(tmp_path, monkeypatch):
    """The server of the first arm counts up, and after 5 finds 7 nearly as good as 6."""
    asked = []

    def told(prefix):
        return {prefix[-1] + 1: -0.5, **({7: -0.6} if prefix[-1] == 5 else {})}

    def reply(path, body):
        asked.append(body["input_ids"])
        return 200, {"meta_info": input_logprobs(body, told)}

    runs = {
        "fake:none": Run((answer([3, 4, 5]), answer([3, 4, 5, 6]), answer([3, 4, 5, 6, 7])), 1.0),
        "fake:guard": Run(
            (answer([3, 4, 5], [0, 1, 0]), answer([3, 9, 10], [1, 0, 1]), answer([3, 4, 5, 7, 90], [3])), 1.0
        ),
    }
    monkeypatch.setattr(bench.identity, "chat_all", lambda url, *_: runs[url])
    sets = {"chat": type("Set", (), {"chats": [[], [], []]})()}
    asker = bench.Identity(sets, "none", 3, 8, tie_rule("bfloat16"))
    with serving(reply) as url:
        runs[url] = runs["fake:none"]
        turns = FakeTurns()
        turns.urls["none"] = url
        found = go(tmp_path, turns, FakeSender(RATES), asker).identity["chat"]
    first, second, third = ([1, 2, *one.token_ids] for one in runs["fake:guard"].answers)
    assert asked == [first, second[:4], second, third[:6], third] and set(found) == {"guard"}
    guard = found["guard"]
    assert [guard[key] for key in ("prompts", "same", "tie", "different")] == [3, 1, 1, 1]
    assert (guard["tokens"], guard["tokens_compared"], guard["accept_length"]) == (11, 7, 1.5)
    assert [guard[f"tokens_{key}"] for key in ("checked", "tied", "differing")] == [11, 1, 2]
    assert guard["accept_by_depth"] == pytest.approx([2 / 6, 1 / 6])
    assert guard["first_differences"] == [
        {"prompt": 1, "outcome": "different", "token": 1, "gap": 29.5},
        {"prompt": 2, "outcome": "tie", "token": 3, "gap": pytest.approx(0.1)},
    ]
    assert [(one["prompt"], one["index"], one["token"]) for one in guard["wrong_tokens"]] == [(1, 1, 9), (2, 4, 90)]


COUNTER = "import time\nn = 0\nwhile True:\n    n += 1; print(n, flush=True); time.sleep(0.01)\n"


@contextmanager
def counting(name, model, args, *, log_dir):
    """A process group whose log grows while it runs."""
    path = log_dir / f"{name}.log"
    script = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {COUNTER!r}])\n{COUNTER}"
    with path.open("wb") as log:
        process = popen([sys.executable, "-c", script, *args], log, {})
        server = turning.Server(name, "", path, process)
        try:
            yield server
        finally:
            server.stop(grace=5.0)


def states(server):
    return {open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] for pid in _group_members(server.pid)}


def lines(server):
    return server.log_path.read_bytes().count(b"\n")


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()


def test_only_the_server_whose_turn_it_is_runs_and_all_end(tmp_path):
    with turning.turns("model", ["--flag"], tmp_path, True, counting) as turns:
        with turns(ARMS[0]) as first:
            wait_for(lambda: len(_group_members(first.pid)) == 2 and lines(first) > 2)
        with turns(ARMS[1]) as second:
            wait_for(lambda: states(first) == {"T"} and lines(second) > 2)
            stood = lines(first)
        with turns(ARMS[0]) as again:
            assert again is first
            wait_for(lambda: lines(first) > stood + 2 and states(second) == {"T"})
            assert "T" not in states(first)
        with turns(ARMS[0]):
            assert "T" not in states(first)
    assert not first.alive() and not second.alive()
    assert _group_members(first.pid) == _group_members(second.pid) == []


def test_servers_that_are_not_kept_end_with_their_turn(tmp_path):
    with turning.turns("model", [], tmp_path, False, counting) as turns:
        with turns(ARMS[0]) as first:
            assert first.alive()
        assert not first.alive()


def test_flags_of_kept_servers_hold_the_watchdog():
    kept, other = (turning.Turns("m", ["--x"], None, keep, None) for keep in (True, False))
    assert kept.common == ["--x", "--watchdog-timeout", "1000000"] and other.common == ["--x"]


def test_a_load_of_streamed_answers():
    timings = [Timing(0.0, 0.5, 1.5, 3, (0.4, 0.6)), Timing(1.0, 1.1, 2.0, 1, ())]
    found = summarise(timings)
    assert (found.requests, found.output_tokens, found.seconds, found.output_tok_s) == (2, 4, 2.0, 2.0)
    assert found.ttft_ms == pytest.approx(300) and found.tpot_ms == pytest.approx(500)
    assert found.user_tok_s == pytest.approx(2) and found.itl_ms_p50 == pytest.approx(500)
    assert found.itl_ms_p99 == pytest.approx(598)


RECORD = {
    "completed": 2,
    "total_output_tokens": 30,
    "duration": 3.0,
    "output_throughput": 10.0,
    "median_ttft_ms": 20.0,
    "median_tpot_ms": 50.0,
    "median_itl_ms": 45.0,
    "p99_itl_ms": 90.0,
    "errors": ["", ""],
}


def test_the_record_of_sglangs_benchmark():
    assert of_bench_serving(RECORD) == load(
        10.0,
        requests=2,
        output_tokens=30,
        seconds=3.0,
        user_tok_s=20.0,
        ttft_ms=20.0,
        tpot_ms=50.0,
        itl_ms_p50=45.0,
        itl_ms_p99=90.0,
    )
    with pytest.raises(ValueError, match="1 requests were not answered: refused"):
        of_bench_serving({**RECORD, "errors": ["", "refused"]})


CHILD = f"""
import json, sys
print("null", flush=True)
for line in sys.stdin:
    arguments = json.loads(line)
    url = arguments[arguments.index("--base-url") + 1]
    if url == "die":
        sys.exit(3)
    rows = open(arguments[arguments.index("--dataset-path") + 1]).readlines()
    record = dict({RECORD!r}, completed=len(rows))
    open(arguments[arguments.index("--output-file") + 1], "w").write(json.dumps(record))
    print(json.dumps("it went wrong" if url == "wrong" else None), flush=True)
"""


@pytest.fixture
def client(tmp_path):
    log = tmp_path / "client.log"
    log.write_text("its last words")
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", CHILD], stdin=pipe, stdout=pipe, text=True)
    yield Client(process, log, "model")
    process.kill()
    process.communicate()


def test_one_process_sends_every_cell(client):
    assert [client.measure("http://a", [{"messages": []}] * n, n).requests for n in (1, 3)] == [1, 3]


@pytest.mark.parametrize(("url", "message"), [("wrong", "it went wrong"), ("die", "(?s)has ended.*its last words")])
def test_a_failed_benchmark_is_told(client, url, message):
    with pytest.raises(RuntimeError, match=message):
        client.measure(url, [{}], 1)
