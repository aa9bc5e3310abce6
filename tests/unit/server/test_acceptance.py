"""Counting rounds: by depth, context and template; adaptive depth, trees, ends in mid-path, aborts; Prometheus."""

from __future__ import annotations

import json
import random
import re
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY

from sglang_eagle31.server.metrics.counters import CONTEXTS, Counters, Requests, context_of
from sglang_eagle31.server.metrics.export import Exporter
from sglang_eagle31.server.metrics.fingerprint import LIMIT, OTHER, TEXT, Templates, digest, pattern
from sglang_eagle31.server.metrics.live import TALLY, Watch, special_tokens
from sglang_eagle31.server.metrics.meter import Meter, Row
from sglang_eagle31.server.metrics.names import METRICS, PREFIX
from sglang_eagle31.tools.shared.acceptance_of_server import collect

ROOT = Path(__file__).parents[3]
BOS, HEAD, TAIL, END = 1, 10, 11, 12
SPECIAL = {BOS, HEAD, TAIL, END}
SERIES = {name for metric in METRICS for name in metric.series()}


def test_totals_by_depth() -> None:
    counters = Counters(LIMIT, 3)
    counters.add([0, 0, 5], [(3, 3, 3, 4), (0, 0, 3, 1), (2, 1, 1, 1)], 3, 6)
    counters.add([5], [(0, 0, 0, 1)], 0, 0)  # no draft
    counters.add([5], [(1, 1, 1, 2)], 1, 1)  # one step
    total = counters.total()
    assert (total.rounds, total.drafts) == (5, 4)
    assert total.proposed == [4, 3, 3] and total.accepted == [3, 2, 1]
    assert (total.offered, total.nodes, total.committed) == (8, 19, 9)
    assert total.to_json()["used_histogram"] == [2, 2, 0, 1]
    assert total.to_json()["accept_length"] == pytest.approx(1 + 6 / 4)


def test_a_draft_deeper_than_configured_is_counted() -> None:
    counters = Counters(LIMIT, 2)
    counters.add([0], [(2, 2, 2, 3)], 2, 2)
    counters.add([3], [(5, 5, 6, 6)], 6, 6)
    total = counters.total()
    assert total.proposed == [2, 2, 1, 1, 1, 1] and total.accepted == [2, 2, 1, 1, 1, 0]
    assert counters.total(template=0).proposed == [1, 1, 0, 0, 0, 0]


def test_counters_equal_a_recount_of_random_rounds() -> None:
    chance, counters = random.Random(0), Counters(LIMIT, 5)
    rounds = []
    for _ in range(400):
        steps = chance.randint(0, 5)
        batch = [(chance.randrange(len(CONTEXTS)), chance.randrange(LIMIT), chance.randint(0, steps)) for _ in range(8)]
        counters.add([c * LIMIT + t for c, t, _ in batch], [(a, a, steps, a + 1) for *_, a in batch], steps, 2 * steps)
        rounds += [(*one, steps) for one in batch]
    for context in range(len(CONTEXTS)):
        mine = [one for one in rounds if one[0] == context]
        total = counters.total(context=context)
        assert total.rounds == len(mine) and total.committed == sum(one[2] + 1 for one in mine)
        assert total.proposed == [sum(one[3] >= depth for one in mine) for depth in range(1, 6)]
    for template in range(LIMIT):
        mine = [one for one in rounds if one[1] == template]
        assert counters.total(template=template).accepted == [sum(o[2] >= depth for o in mine) for depth in range(1, 6)]


@pytest.mark.parametrize(("tokens", "name"), [(0, "0-511"), (511, "0-511"), (512, "512-1023"), (10**7, "131072-")])
def test_context_buckets(tokens: int, name: str) -> None:
    assert CONTEXTS[context_of(tokens)] == name


def test_requests_by_accept_length() -> None:
    requests = Requests()
    for rounds, used in ((4, 0), (4, 1), (4, 2), (2, 40)):
        requests.add(rounds, used, aborted=False)
    requests.add(9, 9, aborted=True)
    assert (requests.finished, requests.aborted) == (4, 1)
    assert requests.lengths[:3] == [1, 1, 1] and requests.lengths[-1] == 1
    assert requests.total == pytest.approx(1 + 1.25 + 1.5 + 21)


def test_the_pattern_is_the_template_s() -> None:
    one = [BOS, HEAD, 50, TAIL, 60, 61, END, HEAD, 51, TAIL]
    assert pattern(one, SPECIAL) == (BOS, HEAD, TEXT, TAIL, TEXT, END, HEAD)
    more = [*one, 70, END, HEAD, 52, TAIL, 71, 72, END]
    assert pattern(array("q", more), SPECIAL) == pattern(one, SPECIAL)  # any number of turns
    different = {
        "raw text": [50, 51],
        "no BOS": one[1:],
        "two BOS": [BOS, *one],
        "BOS and text": [BOS, 50],
        "nothing": [],
        "only special": [BOS, HEAD],
        "no text between": [BOS, HEAD, TAIL, 60, END, HEAD],
    }
    patterns = {name: pattern(ids, SPECIAL) for name, ids in different.items()}
    assert len({*patterns.values(), pattern(one, SPECIAL)}) == len(different) + 1
    assert patterns["two BOS"] == (BOS, BOS) and patterns["raw text"] == (TEXT,)
    assert len({digest(found) for found in patterns.values()}) == len(different)
    assert digest((BOS, TEXT)) == digest((BOS, TEXT)) and re.fullmatch("[0-9a-f]{8}", digest(()))


def test_templates_are_few() -> None:
    templates = Templates(range(1, 200), lambda token: f"<{token}>")
    indices = [templates.index([token, 500]) for token in range(1, 60)]
    assert indices[: LIMIT - 1] == list(range(1, LIMIT)) and set(indices[LIMIT - 1 :]) == {OTHER}
    assert templates.index([3, 600, 601]) == indices[2]
    assert templates.describe(2) == "<2> ..." and len(templates.digests) == LIMIT


def test_special_tokens_without_and_with_a_tokenizer() -> None:
    config = SimpleNamespace(hf_config=SimpleNamespace(bos_token_id=1, eos_token_id=[2, 7]))
    assert special_tokens(None, config)[0] == {1, 2, 7}
    tokenizer = SimpleNamespace(
        all_special_ids=[1, 2],
        added_tokens_decoder={
            2: SimpleNamespace(special=True),
            3: SimpleNamespace(special=True),
            4: SimpleNamespace(special=False),
        },
        convert_ids_to_tokens=lambda token: f"<{token}>",
    )
    ids, name = special_tokens(tokenizer, config)
    assert ids == {1, 2, 3} and name(3) == "<3>"


class Req:
    """As much of SGLang's request as is read."""

    def __init__(self, prompt: list[int], answer: int = 1) -> None:
        self.origin_input_ids, self.output_ids = array("q", prompt), array("q", [9] * answer)
        self.finished_len: int | None = None
        self.finished_reason: Any = None
        self.is_retracted, self.tokenizer = False, None
        self.sampling_params = SimpleNamespace(custom_params=None)

    def finished(self) -> bool:
        return self.finished_reason is not None


def scheduler_round(watch: Watch, reqs: list[Req], accepted: list[int], steps: int, nodes: int, **ends: Any) -> None:
    """One round as SGLang processes it; ``ends`` maps ``r0``, ``r1`` ... to (type, finished_len)."""
    result = SimpleNamespace(
        num_correct_drafts_per_req_cpu=None,
        speculative_num_draft_tokens=nodes + 1,
        accept_index=SimpleNamespace(shape=(len(reqs), steps + 1)),
    )

    def process(processor: Any, batch: Any, result: Any) -> str:
        result.num_correct_drafts_per_req_cpu = accepted
        for index, (req, count) in enumerate(zip(batch.reqs, accepted, strict=True)):
            if req.finished() or req.is_retracted:
                continue
            req.output_ids.extend([9] * (count + 1))
            if f"r{index}" in ends:
                kind, req.finished_len = ends[f"r{index}"]
                req.finished_reason = SimpleNamespace(to_json=lambda kind=kind: {"type": kind})
        return "answer"

    processor = SimpleNamespace(
        model_config=SimpleNamespace(hf_config=SimpleNamespace(bos_token_id=1, eos_token_id=2)),
        metrics_collector=SimpleNamespace(labels={"model_name": "tiny", "dp_rank": 0}),
    )
    assert watch.around(process, processor, SimpleNamespace(reqs=reqs), result) == "answer"


def test_rounds_of_a_scheduler() -> None:
    watch = Watch(4, metrics=False)
    assert watch.to_json() == {}
    one, two, gone = Req([BOS, 50, 51]), Req([50] * 600), Req([50])
    gone.is_retracted = True
    scheduler_round(watch, [one, two, gone], [4, 0, 2], 4, 7)
    scheduler_round(watch, [one, two], [3, 1], 4, 7, r0=("stop", 1 + 5 + 2))  # two of four tokens before the stop
    scheduler_round(watch, [one, two], [2, 0], 0, 0)  # the round that overlaps with the end does not count
    scheduler_round(watch, [two], [2], 2, 2, r0=("abort", None))
    record = watch.to_json()
    total = record["total"]
    assert (total["rounds"], total["drafts"]) == (6, 5)
    assert total["proposed_by_depth"] == [5, 5, 4, 4] and total["accepted_by_depth"] == [4, 3, 2, 1]
    assert total["used_histogram"] == [2, 1, 2, 0, 1] and total["used_tokens"] == 9
    assert total["offered_tokens"] == 4 + 4 + 2 + 4 + 0 + 2
    assert total["committed_tokens"] == (5 + 2) + (1 + 2 + 1 + 3)
    assert total["tree_nodes"] == 4 * 7 + 2
    assert record["by_context"]["512-1023"]["rounds"] == 4 and record["by_context"]["0-511"]["rounds"] == 2
    assert record["by_template"][digest((BOS, TEXT))]["pattern"] == "1 ..."
    assert (record["requests"]["finished"], record["requests"]["aborted"]) == (1, 1)
    assert record["requests"]["accept_length"]["sum"] == 1 + (4 + 2) / 2
    json.dumps(record)


def test_a_context_grows_through_the_buckets() -> None:
    watch, req = Watch(3, metrics=False), Req([50] * 500)
    for _ in range(20):
        scheduler_round(watch, [req], [3], 3, 3)
    by_context = watch.to_json()["by_context"]
    assert by_context["0-511"]["rounds"] == 3 and by_context["512-1023"]["rounds"] == 17  # 501, 505, 509, 513 ...


def test_schedulers_add_up() -> None:
    records = []
    for rounds in (2, 3):
        watch, req = Watch(rounds, metrics=False), Req([BOS, 50])
        for _ in range(rounds):
            scheduler_round(watch, [req], [rounds], rounds, rounds)
        records.append(watch.to_json())
    info = {"internal_states": [{"eagle31": {"acceptance": one}} for one in records] + [{}]}
    merged = collect(info)
    assert merged is not None and collect({"internal_states": [{"eagle31": {"acceptance": {}}}]}) is None
    assert merged["total"]["accepted_by_depth"] == [5, 5, 3] and merged["total"]["rounds"] == 5
    assert merged["total"]["accept_length"] == pytest.approx(1 + 13 / 5)
    assert merged["alarm"] == {"cause": None, "times": 0, "schedulers": 0}
    assert merged["by_template"][digest((BOS, TEXT))]["pattern"] == "1 ..."
    assert merged["requests"]["accept_length"]["upper_edges"][0] == 1.0


@pytest.fixture(scope="module")
def exporter() -> Exporter:
    """One for the module: Prometheus registers a name once a process."""
    return Exporter({"model_name": "tiny", "dp_rank": 0})


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(PREFIX + name, {"model_name": "tiny", "dp_rank": "0", **labels})


def test_prometheus_follows_and_never_falls(exporter: Exporter) -> None:
    now = [0.0]
    meter = Meter(Templates(SPECIAL), 3, clock=lambda: now[0])
    meter.exporter = exporter
    tally = meter.begin([BOS, 50])
    meter.round([Row(tally, 2, 3, 3, 3, 4)], 3, 3)
    assert value("num_drafts_total") is None  # a second has not passed
    now[0] = 1.5
    meter.round([Row(tally, 6, 1, 1, 3, 2)], 3, 3)
    assert value("num_drafts_total") == 2 and value("num_committed_tokens_total") == 6
    meter.round([Row(tally, 8, 1, 0, 0, -3, ended=False)], 3, 3)  # a stop string takes back tokens
    assert value("num_committed_tokens_total") == 6 and meter.to_json()["total"]["committed_tokens"] == 3
    other = meter.begin([50])
    meter.round([Row(other, 1, 3, 3, 3, 4, ended=False)], 3, 3)
    assert value("num_committed_tokens_total") == 7
    assert value("num_accepted_tokens_per_pos_total", position="0") == 4
    assert value("num_accepted_tokens_per_pos_by_context_total", position="2", context="0-511") == 2
    assert value("num_drafts_by_template_total", template=digest((TEXT,))) == 1
    assert value("request_accept_length_count") == 2
    assert value("request_accept_length_sum") == pytest.approx(1 + 4 / 3 + 4)
    assert value("requests_total", outcome="finished") == 2
    assert value("acceptance_alarm", cause="dead") == 0


def test_the_dashboard_asks_only_for_what_is_exported() -> None:
    dashboard = json.loads((ROOT / "launch" / "grafana.json").read_text())
    panels = dashboard["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    queries += [entry["query"]["query"] for entry in dashboard["templating"]["list"] if entry["type"] == "query"]
    asked = {name for query in queries for name in re.findall(r"sglang:\w+", query)}
    assert asked and asked <= SERIES, sorted(asked - SERIES)
    assert {panel["title"] for panel in panels} >= {
        "Acceptance by position",
        "Accept length",
        "Alarm",
        "Accept length by context",
        "Accept length by template",
    }
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [tuple(panel["gridPos"][key] for key in "xyhw") for panel in panels]
    assert all(x + w <= 24 and h > 0 for x, _, h, w in places) and len(set(places)) == len(places)
    wanted = {"context", "template", "position", "cause", "outcome", "le", "model_name", "instance"}
    for query in queries:
        assert {label for group in re.findall(r"by \(([\w, ]+)\)", query) for label in group.split(", ")} <= wanted


def test_the_page_names_every_metric() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    named = set(re.findall(r"`(?:sglang:eagle31_spec_decode_)?(\w+)`", page))
    assert {metric.name for metric in METRICS if "_by_" not in metric.name} <= named
    assert all(f"_by_{group}" in page for group in ("context", "template"))


def test_a_tally_stays_with_its_request() -> None:
    watch, req = Watch(2, metrics=False), Req([BOS, 50])
    scheduler_round(watch, [req], [1], 2, 2)
    kept = getattr(req, TALLY)
    req.is_retracted = True
    scheduler_round(watch, [req], [1], 2, 2)
    req.is_retracted = False
    scheduler_round(watch, [req], [0], 2, 2)
    assert getattr(req, TALLY) is kept and (kept.rounds, kept.used) == (2, 1)
