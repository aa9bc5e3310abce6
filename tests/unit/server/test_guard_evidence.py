"""What rounds teach the guard: drafts tried and accepted by depth and rank, and seconds by batch size."""

import numpy as np

from sglang_eagle31.maths.shape import Shape
from sglang_eagle31.server.guard.evidence import Evidence, Outcome
from sglang_eagle31.server.guard.timing import Times

CHAIN = Shape.chain(3)


def test_a_chain_outcome_counts_what_was_tried():
    outcome = Outcome.chain([0, 2, 3], 3)
    assert outcome.tokens.tolist() == [1, 3, 4]
    assert outcome.tried[:, 0].tolist() == [3, 2, 2] and outcome.hit[:, 0].tolist() == [2, 2, 1]
    tree = Outcome.tree([(), (0, 0), (0, 0, 0)], [1, 1, 0], 3, 1)
    np.testing.assert_array_equal(tree.tried, outcome.tried)
    np.testing.assert_array_equal(tree.hit, outcome.hit)


def test_a_tree_outcome_counts_what_was_tried():
    outcome = Outcome.tree([(1,), (), (0, 2)], [0, 2, 1], 3, 3)
    assert outcome.tried.tolist() == [[3, 2, 0], [1, 1, 1], [1, 0, 0]]
    assert outcome.hit.tolist() == [[1, 1, 0], [0, 0, 1], [0, 0, 0]]


def test_evidence_forgets():
    evidence = Evidence(1, 1, 64)
    for _ in range(300):
        evidence.add(Outcome.chain([1], 1))
    for _ in range(150):
        evidence.add(Outcome.chain([0], 1))
    assert evidence.table()[0, 0] < 0.15


def test_times_between_and_beyond_what_was_run():
    times = Times()
    assert times.seconds(4, CHAIN) is None
    for batch in (2, 6):
        for seconds in (batch, batch, 100 * batch):
            times.add(batch, CHAIN, seconds)
    times.add(4, CHAIN, 1000.0)  # once is not enough
    assert [times.seconds(batch, CHAIN) for batch in (1, 2, 4, 6, 9)] == [2, 2, 4, 6, 6]
    for _ in range(1100):
        times.add(7, CHAIN, 7.0)
    for _ in range(3):
        times.add(2, CHAIN, 3.0)
    assert times.seconds(2, CHAIN) == 3  # the older ones no longer count
    times.forget(2, CHAIN)
    assert times.count(2, CHAIN) == 0 and times.seconds(2, CHAIN) == 6
