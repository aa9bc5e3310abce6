"""Medians, ratios within a round, acceptance from counters, and the concurrency at which speculation breaks even."""

from __future__ import annotations

import math

import pytest
from bench_fakes import raw

from sglang_eagle31.tools.bench import summary
from sglang_eagle31.tools.shared import counters
from sglang_eagle31.tools.shared.counters import Counts


def test_a_ratio_is_taken_within_each_round():
    base = [raw(1, 10), raw(2, 100), raw(3, 20)]
    ours = [raw(3, 30), raw(1, 20), raw(2, 110)]
    assert summary.ratio(ours, base, "output_tok_s") == pytest.approx(1.5)  # of 2.0, 1.1 and 1.5; not 30 / 20


def test_a_round_that_one_of_the_two_lacks_does_not_count():
    assert summary.ratio([raw(1, 20), raw(2, 90)], [raw(1, 10)], "output_tok_s") == 2
    assert summary.ratio([raw(2, 90)], [raw(1, 10)], "output_tok_s") is None


def test_an_entry_has_medians_and_acceptance_over_all_rounds():
    rounds = {
        ("none", "chat", 4): [raw(1, 10), raw(2, 10)],
        ("guard", "chat", 4): [
            raw(1, 20, drafts=10, accepted_by_depth=[8, 2], plain_rounds=5, drafted_rounds=5),
            raw(2, 40, drafts=30, accepted_by_depth=[12, 8, 2], plain_rounds=0, drafted_rounds=10),
        ],
    }
    plain, guard = summary.sweep(rounds, "none", {})
    assert (plain["ratio"], plain["accept_length"], plain["accept_by_depth"]) == (1, None, [])
    assert plain["fallback_ratio"] is None
    assert (guard["output_tok_s"], guard["ratio"], guard["user_ratio"]) == (30, 3, 3)
    assert guard["accept_length"] == pytest.approx(1 + 32 / 40)
    assert guard["accept_by_depth"] == pytest.approx([0.5, 0.25, 0.05])
    assert guard["fallback_ratio"] == 0.25 and len(guard["rounds"]) == 2


def test_an_arm_without_counters_has_the_acceptance_of_its_answers():
    asked = {"chat": {"eagle3": {"accept_length": 2.5, "accept_by_depth": [0.9, 0.6]}}}
    rounds = {("eagle3", "chat", 1): [raw(1, 10)], ("eagle3", "code", 1): [raw(1, 10)]}
    chat, code = summary.sweep(rounds, "none", asked)
    assert (chat["accept_length"], chat["accept_by_depth"]) == (2.5, [0.9, 0.6])
    assert (code["accept_length"], code["accept_by_depth"]) == (None, [])


@pytest.mark.parametrize(
    ("points", "concurrency", "beyond"),
    [
        ([(1, 1.5), (4, 1.2), (16, 1.0)], 16, True),
        ([(1, 0.9), (4, 1.2)], None, False),
        ([(16, 0.5), (1, 1.5), (4, 1.5)], 8, False),  # half of the way from 4 to 16, in logarithms
        ([(1, 1.2), (4, 1.0), (16, 0.5)], 4, False),
        ([(1, 1.2), (4, 0.8), (16, 1.4)], 2, False),  # up to which it is at least 1: a later gain does not count
        ([(8, 1.1)], 8, True),
    ],
)
def test_break_even(points, concurrency, beyond):
    found = summary.crossing(points)
    assert found["beyond"] is beyond
    assert found["concurrency"] == (None if concurrency is None else pytest.approx(concurrency))


def test_break_even_is_by_prompts_and_arm_and_not_of_the_baseline_or_of_recorded_times():
    def entry(arm, prompts, concurrency, ratio):
        return {"arm": arm, "prompts": prompts, "concurrency": concurrency, "ratio": ratio}

    entries = [entry("none", "chat", 1, 1.0), entry("guard", "chat", 1, 1.3), entry("guard", "code", None, 1.3)]
    entries.append(entry("guard", "long", 1, None))
    assert summary.break_even(entries, "none") == {"chat": {"guard": {"concurrency": 1.0, "beyond": True}}}


def info(drafts, accepted, plain=None, drafted=None):
    total = {"drafts": drafts, "accepted_by_depth": accepted, "accepted_tokens": sum(accepted)}
    histogram = {"upper_edges": [1.0], "counts": [0, 0], "sum": 0.0}
    acceptance = {
        "total": total,
        "by_context": {},
        "by_template": {},
        "requests": {"accept_length": histogram},
        "alarm": {"cause": None},
    }
    guard = {} if plain is None else {"guard": {"rounds": {"plain": plain, "drafted": drafted}}}
    return {"internal_states": [{"eagle31": {"acceptance": acceptance, **guard}}]}


def test_counts_are_differences():
    before, after = counters.read(info(10, [8, 1], 3, 7)), counters.read(info(30, [20, 7, 2], 3, 27))
    found = after - before
    assert (found.drafts, found.accepted, found.plain, found.drafted) == (20, (12, 6, 2), 0, 20)
    assert found.accept_length == 2 and found.by_depth == pytest.approx([0.6, 0.3, 0.1]) and found.fallback_ratio == 0
    assert found.to_json() == {
        "drafts": 20,
        "accepted_by_depth": [12, 6, 2],
        "plain_rounds": 0,
        "drafted_rounds": 20,
    }


def test_schedulers_add_up():
    states = info(10, [5], 1, 9)["internal_states"] + info(30, [9, 3], 9, 21)["internal_states"]
    found = counters.read({"internal_states": states})
    assert (found.drafts, found.accepted, found.plain, found.drafted) == (40, (14, 3), 10, 30)


@pytest.mark.parametrize("answer", [{}, {"internal_states": [{}]}])
def test_a_server_without_counters_has_none(answer):
    found = counters.read(answer)
    assert found == Counts() and found.to_json() == {} and found.accept_length is None and found.fallback_ratio is None


def test_a_guard_that_never_drafted_has_no_accept_length_but_a_fallback_ratio():
    found = counters.pooled([{"drafts": 0, "accepted_by_depth": [], "plain_rounds": 9, "drafted_rounds": 0}])
    assert found.accept_length is None and found.by_depth == [] and found.fallback_ratio == 1
    assert math.isclose(counters.pooled([{"plain_rounds": 1, "drafted_rounds": 3}]).fallback_ratio or 0, 0.25)
