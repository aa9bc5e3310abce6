"""Loops, and acceptance by depth."""

import pytest

from sglang_eagle31.tools.shared.acceptance import accept_by_depth, accept_length, loops


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
