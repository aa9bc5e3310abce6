"""The drift probe in real servers: it changes nothing, agrees with the offline probe, and is shown where users look."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
import torch
from conftest import Models, generate, prompt, speculate
from mla_models import write_mla_head
from selection import core
from transformers import LlamaForCausalLM

from sglang_eagle31.head.check import resolve
from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.target import read_target
from sglang_eagle31.server.probe.record import Record
from sglang_eagle31.tools.cli import main
from sglang_eagle31.tools.drift.draft import draft, prefill
from sglang_eagle31.tools.drift.head import Head, read_head
from sglang_eagle31.tools.drift.offline import Settings, probe
from sglang_eagle31.tools.drift.served import collect
from sglang_eagle31.tools.drift.target import TargetModel
from sglang_eagle31.tools.shared.server_process import Server

CHAIN, TREE = (5, 1, 6), (4, 3, 8)
PROMPTS = [prompt(length, length) for length in (30, 61, 7, 200)]
BATCH = [prompt(5 + 9 * i, 100 + i) for i in range(8)]
HEADS: dict[str, Callable[[Models, Path], Path]] = {
    "eagle31": lambda tiny, folder: tiny.eagle31,
    "eagle3": lambda tiny, folder: tiny.eagle3,
    "wide": lambda tiny, folder: tiny.wide,
    "mla": lambda tiny, folder: write_mla_head(folder / "mla"),
}
CASES = [("eagle31", CHAIN), ("eagle31", TREE), ("eagle3", CHAIN), ("wide", TREE), ("mla", CHAIN), ("mla", TREE)]


def internal(server: Server) -> dict[str, Any]:
    info = requests.get(f"{server.url}/server_info", timeout=60).json()
    state: dict[str, Any] = info["internal_states"][0]
    return state


def record_of(server: Server) -> Record:
    return Record.from_json(internal(server)["eagle31"]["drift"]["record"])


def since(after: Record, before: Record) -> Record:
    """What was recorded after SGLang's own warm-up request."""
    for depth, cells in before.depths.items():
        for name, moments in cells.items():
            mine = after.depths[depth][name]
            mine.count, mine.total = mine.count - moments.count, mine.total - moments.total
    left = {column: count - before.sinks.get(column, 0) for column, count in after.sinks.items()}
    after.sinks = {column: count for column, count in left.items() if count}
    return after


def load(folder: Path, target: Path) -> tuple[Head, TargetModel]:
    checkpoint = Checkpoint.read(folder)
    reading, reasons = resolve(checkpoint, read_target(str(target)), {})
    assert reasons == []
    model = TargetModel(LlamaForCausalLM.from_pretrained(target))
    return read_head(checkpoint, reading.spec(), reading.names, model.embedding, model.head), model


def offline(folder: Path, target: Path, steps: int, topk: int) -> Record:
    """One round a prompt, from the prompt's end."""
    head, model = load(folder, target)
    total = Record()
    for ids in PROMPTS:
        total.merge(probe(head, model, ids, Settings(steps=steps, topk=topk, answer_tokens=1), [len(ids)]))
    return total


def compare(live: Record, other: Record) -> None:
    assert live.sinks == other.sinks
    assert sorted(live.depths) == sorted(other.depths)
    for depth, cells in other.depths.items():
        assert set(cells) == set(live.depths[depth]), depth
        for name, moments in cells.items():
            found = live.depths[depth][name]
            assert (depth, name, found.count) == (depth, name, moments.count)
            assert found.total == pytest.approx(moments.total, rel=1e-3, abs=1e-4 * moments.count), (depth, name)


def answers(server: Server) -> list[tuple[list[int], list[int]]]:
    """Tokens and acceptance histogram of each request, alone and in a batch."""
    alone = [generate(server, [ids], 24)[0] for ids in PROMPTS]
    return [
        (answer["output_ids"], answer["meta_info"]["spec_correct_drafts_histogram"])
        for answer in [*alone, *generate(server, BATCH, 32)]
    ]


@pytest.mark.parametrize(
    ("name", "tree"),
    core(CASES, CASES[:2], unpack=True),
    ids=lambda value: value if isinstance(value, str) else f"topk{value[1]}",
)
def test_live_and_offline_agree(
    start: Any, tiny: Models, tmp_path: Path, name: str, tree: tuple[int, int, int]
) -> None:
    folder = HEADS[name](tiny, tmp_path)
    flags = [*speculate("EAGLE31", folder, *tree), "--eagle31-drift-sample", "1"]
    with start(f"drift-{name}-{tree[1]}", *flags) as server:
        before = record_of(server)
        for ids in PROMPTS:
            generate(server, [ids], 2)  # the first token, and one round
        record = since(record_of(server), before)
        assert internal(server)["eagle31"]["drift"]["layers_not_seen"] == 0
    compare(record, offline(folder, tiny.target, tree[0] - 1, tree[1]))


def served_rounds(head: Head, model: TargetModel, ids: list[int], tokens: int, steps: int) -> list[int]:
    """Committed lengths from which a server drafts chains of ``steps`` tokens, until it has ``tokens`` of them."""
    whole = [*ids, *model.answer(ids, tokens + steps, ignore_eos=True)]
    every = range(len(ids) - 1, len(whole) - 1)
    cache, rows = prefill(head, model.states(whole[:-1], head.spec), torch.tensor(whole[1:]), every)
    starts, length = [], len(ids)
    while length - len(ids) + 1 < tokens:
        starts.append(length)
        chain = list(draft(head, cache, rows[length - 1], steps - 1))
        drafted = [*(int(step.ids) for step in chain), int(head.target_ids[chain[-1].out.logits.argmax()])]
        right = [token == truth for token, truth in zip(drafted, whole[length + 1 :], strict=False)]
        length += 1 + (right.index(False) if False in right else len(right))
    return starts


def test_all_rounds_of_an_answer_agree(start: Any, tiny: Models) -> None:
    """After the first one, depth 0 is a row of SGLang's draft extend, and there is an answer to attend to."""
    steps, tokens = CHAIN[0], 40
    flags = [*speculate("EAGLE31", tiny.eagle3, *CHAIN), "--eagle31-drift-sample", "1"]
    with start("drift-answer", *flags) as server:
        before = record_of(server)
        generate(server, PROMPTS[:3], tokens)
        generate(server, PROMPTS[3:], tokens)  # all four would be prefilled in chunks
        record = since(record_of(server), before)
    head, model = load(tiny.eagle3, tiny.target)
    expected = Record()
    for ids in PROMPTS:
        starts = served_rounds(head, model, ids, tokens, steps)
        settings = Settings(steps=steps - 1, answer_tokens=tokens + steps)
        expected.merge(probe(head, model, ids, settings, starts))
    assert expected.rows(0) > 30 and expected.depths[1]["key_answer"].count > 25
    compare(record, expected)


@pytest.fixture(scope="module")
def off(start: Any, tiny: Models) -> dict[tuple[int, int, int], Any]:
    """Answers without a probe."""
    found = {}
    for tree in (CHAIN, TREE):
        with start(f"no-drift-{tree[1]}", *speculate("EAGLE31", tiny.eagle31, *tree)) as server:
            found[tree] = answers(server)
            assert "drift" not in internal(server)["eagle31"]  # nothing is installed
    return found


@pytest.mark.parametrize("tree", [CHAIN, TREE], ids=["chain", "tree"])
def test_the_probe_changes_no_token_and_no_acceptance(start: Any, tiny: Models, off: Any, tree: Any) -> None:
    flags = [*speculate("EAGLE31", tiny.eagle31, *tree), "--eagle31-drift-sample", "1"]
    with start(f"drift-on-{tree[1]}", *flags) as server:
        assert answers(server) == off[tree]
        drift = internal(server)["eagle31"]["drift"]
    record = Record.from_json(drift["record"])
    assert record.steps == list(range(1, tree[0]))
    assert drift["rounds"] == record.rows(0) > 50
    assert [record.rows(depth) for depth in record.steps] == [tree[1] * drift["rounds"]] * (tree[0] - 1)
    for depth in record.depths:
        total = sum(record.mean(depth, f"mass_{kind}") or 0.0 for kind in ("sink", "prompt", "answer", "drafted"))
        assert total == pytest.approx(1.0, abs=1e-4)


@pytest.fixture(scope="module")
def some(start: Any, tiny: Models) -> Iterator[Server]:
    """A server that records a third of the rounds, and has answered."""
    flags = [*speculate("EAGLE31", tiny.eagle31, *CHAIN), "--eagle31-drift-sample", "0.3", "--enable-metrics"]
    with start("drift-some", *flags) as server:
        answers(server)
        yield server


def test_a_share_of_the_rounds_is_recorded(some: Server) -> None:
    drift = internal(some)["eagle31"]["drift"]
    rounds = sum(sum(histogram) for _, histogram in answers(some))
    more = internal(some)["eagle31"]["drift"]["rounds"] - drift["rounds"]
    assert 0.1 * rounds < more < 0.6 * rounds


def test_each_round_is_drawn_by_itself(some: Server) -> None:
    before = internal(some)["eagle31"]["drift"]["rounds"]
    answer = generate(some, [PROMPTS[0]], 150)[0]
    more = internal(some)["eagle31"]["drift"]["rounds"] - before
    assert 3 < more < sum(answer["meta_info"]["spec_correct_drafts_histogram"]) - 3


def test_prometheus_has_the_same_sums(some: Server) -> None:
    lines = requests.get(f"{some.url}/metrics", timeout=60).text.splitlines()
    found = {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in lines
        if "eagle31_drift" in line and line[0] != "#"
    }
    record = record_of(some)
    for depth, cells in record.depths.items():
        for name in ("entropy", "rms_fed", "mass_sink", "key_drafted"):
            moments = cells[name]
            if moments.count:
                key = f'sglang:eagle31_drift_{name}_{{}}{{depth="{depth}"}}'.replace("{}", "%s", 1)
                assert found[key % "count"] == moments.count
                assert found[key % "sum"] == pytest.approx(moments.total)
        turned = found[f'sglang:eagle31_drift_cosine_distance_sum{{depth="{depth}"}}']
        assert turned == pytest.approx(cells["cosine"].count - cells["cosine"].total, rel=1e-4)
    boundary = found['sglang:eagle31_drift_rms_captured_sum{boundary="4",depth="0"}']
    assert boundary == pytest.approx(record.depths[0]["rms_captured_4"].total)


def test_the_command_reads_a_server(some: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drift", "--url", some.url, "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "0 (prefill)" in text and "drift: " in text and "EAGLE 3.1" in text
    made = json.loads((tmp_path / "drift.json").read_text())
    assert made["rate"] == 0.3 and made["verdict"]["magnitude"] == "flat" and "argv" in made["provenance"]
    assert (tmp_path / "drift.png").stat().st_size > 20_000


@pytest.mark.parametrize("algorithm", core(["EAGLE", "EAGLE3", "STANDALONE"], ["EAGLE3"]))
def test_drafts_of_stock_sglang_are_probed_too(start: Any, tiny: Models, algorithm: str) -> None:
    folder = {"EAGLE": tiny.eagle1, "EAGLE3": tiny.eagle3, "STANDALONE": tiny.target}[algorithm]
    flags = [*speculate(algorithm, folder, *TREE), "--eagle31-drift-sample", "1"]
    with start(f"drift-stock-{algorithm}", *flags) as server:
        before = record_of(server)
        for ids in PROMPTS:
            generate(server, [ids], 2)
        record, facts = collect(requests.get(f"{server.url}/server_info", timeout=60).json(), server.url)
    assert facts["variant"] == algorithm and record.steps == [1, 2, 3]
    assert ("rms_fed" in record.names()) == (algorithm != "STANDALONE")  # a draft model of its own is fed no state
    if algorithm == "EAGLE3":
        expected = offline(folder, tiny.target, TREE[0] - 1, TREE[1])
        for name in [name for name in expected.depths[0] if name.startswith("rms_captured")]:
            del expected.depths[0][name]  # stock SGLang does not say which layers these are
        found = since(record, before)
        found.depths[0] = {name: cell for name, cell in found.depths[0].items() if not name.startswith("rms_captured")}
        compare(found, expected)


def test_an_offline_run_and_its_mistakes(tiny: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"input_ids": ids}) for ids in PROMPTS))
    where = [str(tiny.eagle3), "--target", str(tiny.target), "--prompts", str(file)]
    assert main(["drift", *where, "--limit", "2", "--rounds", "3", "--steps", "4", "--topk", "2", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert len(made["per_prompt"]) == 2 and made["record"]["depths"]["4"]["entropy"]["count"] == 12
    wrong = {
        "give HEAD with --target, or --url": [],
        "--target is not given": [str(tiny.eagle3)],
        "--steps 0": [*where, "--steps", "0"],
        "--limit 0": [*where, "--limit", "0"],
        "no prompts": [*where[:-1], "/dev/null"],
        "line 1: the target has no tokenizer": [*where[:-1], str(tmp_path / "chat.jsonl")],
        "cannot be run": [*where, "--override", "aux_layers=5,4,2"],
    }
    (tmp_path / "chat.jsonl").write_text('{"messages": [{"role": "user", "content": "Hi"}]}\n')
    for message, words in wrong.items():
        assert main(["drift", *words]) == 2
        error = capsys.readouterr().err
        assert message in error and "fix: " in error, error


def test_a_watched_draft_runs_without_its_graphs() -> None:
    """With graph runners as SGLang calls them; a worker without graphs has None in their place."""
    import harness  # noqa: F401  (makes SGLang importable here)

    from sglang_eagle31.server.probe.install import leave_graphs

    steps, extend, prefill = (SimpleNamespace(can_run_graph=lambda batch: True) for _ in range(3))
    runner = SimpleNamespace(prefill_cuda_graph_runner=prefill)
    leave_graphs(
        SimpleNamespace(cuda_graph_runner=steps, cuda_graph_runner_for_draft_extend=extend, draft_runner=runner)
    )
    assert not any(one.can_run_graph(None) for one in (steps, extend, prefill))
    leave_graphs(SimpleNamespace(cuda_graph_runner=None, draft_runner=SimpleNamespace()))
