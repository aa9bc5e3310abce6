"""The checks of the load tests see a doctored answer, a doctored refusal and a doctored counter."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from load import check, traffic
from load.bad import BAD, DEADLY
from load.client import Answer, said_of
from load.traffic import Fate, Request

ASKED = Request(0, "ids", "/generate", b"{}")


def native(ids: list[int], text: str, reason: Any = None, logprob: float = -1.5) -> dict[str, Any]:
    counts = {"prompt_tokens": 3, "completion_tokens": len(ids), "output_token_logprobs": [[logprob, ids[0], None]]}
    return {"text": text, "output_ids": ids, "meta_info": {"finish_reason": reason, **counts}}


WHOLE = Answer("finished", 200, [native([5, 6, 7, 8], "abcd", {"type": "stop", "matched": "d"})])


def test_the_same_answer_is_not_a_difference() -> None:
    near = Answer("finished", 200, [native([5, 6, 7, 8], "abcd", {"type": "stop", "matched": "d"}, -1.50001)])
    assert check.difference(ASKED, near, WHOLE) is None
    assert check.differences([ASKED], [near], [WHOLE]) == []


@pytest.mark.parametrize(
    "change",
    [
        {"output_ids": [5, 6, 7, 9]},
        {"text": "abcD"},
        {"finish_reason": {"type": "stop", "matched": "c"}},
        {"finish_reason": {"type": "length"}},
        {"completion_tokens": 5},
        {"output_token_logprobs": [[-1.51, 5, None]]},
        {"output_token_logprobs": [[-1.5, 6, None]]},
        {"output_token_logprobs": []},
    ],
)
def test_a_doctored_answer_is_a_difference(change: dict[str, Any]) -> None:
    answer = copy.deepcopy(WHOLE)
    (part,) = answer.bodies
    for key, value in change.items():
        (part if key in part else part["meta_info"])[key] = value
    (found,) = check.differences([ASKED], [answer], [WHOLE])
    assert found.startswith("request 0, ids, finish: choice 0")


def test_choices_and_events_are_told_apart() -> None:
    two = Answer("finished", 200, [[native([5], "a", "stop"), native([6], "b", "stop")]])
    swapped = Answer("finished", 200, [two.bodies[0][::-1]])
    assert check.difference(ASKED, two, two) is None
    assert check.difference(ASKED, swapped, two) is not None
    assert check.difference(ASKED, WHOLE, two) == "1 choices, not 2"
    assert check.difference(ASKED, Answer("finished", 200, []), Answer("finished", 200, [])) is not None
    events = [{"choices": [{"index": 0, "delta": {"content": part}, "finish_reason": None}]} for part in "abcd"]
    assert [said.text for said in said_of(Answer("finished", 200, events))] == ["abcd"]


def test_what_was_broken_off_is_the_beginning() -> None:
    cut = replace(ASKED, fate=Fate.DISCONNECT)
    assert check.difference(cut, Answer("cut", 200, [native([5, 6], "ab\ufffd")]), WHOLE) is None
    assert check.difference(cut, Answer("cut", None), WHOLE) is None
    at_the_end = Answer("aborted", 200, [native([5, 6, 7, 8], "abcde", {"type": "abort"})])
    assert check.difference(cut, at_the_end, WHOLE) is None
    for part in (
        native([5, 7], "ab"),
        native([5, 6], "aX"),
        native([5, 6, 7, 8], "abcX"),
        native([5, 6, 7, 8, 9], "abcd"),
    ):
        assert check.difference(cut, Answer("aborted", 200, [part]), WHOLE) is not None


def test_refusals_are_the_same() -> None:
    refused = Answer("refused", 400)
    assert check.difference(ASKED, refused, Answer("refused", 400)) is None
    for answer in (Answer("refused", 500), WHOLE, Answer("lost", None, why="gone")):
        assert check.difference(ASKED, answer, refused) is not None
    assert check.difference(ASKED, refused, WHOLE) is not None


def memory(slots: int = 0, requests: int = 0, mib: float = 100.0) -> check.Memory:
    return check.Memory(slots, requests, {"scheduler": mib, "server": 80.0})


def test_a_doctored_counter_is_a_leak() -> None:
    start = memory(mib=60.0)
    assert check.leaks([start, memory(), memory(mib=103.0), memory(mib=101.0)]) == []
    assert check.leaks([start, memory(), memory(slots=1)]) == ["round 1: 1 slots held, 0 before"]
    assert check.leaks([start, memory(slots=2), memory()]) == ["round 0: 2 slots held, 0 before"]
    assert check.leaks([start, memory(requests=1), memory()]) == ["round 0: 1 requests left"]
    (grown,) = check.leaks([start, memory(), memory(), memory(mib=100.0 + check.GROWTH + 1)])
    assert grown.startswith("scheduler: 49 MiB more after 3 rounds")


def test_traffic_is_seeded_and_has_every_kind() -> None:
    load = traffic.traffic(500, 3)
    assert load == traffic.traffic(500, 3) and load != traffic.traffic(500, 4)
    kinds = {request.kind for request in load}
    assert kinds == {*traffic.GENERATE, "completion", "chat", *(f"bad {name}" for name in BAD)}
    assert {request.fate for request in load} == set(Fate)
    assert len({request.rid for request in load if request.rid}) == len([r for r in load if r.rid])
    assert len(check.busy(load, 16)) == 16
    for request in load:
        if not request.kind.startswith("bad"):
            assert json.loads(request.body)["rid"] == request.rid
    assert not set(DEADLY) & {name.split(": ")[1] for name in BAD}
    without = traffic.traffic(500, 3, without=("chat", "regex"))
    assert "chat" not in {request.kind for request in without if request.fate is Fate.FINISH}
