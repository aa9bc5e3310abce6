"""Counters of a live server against a recount from its answers, over mixed traffic.

``ACCEPTANCE_REQUESTS=1000 pytest tests/integration/test_acceptance.py -k "chain or tree"`` is the long version.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import torch
from acceptance_traffic import STARTS, Asked, Recount, recount, traffic
from conftest import Models, generate, prompt, speculate
from safetensors.torch import load_file, save_file
from selection import core

from sglang_eagle31.server.metrics.fingerprint import digest, pattern
from sglang_eagle31.tools.shared.acceptance_of_server import collect
from sglang_eagle31.tools.shared.server_process import Server

CHAIN, TREE = (5, 1, 6), (4, 3, 8)
COUNT = int(os.environ.get("ACCEPTANCE_REQUESTS", "60"))
SPECIAL = {1, 2}
PREFIX = "sglang:eagle31_spec_decode_"
OURS = ("context", "template", "position", "cause", "outcome", "le")


def record(server: Server) -> dict[str, Any]:
    found = collect(requests.get(f"{server.url}/server_info", timeout=60).json())
    assert found is not None  # SGLang's own warm-up request was counted
    return found


def prometheus(server: Server) -> dict[tuple[str, ...], float]:
    """Name and labels that are not SGLang's, to value, summed over schedulers."""
    found: dict[tuple[str, ...], float] = {}
    for line in requests.get(f"{server.url}/metrics", timeout=60).text.splitlines():
        if line.startswith(PREFIX):
            name = line.removeprefix(PREFIX).partition("{")[0]
            labels = [f'{label}="{value}"' for label, value in re.findall(r'(\w+)="([^"]*)"', line) if label in OURS]
            key = (name, *sorted(labels))
            found[key] = found.get(key, 0) + float(line.rpartition(" ")[2])
    return found


def difference(after: Any, before: Any) -> Any:
    """Counts that came between two records."""
    if isinstance(after, dict):
        return {key: difference(value, before.get(key)) if before else value for key, value in after.items()}
    if isinstance(after, list):
        return [a - b for a, b in zip(after, (before or []) + [0] * len(after), strict=False)]
    return after - (before or 0) if isinstance(after, (int, float)) else after


@dataclass(frozen=True)
class Run:
    """The traffic of one server, and its counters before and after."""

    tree: tuple[int, int, int]
    asked: list[Asked]
    counted: dict[str, Any]
    exported: dict[tuple[str, ...], float]
    raised: dict[str, Any]
    log: str


@pytest.fixture(scope="module", params=core([CHAIN, TREE], [TREE]), ids=["chain", "tree"])
def run(request: pytest.FixtureRequest, start: Any, tiny: Models) -> Iterator[Run]:
    tree = request.param
    with start(f"acceptance-{tree[1]}", *speculate("EAGLE31", tiny.eagle31, *tree), "--enable-metrics") as server:
        before, earlier = record(server), prometheus(server)
        asked = traffic(server, COUNT)
        after, later = record(server), prometheus(server)
        exported = {key: value - earlier.get(key, 0) for key, value in later.items()}
        yield Run(tree, asked, difference(after, before), exported, after["alarm"], server.log_path.read_text())


def agree(counted: dict[str, Any], expected: Recount) -> None:
    found = Recount(
        counted["rounds"],
        counted["used_tokens"],
        counted["offered_tokens"],
        counted["committed_tokens"],
        {accepted: count for accepted, count in enumerate(counted["used_histogram"]) if count},
    )
    assert found == expected


def test_the_traffic_has_every_kind(run: Run) -> None:
    reasons = [one.reason for one in run.asked]
    assert reasons.count("abort") >= COUNT // 20 and reasons.count("stop") >= COUNT // 20
    assert any(one.reason == "abort" and one.meta.get("spec_verify_ct") for one in run.asked)
    assert sum("spec_verify_ct" not in one.meta for one in run.asked) >= 1  # one token: no round
    assert any(one.meta.get("cached_tokens", 0) >= 300 for one in run.asked)
    assert len(run.asked) > COUNT and sum(len(one.answer["output_ids"]) for one in run.asked) > 20 * COUNT


def test_the_recount_is_equal(run: Run) -> None:
    expected = recount(run.asked)
    assert expected.rounds > 5 * COUNT and max(expected.histogram) == run.tree[0]
    agree(run.counted["total"], expected)


def test_the_recount_is_equal_by_context(run: Run) -> None:
    counted = {name: part for name, part in run.counted["by_context"].items() if part["rounds"]}
    assert set(counted) == {"0-511", "512-1023", "1024-2047"}
    for name, part in counted.items():
        agree(part, recount(one for one in run.asked if one.bucket == name))


def test_the_recount_is_equal_by_template(run: Run) -> None:
    for name, start in STARTS.items():
        part = run.counted["by_template"][digest(pattern([*start, 9], SPECIAL))]
        assert part["pattern"] == " ".join([*map(str, start), "..."][: 2 if name == "double" else 3])
        agree(part, recount(one for one in run.asked if one.start == name))


def test_what_was_verified_is_what_was_used_and_what_was_cut_off(run: Run) -> None:
    total, ends = run.counted["total"], sum("spec_verify_ct" in one.meta for one in run.asked)
    steps, _, nodes = run.tree
    assert total["drafts"] == total["rounds"]
    assert total["draft_tokens"] == steps * total["rounds"] == sum(total["proposed_by_depth"])
    assert total["tree_nodes"] == (nodes - 1) * total["rounds"]
    assert total["proposed_by_depth"] == [total["rounds"]] * steps
    used = [sum(total["used_histogram"][depth:]) for depth in range(1, steps + 1)]
    cut = [verified - kept for verified, kept in zip(total["accepted_by_depth"], used, strict=True)]
    assert sum(cut) > 0 and all(0 <= lost <= ends for lost in cut)
    assert total["accepted_tokens"] == total["used_tokens"] + sum(cut)


def test_finished_requests_are_counted_by_their_accept_length(run: Run) -> None:
    rounds = [one for one in run.asked if "spec_verify_ct" in one.meta]
    ended = [one for one in rounds if one.reason != "abort"]
    counted = run.counted["requests"]
    assert (counted["finished"], counted["aborted"]) == (len(ended), len(rounds) - len(ended))
    lengths = [1 + one.meta["spec_num_correct_drafts"] / one.meta["spec_verify_ct"] for one in ended]
    assert counted["accept_length"]["sum"] == pytest.approx(sum(lengths))
    assert sum(counted["accept_length"]["counts"]) == len(lengths)
    assert counted["accept_length"]["counts"][0] == sum(length <= 1 for length in lengths)
    assert run.exported[("request_accept_length_bucket", 'le="2.0"')] == sum(length <= 2 for length in lengths)
    assert run.exported[("request_accept_length_sum",)] == pytest.approx(sum(lengths))
    assert run.exported[("requests_total", 'outcome="finished"')] == len(ended)


def test_prometheus_has_the_same_counts(run: Run) -> None:
    total = run.counted["total"]
    names = {"num_rounds": "rounds", "num_drafts": "drafts", "num_tree_nodes": "tree_nodes"}
    names |= {f"num_{name}": name for name in ("draft_tokens", "accepted_tokens", "committed_tokens")}
    names |= {f"num_{name}": name for name in ("offered_tokens", "used_tokens")}
    assert {name: run.exported[(f"{name}_total",)] for name in names} == {
        name: total[key] for name, key in names.items()
    }
    for position, (proposed, accepted) in enumerate(
        zip(total["proposed_by_depth"], total["accepted_by_depth"], strict=True)
    ):
        assert run.exported[("num_draft_tokens_per_pos_total", f'position="{position}"')] == proposed
        assert run.exported[("num_accepted_tokens_per_pos_total", f'position="{position}"')] == accepted
    for group in ("context", "template"):
        for name, part in run.counted[f"by_{group}"].items():
            assert run.exported[(f"num_drafts_by_{group}_total", f'{group}="{name}"')] == part["drafts"]
            first = (f"num_accepted_tokens_per_pos_by_{group}_total", *sorted((f'{group}="{name}"', 'position="0"')))
            assert run.exported[first] == part["accepted_by_depth"][0]


def test_a_healthy_server_raises_nothing(run: Run) -> None:
    assert run.raised["cause"] is None and run.raised["times"] == 0
    assert "acceptance has collapsed" not in run.log
    assert {value for key, value in run.exported.items() if key[0] == "acceptance_alarm"} == {0.0}


def dead_head(folder: Path, source: Path) -> Path:
    """A head whose output rows belong to other tokens: as a head of another target, it is never right."""
    tensors = load_file(source / "model.safetensors")
    tensors["lm_head.weight"] = torch.roll(tensors["lm_head.weight"], 7, 0)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text((source / "config.json").read_text())
    return folder


@pytest.mark.full
def test_a_dead_head_is_told_once(start: Any, tiny: Models, tmp_path: Path) -> None:
    head = dead_head(tmp_path / "dead", tiny.eagle31)
    with start("acceptance-dead", *speculate("EAGLE31", head, *CHAIN), "--enable-metrics") as server:
        for batch in range(3):
            generate(server, [prompt(10 + batch, 10 * batch + i) for i in range(12)], 40)
        alarm = record(server)["alarm"]
        gauges = {key[1]: value for key, value in prometheus(server).items() if key[0] == "acceptance_alarm"}
        log = server.log_path.read_text()
    assert alarm["cause"] == "dead" and alarm["times"] == 1 and alarm["value"] < 0.1
    assert gauges == {
        f'cause="{cause}"': float(cause == "dead") for cause in ("dead", "template", "context", "fall", "feedback")
    }
    assert log.count("acceptance has collapsed") == 1 and "sglang_eagle31 audit" in log


@pytest.mark.skipif("ACCEPTANCE_DP" not in os.environ, reason="a minute: ACCEPTANCE_DP=1 starts a data-parallel server")
def test_data_parallel_schedulers_add_up(start: Any, tiny: Models) -> None:
    flags = [*speculate("EAGLE31", tiny.eagle31, *CHAIN), "--enable-metrics", "--dp-size", "2"]
    cores = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}  # SGLang wants those of each rank
    with start("acceptance-dp", *flags, **cores) as server:
        before, earlier = record(server), prometheus(server)
        asked = traffic(server, 30, seed=1)
        info = requests.get(f"{server.url}/server_info", timeout=60).json()
        after, later = record(server), prometheus(server)
    parts = [state["eagle31"]["acceptance"]["total"]["rounds"] for state in info["internal_states"]]
    assert len(parts) == 2 and all(parts), json.dumps(parts)
    agree(difference(after, before)["total"], recount(asked))
    assert later[("num_rounds_total",)] - earlier[("num_rounds_total",)] == recount(asked).rounds
