"""Acceptance by depth from histograms with known answers; intervals; loops and short answers."""

import numpy as np
import pytest

from sglang_eagle31.tools.robust import statistics
from sglang_eagle31.tools.robust.ask import reply_of
from sglang_eagle31.tools.robust.measurement import deepest, measure, paired, same_answers
from sglang_eagle31.tools.shared.prompts import Case


def drafted(seed, prompts, accept, rounds=80, spread=0.0):
    """Histograms of rounds whose draft k is right with probability ``accept[k]``, up to ``spread`` by prompt."""
    random = np.random.default_rng(seed)
    out = []
    for _ in range(prompts):
        own = np.clip(np.array(accept) + random.uniform(-spread, spread), 0, 1)
        right = random.random((rounds, len(accept))) < own
        out.append(np.bincount(right.cumprod(1).sum(1), minlength=len(accept) + 1).tolist())
    return out


def reply(prompt, histogram, tokens=None, condition="regular"):
    ids = tuple(range(sum(histogram) + 20)) if tokens is None else tuple(tokens)
    return reply_of(
        "http://x",
        Case(condition, prompt, (1, 2)),
        {
            "output_ids": list(ids),
            "meta_info": {"spec_verify_ct": sum(histogram), "spec_correct_drafts_histogram": list(histogram)},
        },
    )


def test_known_histogram():
    known = statistics.acceptance(statistics.table([[2, 1, 1], [0, 0, 0, 4]], 3), 0)
    assert known.counts == (8, 6, 5, 4)
    assert [e.value for e in known.reach] == [6 / 8, 5 / 8, 4 / 8]
    assert [e.value for e in known.conditional] == [6 / 8, 5 / 6, 4 / 5]
    assert known.length.value == 1 + (6 + 5 + 4) / 8
    assert (known.prompts, known.rounds) == (2, 8)


def test_length_is_tokens_per_round_with_the_bonus():
    histogram = [3, 2, 4, 1]
    tokens = sum(count * (accepted + 1) for accepted, count in enumerate(histogram))
    assert statistics.length(statistics.table([histogram], 3).sum(0)) == tokens / sum(histogram)


def test_a_tree_counts_by_the_depth_of_its_path_not_by_its_nodes():
    answer = {
        "output_ids": list(range(28)),
        "meta_info": {
            "spec_verify_ct": 10,
            "spec_num_correct_drafts": 18,
            "spec_num_proposed_drafts": 150,  # 15 nodes a round
            "spec_accept_rate": 18 / 150,
            "spec_correct_drafts_histogram": [2, 3, 2, 1, 2],
        },
    }
    found = measure("regular", [reply_of("http://x", Case("regular", 0, (1,)), answer)], 5, 0)
    assert found.acceptance.reach[0].value == 8 / 10
    assert found.acceptance.conditional[1].value == 5 / 8
    assert found.acceptance.length.value == 1 + 18 / 10
    assert found.acceptance.conditional[4].value == 0.0  # 2 rounds came to depth 4, none to 5
    assert found.depth == 5


def test_positions_that_no_round_reached_are_undefined():
    known = statistics.acceptance(statistics.table([[5]], 3), 0)
    assert known.reach[2].value == 0.0
    assert known.conditional[0].value == 0.0
    assert known.conditional[1] == statistics.Estimate(None, None, None)


def test_intervals_cover_the_truth_and_shrink_with_prompts():
    accept = [0.7, 0.5, 0.4]
    wide, narrow = (
        statistics.acceptance(statistics.table(drafted(1, prompts, accept, spread=0.05), 3), 0) for prompts in (8, 200)
    )
    for k, truth in enumerate(accept):
        estimate = narrow.conditional[k]
        assert estimate.low < estimate.value < estimate.high
        assert abs(estimate.value - truth) < 0.03
    assert narrow.length.high - narrow.length.low < 0.5 * (wide.length.high - wide.length.low)


def test_equal_prompts_have_no_spread():
    known = statistics.acceptance(statistics.table([[3, 2, 1]] * 6, 2), 0)
    assert known.length.low == pytest.approx(known.length.value) == known.length.high


def test_coverage_of_the_interval_is_about_95_percent():
    truth, hits = 1 + 0.6 + 0.6 * 0.5, 0
    for seed in range(100):
        found = statistics.estimate(
            statistics.length, statistics.table(drafted(seed, 30, [0.6, 0.5], 40, 0.1), 2), seed
        )
        hits += found.low <= truth <= found.high
    assert 85 <= hits <= 99


def test_the_same_seed_gives_the_same_interval():
    rows = statistics.table(drafted(2, 12, [0.6, 0.5]), 2)
    assert statistics.acceptance(rows, 7) == statistics.acceptance(rows, 7)
    assert statistics.acceptance(rows, 7).length != statistics.acceptance(rows, 8).length


def test_pairing_removes_what_both_share():
    random = np.random.default_rng(3)
    lower, upper = [], []
    for _ in range(20):
        share = random.uniform(0.2, 0.8)  # prompts differ far more than heads do
        lower.append([round(1000 * (1 - share)), round(1000 * share)])
        upper.append([round(1000 * (1 - share * 0.9)), round(1000 * share * 0.9)])
    a, b = statistics.table(upper, 1), statistics.table(lower, 1)
    found = statistics.ratio(statistics.first, a, b, 0)
    apart = statistics.ratio(statistics.first, a, b[::-1], 0)
    assert found.value == pytest.approx(0.9, abs=0.003)
    assert found.high - found.low < 0.1 * (apart.high - apart.low)
    assert statistics.ratio(statistics.length, b, b, 0) == statistics.Estimate(1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="20 and 3 prompts"):
        statistics.ratio(statistics.first, a, b[:3], 0)


def test_pooled_deep_acceptance():
    histogram = statistics.table([[10, 10, 5, 5]], 3).sum(0)  # N = 30, 20, 10, 5
    assert statistics.first(histogram) == pytest.approx(20 / 30)
    assert statistics.deep(histogram) == pytest.approx((10 + 5) / (20 + 10))
    assert np.isnan(statistics.deep(statistics.table([[4, 4]], 1).sum(0)))


def test_a_histogram_deeper_than_the_tree_is_refused():
    with pytest.raises(ValueError, match="accepted 3 drafts"):
        statistics.table([[1, 1, 1, 1]], 2)
    assert deepest([reply(0, [1, 1, 1, 1])], 2) == 3
    assert deepest([reply(0, [1])], 5) == 5
    assert deepest([], None) == 1


def test_loops_are_counted_apart():
    straight, loop = reply(0, [5, 5]), reply(1, [0, 10], [1, 2, 3, 4] * 8)
    short = reply(2, [], [7])
    found = measure("regular", [straight, loop, short], 1, 0)
    assert (found.acceptance.prompts, found.looping, found.empty) == (1, 1, 1)
    assert found.acceptance.length.value == 1.5
    assert found.with_loops.value == 1.75
    assert not found.loops_counted
    only = measure("regular", [loop], 1, 0)
    assert (only.acceptance.length.value, only.looping, only.loops_counted) == (2.0, 1, True)
    assert measure("regular", [short], 1, 0) is None


def test_pairs_are_the_questions_that_count_in_both():
    one = measure("a", [reply(0, [5, 5]), reply(1, [5, 5]), reply(2, [0, 10], [1, 2, 3, 4] * 8)], 1, 0)
    other = measure("b", [reply(1, [10, 0]), reply(2, [10, 0], range(9)), reply(3, [0, 9])], 1, 0)
    ratio, common = paired(statistics.length, one, other, 0)
    assert common == [1]
    assert ratio.value == 1.5
    assert same_answers(one, other) == 0.5
    assert paired(statistics.length, one, measure("c", [reply(9, [1])], 1, 0), 0)[0].value is None
