"""The tie rule, loops, and acceptance by depth."""

import pytest

from sglang_eagle31.demo.compare import (
    Difference,
    Outcome,
    accept_by_depth,
    accept_length,
    first_difference,
    judge,
    loops,
    settle,
    tie_bound,
)


def no_look_up(difference):
    pytest.fail(f"nothing may be looked up, yet {difference} was")


def found(*logprobs):
    return lambda difference: logprobs


@pytest.mark.parametrize(
    ("plain", "speculative", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], None),
        ([], [], None),
        ([1, 2, 3], [1, 5, 3], Difference(1, 2, 5)),
        ([1, 2], [1, 2, 3], Difference(2, None, 3)),
        ([1, 2, 3], [1], Difference(1, 2, None)),
    ],
)
def test_first_difference(plain, speculative, expected):
    assert first_difference(plain, speculative) == expected


@pytest.mark.parametrize(
    ("dtype", "magnitude", "bound"),
    [
        ("bfloat16", 16.0, 0.25),
        ("bfloat16", 31.9, 0.25),
        ("bfloat16", 8.0, 0.125),
        ("bfloat16", 1.0, 2 * 2.0**-7),
        ("float16", 16.0, 2 * 2.0**-6),
        ("float32", 16.0, 0.0),
    ],
)
def test_tie_bound_is_two_spacings_of_the_dtype(dtype, magnitude, bound):
    assert tie_bound(dtype, magnitude) == bound


@pytest.mark.parametrize("magnitude", [1.0, 11.3, 17.0, 40.0])
def test_tie_bound_agrees_with_torch(magnitude):
    import torch

    value = torch.tensor(magnitude, dtype=torch.bfloat16)
    upper = torch.nextafter(value, torch.tensor(float("inf"), dtype=torch.bfloat16))
    assert tie_bound("bfloat16", magnitude) == 2 * (upper.float() - value.float()).item()


def test_unknown_dtype_is_refused():
    with pytest.raises(ValueError, match="--dtype float8"):
        tie_bound("float8")


def test_equal_answers_need_no_look_up():
    verdict = judge([1, 2, 3], [1, 2, 3], no_look_up, 0.25)
    assert (verdict.outcome, verdict.compared, verdict.gap) == (Outcome.SAME, 3, None)


@pytest.mark.parametrize(
    ("best", "plain", "speculative", "outcome"),
    [
        (-1.0, -1.0, -1.0, Outcome.TIE),
        (-1.0, -1.0, -1.25, Outcome.TIE),
        (-1.0, -1.25, -1.0, Outcome.TIE),
        (-1.0, -1.0, -1.250001, Outcome.TIE),  # float32 rounding of a log-probability
        (-1.0, -1.0, -1.28125, Outcome.DIFFERENT),
        (-1.0, -1.0, -9.0, Outcome.DIFFERENT),
        (-1.0, -5.0, -5.0, Outcome.DIFFERENT),  # both far from the best: a tie of two wrong tokens is no tie
    ],
)
def test_only_rounding_is_a_tie(best, plain, speculative, outcome):
    verdict = judge([7, 1, 9], [7, 2, 4], found(best, plain, speculative), 0.25)
    assert verdict.outcome is outcome
    assert verdict.compared == 1
    assert verdict.gap == pytest.approx(best - min(plain, speculative))


@pytest.mark.parametrize(
    ("gap", "best", "outcome"),
    [
        (0.5, 38.75, Outcome.TIE),  # spaced 0.25 apart, from 32 on
        (0.75, 38.75, Outcome.DIFFERENT),
        (0.5, 32.25, Outcome.DIFFERENT),  # the lower candidate is below 32
        (0.5, 30.0, Outcome.DIFFERENT),
        (0.5, 9.0, Outcome.DIFFERENT),
    ],
)
def test_a_larger_logit_has_a_larger_spacing(gap, best, outcome):
    verdict = judge([7, 1], [7, 2], found(0.0, 0.0, -gap), 0.25)
    asked = []
    assert verdict.outcome is Outcome.DIFFERENT
    assert settle(verdict, "bfloat16", lambda index: asked.append(index) or best).outcome is outcome
    assert asked == [1]


def test_nothing_is_asked_for_a_tie_or_an_answer_that_ended():
    for verdict in (judge([1], [2], found(0.0, 0.0, -0.25), 0.25), judge([1, 2], [1], no_look_up, 0.25)):
        assert settle(verdict, "bfloat16", None) is verdict


def test_float32_allows_no_tie():
    assert judge([1], [2], no_look_up, tie_bound("float32")).outcome is Outcome.DIFFERENT


@pytest.mark.parametrize(("plain", "speculative"), [([1, 2], [1]), ([1], [1, 2])])
def test_a_shorter_answer_is_different(plain, speculative):
    assert judge(plain, speculative, no_look_up, 0.25).outcome is Outcome.DIFFERENT


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (list(range(128)), False),
        (list(range(50)) * 2, False),
        (list(range(30)) * 3, True),
        ([1] * 9, False),
        ([1] * 10, True),
        ([n for k in range(3) for n in (100 + k, *range(8))], True),  # a numbered list of the same item
        ([1, 2, 3], False),
        ([], False),
    ],
)
def test_loops(tokens, expected):
    assert loops(tokens) is expected


def test_accept_length_counts_the_bonus_token():
    assert accept_length([10, 20], [5, 5]) == 3.0


def test_no_verify_step_is_an_error():
    with pytest.raises(ValueError, match="did not speculate"):
        accept_length([10], [0])


def test_accept_by_depth():
    # 10 verify steps: 4 accepted nothing, 3 one, 1 two, 2 three tokens
    assert accept_by_depth([[4, 1, 1], [0, 2, 0, 2]], 3) == [0.6, 0.3, 0.2]


def test_accept_by_depth_agrees_with_accept_length():
    histogram = [5, 4, 3, 8]
    mean = 1 + sum(accept_by_depth([histogram], 3))
    assert mean == pytest.approx(1 + sum(a * n for a, n in enumerate(histogram)) / sum(histogram))


def test_accept_by_depth_without_steps():
    assert accept_by_depth([[]], 2) == [0.0, 0.0]
