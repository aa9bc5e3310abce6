"""The guard in a live server: what it runs is counted, pinned and capped as asked, and never changes an answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests
from conftest import ANSWER, Models, Plain, ask_everything, generate, prompt, speculate
from selection import core

from sglang_eagle31.tools.shared.acceptance_of_server import collect
from sglang_eagle31.tools.shared.server_process import Server

CHAIN, TREE = (5, 1, 6), (4, 3, 8)


def guard(server: Server) -> dict[str, Any]:
    """Its record."""
    state = requests.get(f"{server.url}/server_info", timeout=60).json()["internal_states"][0]
    record: dict[str, Any] = state["eagle31"]["guard"]
    return record


def acceptance(server: Server) -> dict[str, int]:
    """Its counters of requests' rounds."""
    found = collect(requests.get(f"{server.url}/server_info", timeout=60).json())
    assert found is not None
    return {name: found["total"][name] for name in ("rounds", "drafts", "used_tokens")}


def rounds(server: Server, prompts: list[list[int]], tokens: int, *params: dict[str, Any]) -> list[dict[str, Any]]:
    """One batch of answers; ``params`` are the ``custom_params`` of each."""
    sampling = [
        {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, "custom_params": one or None} for one in params
    ]
    body = {"input_ids": prompts, "sampling_params": sampling}
    response = requests.post(f"{server.url}/generate", json=body, timeout=ANSWER)
    response.raise_for_status()
    answers: list[dict[str, Any]] = response.json()
    return answers


@pytest.fixture(scope="module", params=core([CHAIN, TREE], [TREE]), ids=["chain", "tree"])
def served(start: Any, tiny: Models, request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with the guard on."""
    with start("guard", *speculate("EAGLE31", tiny.eagle31, *request.param), "--eagle31-guard", "on") as server:
        yield server


def test_the_draft_reads_what_it_missed(served: Server) -> None:
    """The first rounds of a new batch size are timed: three plain ones, then chains of one step.

    The first drafted round must accept what it accepts in a request that was prefilled up to there. This test comes
    first, while no batch of twelve has been run.
    """
    texts = [prompt(12, 300 + i) for i in range(12)]
    before = guard(served)["rounds"]["plain"]
    answers = rounds(served, texts, 6, *[{}] * 12)
    assert guard(served)["rounds"]["plain"] == before + 3
    # Six tokens: one of the prefill, three plain ones, and two of a drafted round whose draft was right.
    right = [answer["meta_info"]["spec_verify_ct"] == 4 for answer in answers]
    alone = [
        rounds(served, [text + answer["output_ids"][:3]], 3, {"eagle31_shape": "1,1,2"})[0]["meta_info"]
        for text, answer in zip(texts, answers, strict=True)
    ]
    assert right == [one["spec_verify_ct"] == 1 for one in alone]
    assert sum(right) >= 4


def test_answers_stay_those_without_speculation(served: Server, plain: Plain) -> None:
    """Whatever it ran: shapes came and went, and requests joined while others were without a draft."""
    before, asked = acceptance(served), [ask_everything(served) for _ in range(2)]
    assert [answers.ids for answers in asked] == [plain.answers.ids] * 2
    counted = {name: count - before[name] for name, count in acceptance(served).items()}
    meta = [one for answers in asked for one in answers.meta]
    assert counted["rounds"] == sum(one["spec_verify_ct"] for one in meta)
    assert counted["used_tokens"] == sum(one["spec_num_correct_drafts"] for one in meta)
    assert counted["drafts"] < counted["rounds"]  # rounds without a draft count, and not as drafts
    record = guard(served)
    assert record["mode"] == "on" and record["any"] is True
    assert record["rounds"]["plain"] > 0 and record["rounds"]["drafted"] > 0
    assert record["fallback_ratio"] == record["rounds"]["plain"] / sum(record["rounds"].values())
    assert len(record["seconds"]) >= 3  # it timed other shapes than the configured one


def test_a_pinned_shape_runs(served: Server) -> None:
    configured = guard(served)["configured"]
    expected = generate(served, [prompt(30, 5)], 40)[0]["output_ids"]
    for pin in ("0", "1,1,2", "3,1,4", configured):
        answer = rounds(served, [prompt(30, 5)], 40, {"eagle31_shape": pin})[0]
        assert answer["output_ids"] == expected
        histogram = answer["meta_info"]["spec_correct_drafts_histogram"]
        assert len(histogram) - 1 <= int(pin.split(",")[0])
        if pin == "0":
            assert answer["meta_info"]["spec_verify_ct"] == 39  # the prefill gives the first token
        else:
            assert sum(histogram[1:]) > 0


def test_a_cap_holds_for_its_request_alone(served: Server) -> None:
    """Beside each other in one batch, all pinned to the widest shape by their number of steps."""
    caps = [{"speculative_num_steps": 0}, {"speculative_num_steps": 1}, {"speculative_num_steps": 2}, {}]
    pinned = [{**cap, "eagle31_shape": guard(served)["configured"]} for cap in caps]
    answers = rounds(served, [prompt(30, 5)] * 4, 60, *pinned)
    assert len({tuple(answer["output_ids"]) for answer in answers}) == 1
    deepest = [len(answer["meta_info"]["spec_correct_drafts_histogram"]) - 1 for answer in answers]
    assert deepest[:3] == [0, 1, 2] and deepest[3] > 2
    counts = [answer["meta_info"]["spec_verify_ct"] for answer in answers]
    assert counts[0] == 59 and counts == sorted(counts, reverse=True)


def test_observing_changes_nothing(start: Any, tiny: Models) -> None:
    with start("observe", *speculate("EAGLE31", tiny.eagle31, *CHAIN), "--eagle31-guard", "observe") as server:
        meta = generate(server, [prompt(30, 5)], 60)[0]["meta_info"]
        record = guard(server)
    assert record["mode"] == "observe" and record["rounds"]["plain"] == record["changes"] == 0
    assert record["rounds"]["drafted"] > 0 and set(record["seconds"]) == {"5,1,6"}
    assert meta["spec_verify_ct"] < 59


def test_off_still_heeds_what_requests_ask(start: Any, tiny: Models) -> None:
    with start("off", *speculate("EAGLE31", tiny.eagle31, *CHAIN), "--eagle31-guard", "off") as server:
        text = prompt(30, 5)
        free, out = rounds(server, [text] * 2, 60, {}, {"speculative_num_steps": 0})
        alone = rounds(server, [text], 60, {"speculative_num_steps": 0})[0]
        wrong = {"max_new_tokens": 5, "custom_params": {"speculative_num_steps": "two"}}
        refused = requests.post(
            f"{server.url}/generate", json={"input_ids": text, "sampling_params": wrong}, timeout=60
        )
        record = guard(server)
    assert free["output_ids"] == out["output_ids"] == alone["output_ids"]
    assert out["meta_info"]["spec_verify_ct"] == alone["meta_info"]["spec_verify_ct"] == 59
    assert out["meta_info"]["spec_num_proposed_drafts"] == 0 < free["meta_info"]["spec_num_proposed_drafts"]
    assert free["meta_info"]["spec_verify_ct"] < 59
    assert record["mode"] == "off" and record["seconds"] == {} and record["rounds"]["plain"] >= 58
    assert refused.status_code == 400 and "speculative_num_steps='two'" in refused.text
