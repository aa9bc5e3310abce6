"""What requests ask for, prepared shapes, trees read and cut, unread tokens, and the record of the guard."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sglang_eagle31.maths.shape import NO_SPECULATION, Shape
from sglang_eagle31.patches.sampling_params_verify import refuse_wrong_asks
from sglang_eagle31.server.guard import nodes
from sglang_eagle31.server.guard.asks import Asks, wrong
from sglang_eagle31.server.guard.backlog import LEAST, ROWS, Backlog
from sglang_eagle31.server.guard.evidence import Outcome
from sglang_eagle31.server.guard.ledger import EVERY, PREFIX, Ledger
from sglang_eagle31.server.guard.policy import Policy
from sglang_eagle31.server.guard.prepared import may_pin, prepared

TREE, CHAIN = Shape(5, 4, 16), Shape.chain(5)
SHAPES = prepared(TREE, everywhere=True)


def caps(*steps: int | None) -> Asks:
    return Asks.of([None if one is None else {"speculative_num_steps": one} for one in steps])


@pytest.mark.parametrize(
    ("params", "known"),
    [
        ([None, None], Asks((None, None))),
        ([{}, {"other": 1}], Asks((None, None))),
        ([{"speculative_num_steps": 0}, None], Asks((0, None))),
        ([{"eagle31_shape": "3,1,4"}, {"eagle31_shape": "3"}], Asks((None, None), Shape.chain(3))),
        ([{"eagle31_shape": "0"}], Asks((None,), NO_SPECULATION)),
        ([{"eagle31_shape": "3,1,4"}, None], Asks((None, None))),
        ([{"eagle31_shape": "3,1,4"}, {"eagle31_shape": "2,1,3"}], Asks((None, None))),
        ([{"speculative_num_steps": 2, "eagle31_shape": "5,4,16"}], Asks((2,), TREE)),
        ([{"speculative_num_steps": None, "eagle31_shape": None}], Asks((None,))),
    ],
)
def test_what_requests_ask_for(params: list[Any], known: Asks) -> None:
    assert Asks.of(params) == known
    assert [wrong(one) for one in params] == [None] * len(params)


def test_rejection_sampling_reads_no_cap() -> None:
    reason = wrong({"speculative_num_steps": 2}, lambda: True)
    assert reason and "--speculative-use-rejection-sampling" in reason and "fix:" in reason
    assert wrong({"eagle31_shape": "3,1,4"}, lambda: True) is None is wrong({"speculative_num_steps": 2}, lambda: False)


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"speculative_num_steps": -1}, "speculative_num_steps=-1: .*fix: 0"),
        ({"speculative_num_steps": "2"}, "speculative_num_steps='2'"),
        ({"speculative_num_steps": 2.0}, "speculative_num_steps=2.0"),
        ({"speculative_num_steps": True}, "speculative_num_steps=True"),
        ({"eagle31_shape": "3,1,5"}, "eagle31_shape='3,1,5': .*fix: for example 3,1,4"),
        ({"eagle31_shape": "fast"}, "eagle31_shape='fast'"),
        ({"eagle31_shape": 3}, "eagle31_shape=3"),
        ({"eagle31_shape": [3, 1, 4]}, r"eagle31_shape=\[3, 1, 4\]"),
        ({"eagle31_shape": {"steps": 3}}, "eagle31_shape="),
    ],
)
def test_a_wrong_value_is_refused_and_counts_as_not_said(params: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        refuse_wrong_asks(SimpleNamespace(custom_params=params), 100)
    assert Asks.of([params, params]) == Asks((None, None))
    assert Asks.of(["no dict", ["nor this"]]) == Asks((None, None))  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("asks", "fitting"),
    [
        (caps(None), TREE),
        (caps(0, None), TREE),
        (caps(5, 0), TREE),
        (caps(9), TREE),
        (caps(4, 0), Shape.chain(3)),
        (caps(1), Shape.chain(1)),
        (caps(0, 0), NO_SPECULATION),
    ],
)
def test_a_shape_is_as_deep_as_one_of_the_requests_allows(asks: Asks, fitting: Shape) -> None:
    assert asks.fit(TREE, SHAPES) == fitting


def test_a_shape_that_fits_is_never_wider_than_the_wanted_one() -> None:
    assert caps(3).fit(CHAIN, [Shape(3, 4, 32), Shape.chain(2)]) == Shape.chain(2)
    assert caps(3).fit(CHAIN, [Shape(3, 4, 32)]) == NO_SPECULATION
    assert caps(3).fit(Shape.chain(3), [TREE]) == Shape.chain(3)
    assert caps(0).fit(NO_SPECULATION, SHAPES) == NO_SPECULATION


def test_rows_that_are_capped() -> None:
    assert caps(None, 0, 5, 3, 9).capped(TREE) == {1: 0, 3: 3}
    assert caps(0, 3).capped(NO_SPECULATION) == {}


def test_prepared_shapes() -> None:
    assert prepared(TREE, False) == (TREE,)
    assert [str(one) for one in SHAPES] == ["5,4,16", "5,4,8", "1,1,2", "2,1,3", "3,1,4"]
    assert [str(one) for one in prepared(CHAIN, True)] == ["5,1,6", "1,1,2", "2,1,3", "3,1,4"]
    assert Shape(5, 4, 5) not in prepared(Shape(5, 4, 10), True)  # a node for each step and the root is the least


def test_shapes_that_may_be_pinned() -> None:
    able = [NO_SPECULATION, TREE, Shape.chain(4), Shape(2, 3, 7), Shape(5, 4, 6)]
    unable = [Shape.chain(6), Shape(5, 5, 16), Shape(5, 4, 17), Shape(5, 4, 5)]
    assert all(may_pin(one, TREE, SHAPES, everywhere=True) for one in able)
    assert not any(may_pin(one, TREE, SHAPES, everywhere=True) for one in unable)
    assert [may_pin(one, TREE, (TREE,), everywhere=False) for one in able] == [True, True, False, False, False]


def links(children: dict[int, list[int]], count: int) -> tuple[list[int], list[int]]:
    """First child and next sibling of each node."""
    child, sibling = [-1] * count, [-1] * count
    for parent, row in children.items():
        child[parent] = row[0]
        for one, following in itertools.pairwise(row):
            sibling[one] = following
    return child, sibling


FIRST: dict[int, list[int]] = {0: [1, 2], 2: [3, 4]}
SECOND: dict[int, list[int]] = {0: [1], 1: [2], 2: [3, 4]}
SMALL = Shape(3, 2, 5)
# Candidates of each node after the root: topk 2, so an even number is of rank 0 and an odd one of rank 1.
CHOSEN = np.array([[0, 1, 4, 5], [0, 2, 6, 7]])


@pytest.mark.parametrize("rows", [[0, 1], [1]])
@pytest.mark.parametrize("path", [[0], [0, 2], [0, 2, 4]])
@pytest.mark.parametrize("other", [[0, 1], [0, 1, 2, 3]])
def test_an_outcome_of_trees_equals_a_recount(path: list[int], other: list[int], rows: list[int]) -> None:
    """Node by node: which ranks were looked at on the way down, and which one went on."""
    accepted, trees = (path, other), (FIRST, SECOND)
    tried, hit = np.zeros((3, 2)), np.zeros((3, 2))
    for row in rows:
        for depth, node in enumerate(accepted[row]):
            going_on = accepted[row][depth + 1] if depth + 1 < len(accepted[row]) else None
            for child in trees[row].get(node, []):
                rank = CHOSEN[row, child - 1] % 2
                tried[depth, rank] += 1
                if child == going_on:
                    hit[depth, rank] += 1
                    break
    index = np.full((2, 4), -1)
    for row, nodes_of in enumerate(accepted):
        index[row, : len(nodes_of)] = np.array(nodes_of) + row * 5
    child, sibling = zip(*(links(tree, 5) for tree in trees), strict=True)
    lengths = np.array([len(one) for one in accepted])
    found = nodes.outcome(SMALL, rows, lengths, index, CHOSEN, np.array(child), np.array(sibling))
    assert found.tokens.tolist() == [lengths[row] for row in rows]
    np.testing.assert_array_equal(found.tried, tried)
    np.testing.assert_array_equal(found.hit, hit)


def test_a_cut_leaves_no_node_deeper_than_the_cap() -> None:
    child, _ = zip(*(links(tree, 5) for tree in (FIRST, SECOND, SECOND)), strict=True)
    cut, depth = torch.tensor(child), torch.tensor([[0, 1, 1, 2, 2], [0, 1, 2, 3, 3], [0, 1, 2, 3, 3]])
    nodes.cut(cut, depth, {0: 0, 2: 2})
    assert cut.tolist() == [[-1] * 5, list(child[1]), [1, 2, -1, -1, -1]]


def states(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(rows), torch.zeros(rows, 2)


def positions(backlog: Backlog, rid: str) -> list[int]:
    return [one.position for one in backlog.unread[rid]]


def test_unread_tokens_are_taken_once_and_in_order() -> None:
    backlog = Backlog()
    for position in (10, 11, 12):
        backlog.add(["a", "b"], [position, position + 20], *states(2))
    taken = backlog.take(["b", "a"], [33, 13])
    assert {row: [one.position for one in found] for row, found in taken.items()} == {0: [30, 31, 32], 1: [10, 11, 12]}
    assert [one.row for one in taken[0]] == [1, 1, 1] and [one.row for one in taken[1]] == [0, 0, 0]
    assert backlog.take(["b", "a"], [33, 13]) == {}


def test_what_was_read_in_between_is_not_taken() -> None:
    backlog = Backlog()
    backlog.add(["a", "b"], [10, 20], *states(2))
    assert list(backlog.take(["a", "b", "new"], [12, 21, 5])) == [1]


def test_a_request_that_was_prefilled_again_begins_anew() -> None:
    backlog = Backlog()
    for position in (10, 11, 13, 14):  # the prefill read up to 12
        backlog.add(["a"], [position], *states(1))
    assert positions(backlog, "a") == [13, 14]


def test_requests_that_left_are_forgotten() -> None:
    backlog = Backlog()
    backlog.add(["a", "b"], [10, 20], *states(2))
    backlog.add(["b"], [21], *states(1))
    assert list(backlog.unread) == ["b"] and positions(backlog, "b") == [20, 21]


@pytest.mark.parametrize(("requests", "most"), [(1, ROWS), (4, ROWS // 4), (ROWS, LEAST)])
def test_the_last_tokens_are_kept_and_no_more(requests: int, most: int) -> None:
    backlog, rids = Backlog(), [str(row) for row in range(requests)]
    tokens, hidden = states(requests)
    for position in range(most + 3):
        backlog.add(rids, [position] * requests, tokens, hidden)
    assert positions(backlog, rids[-1]) == list(range(3, most + 3))


def ledger(mode: str = "on") -> Ledger:
    return Ledger(Policy(SHAPES), mode, everywhere=True)


def test_the_record_of_a_server_that_did_nothing_yet() -> None:
    record = ledger("observe").to_json()
    assert list(record) == (
        "mode configured shapes any rounds fallback_ratio changes acceptance tried hit seconds running predicted "
        "realised".split()
    )
    assert (record["mode"], record["configured"], record["any"]) == ("observe", "5,4,16", True)
    assert record["shapes"] == [str(one) for one in SHAPES]
    assert (record["fallback_ratio"], record["realised"], record["predicted"]) == (None, None, {})
    assert np.shape(record["acceptance"]) == np.shape(record["tried"]) == np.shape(record["hit"]) == (5, 4)


def test_the_record_counts_rounds_and_what_they_gave() -> None:
    found = ledger()
    for _ in range(3):
        found.count(NO_SPECULATION, Outcome.plain(2))
    found.count(Shape.chain(3), Outcome.chain([3, 1], 3))
    found.count(TREE, None)
    record = found.to_json()
    assert record["rounds"] == {"plain": 3, "drafted": 2} and record["fallback_ratio"] == 0.6
    assert np.array(record["tried"])[:, 0].tolist() == [2, 2, 1, 0, 0]
    assert np.array(record["hit"])[:, 0].tolist() == [2, 1, 1, 0, 0]
    assert not np.array(record["tried"])[:, 1:].any()


def test_the_record_of_times_gains_and_shapes() -> None:
    found, chain = ledger(), Shape.chain(3)
    for _ in range(3):
        found.policy.learn(4, NO_SPECULATION, Outcome.plain(4), 0.1)
        found.policy.learn(4, chain, Outcome.chain([3] * 4, 3), 0.2)
    found.policy.regime(4).running = chain
    record = found.to_json()
    assert record["seconds"] == {"0,1,1": {"4": 0.1}, "3,1,4": {"4": 0.2}}
    table = np.array(record["acceptance"])[:, 0]
    assert record["predicted"] == {"0,1,1": 1.0, "3,1,4": pytest.approx((1 + table[:3].cumprod().sum()) / 2)}
    assert record["running"] == {"4": "3,1,4"} and record["realised"] == 0.5


def test_prometheus_has_the_rounds_and_the_shape() -> None:
    from prometheus_client import REGISTRY

    found, labels = ledger(), {"model_name": "guard-parts"}

    def sample(name: str, **more: str) -> float | None:
        return REGISTRY.get_sample_value(PREFIX + name, {**labels, **more})

    found.export(labels)
    for _ in range(EVERY // 2):
        found.policy.learn(1, NO_SPECULATION, Outcome.plain(1), 0.1)
        found.count(NO_SPECULATION, Outcome.plain(1))
        found.policy.regime(1).running = TREE
        found.count(TREE, None)
    assert (sample("rounds_total", kind="plain"), sample("rounds_total", kind="drafted")) == (EVERY / 2, EVERY / 2)
    assert (sample("fallback_ratio"), sample("num_steps"), sample("num_draft_tokens")) == (0.5, 5, 16)
    assert sample("realised_gain") is None  # no round of the shape was timed
    for _ in range(EVERY):
        found.count(NO_SPECULATION, Outcome.plain(1))
    assert (sample("rounds_total", kind="plain"), sample("rounds_total", kind="drafted")) == (1.5 * EVERY, EVERY / 2)
    assert sample("fallback_ratio") == 0.75
