"""The order of a benchmark: alternation, answers before speed, and what is left to do."""

from __future__ import annotations

from collections import Counter

import pytest

from sglang_eagle31.tools.bench.plan import Ask, Cell, order, plan

ARMS = ["none", "eagle31", "guard"]


def make(kept, **more):
    return list(plan(ARMS, ["chat", "code"], [1, 4], 3, kept=kept, **{"ask": True, **more}))


@pytest.mark.parametrize("kept", [True, False])
def test_every_arm_measures_every_cell_in_every_round_once(kept):
    items = [item for visit in make(kept) for item in visit]
    assert Counter(items) == Counter(
        [Cell(arm, name, n, turn) for arm in ARMS for name in ("chat", "code") for n in (1, 4) for turn in (1, 2, 3)]
        + [Ask(arm, name) for arm in ARMS for name in ("chat", "code")]
    )


@pytest.mark.parametrize("kept", [True, False])
def test_a_visit_is_of_one_arm(kept):
    assert all(len({item.arm for item in visit}) == 1 for visit in make(kept))


def test_kept_servers_change_with_every_cell_and_a_cell_is_one_comparison():
    cells = [visit for visit in make(True) if isinstance(visit[0], Cell)]
    assert all(len(visit) == 1 for visit in cells)
    for start in range(0, len(cells), 3):
        group = [visit[0] for visit in cells[start : start + 3]]
        assert {cell.arm for cell in group} == set(ARMS)
        assert len({(cell.prompts, cell.concurrency, cell.round) for cell in group}) == 1


def test_restarted_servers_start_once_a_round():
    assert [visit[0].arm for visit in make(False)] == [arm for turn in (1, 2, 3) for arm in order(ARMS, turn)]


@pytest.mark.parametrize("kept", [True, False])
def test_the_first_arm_answers_last_and_before_nothing_else_of_it(kept):
    asks = [item for visit in make(kept) for item in visit if isinstance(item, Ask)]
    for name in ("chat", "code"):
        assert [ask.arm for ask in asks if ask.prompts == name][-1] == "none"


def test_rounds_begin_with_different_arms():
    assert [order(ARMS, turn)[0] for turn in (1, 2, 3)] == ["eagle31", "guard", "none"]


@pytest.mark.parametrize("kept", [True, False])
def test_what_is_done_is_left_out_and_an_empty_visit_too(kept):
    done = {item for visit in make(kept) for item in visit if item.arm != "guard" or isinstance(item, Ask)}
    left = [item for visit in make(kept, done=done) for item in visit]
    assert len(left) == 12 and {item.arm for item in left} == {"guard"}
    assert all(make(kept, done=done))


def test_nothing_is_asked_unless_wanted():
    assert not any(isinstance(item, Ask) for visit in make(True, ask=False) for item in visit)
