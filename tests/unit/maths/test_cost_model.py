"""Cost of a round: the formula of the paper, robust fits, break-even points; and the values that FACTS corrects."""

import itertools

import numpy as np
import pytest

from sglang_eagle31.maths.cost import Line, RoundCost, break_even_acceptance, break_even_batch
from sglang_eagle31.maths.expected import constant
from sglang_eagle31.maths.fit import robust
from sglang_eagle31.maths.grid import best, grid, predict
from sglang_eagle31.maths.shape import NO_SPECULATION, Shape

CHAINS = [Shape.chain(steps) for steps in (0, 1, 3, 5)]
SHAPES = [*CHAINS, Shape(3, 4, 8), Shape(5, 4, 16)]
TRUE = RoundCost(Line(0.02, 0.0006), Line(0.002, 0.0001), 0.001, inside=1)


def chain_best(acceptance, cost, steps):
    return best(predict(grid(steps), RoundCost.relative(cost), [acceptance]))


@pytest.mark.parametrize(
    ("acceptance", "cost", "most", "steps", "gain", "lesson_steps", "lesson_gain"),
    [
        (0.8, 0.05, 60, 8, 3.09, (5, 6, 7), 3.2),
        (0.95, 0.02, 60, 31, 9.95, (8, 9, 10), 5.0),
        (0.9, 0.04, 60, 15, 5.09, None, None),
        (0.9, 0.04, 10, 10, 4.90, None, None),
    ],
)
def test_worked_values_of_the_popular_lesson(acceptance, cost, most, steps, gain, lesson_steps, lesson_gain):
    """The best chain; a lesson that is often copied names others, which its own formula does not give."""
    found = chain_best(acceptance, cost, most)
    assert (found.shape.steps, round(found.speedup, 2)) == (steps, gain)
    assert found.speedup == pytest.approx(constant(acceptance, steps) / (steps * cost + 1))
    assert found.time_per_token == pytest.approx(1 / found.speedup)
    if lesson_steps:
        rounds = {one.shape.steps: one.speedup for one in predict(grid(most), RoundCost.relative(cost), [acceptance])}
        assert steps not in lesson_steps
        assert all(abs(rounds[step] - lesson_gain) > 0.1 for step in lesson_steps)


def test_worked_values_at_eight_steps():
    assert constant(0.95, 8) / (8 * 0.02 + 1) == pytest.approx(6.38, abs=0.005)


@pytest.mark.parametrize(("acceptance", "tokens", "lesson"), [(0.6, 2.38, 2.2), (0.9, 4.69, 4.1)])
def test_worked_tokens_of_a_round(acceptance, tokens, lesson):
    assert round(constant(acceptance, 5), 2) == tokens
    assert abs(constant(acceptance, 5) - lesson) > 0.15


def test_a_lower_acceptance_at_depth_shortens_the_best_chain():
    """The mean acceptance of these depths is 0.8; a constant 0.8 would ask for 8 steps."""
    cost = RoundCost.relative(0.05)
    falling = best(predict(grid(20), cost, [0.95, 0.85, 0.75, 0.65]))
    assert falling.shape.steps < 8


def medians_of(cost, batches, shapes, noise=0.0, seed=0):
    """Of whole rounds by batch and shape, each off by about as much as ``noise`` says."""
    random = np.random.default_rng(seed)
    cells = itertools.product(batches, shapes)
    return {(b, s): cost.round(b, s) * float(np.exp(noise * random.standard_normal())) for b, s in cells}


def test_a_fit_finds_the_cost_that_made_the_rounds():
    fitted = RoundCost.fit_rounds(medians_of(TRUE, (1, 4, 16), SHAPES))
    for batch, shape in itertools.product((1, 2, 8, 32), SHAPES):
        assert fitted.round(batch, shape) == pytest.approx(TRUE.round(batch, shape), rel=1e-6)


def test_the_first_step_of_a_draft_is_computed_with_the_verified_tokens():
    """Rounds of the demo model on two cores: plain, and four shapes; a narrow tree of two steps was fastest."""
    measured = {"0": 0.04376, "1,1,2": 0.05184, "1,4,4": 0.05475, "4,1,5": 0.06496, "4,4,8": 0.07791}
    fitted = RoundCost.fit_rounds({(1, Shape.parse(text)): seconds for text, seconds in measured.items()})
    for text, seconds in measured.items():
        assert fitted.round(1, Shape.parse(text)) == pytest.approx(seconds, rel=1e-3)
    assert fitted.target.slope == pytest.approx(0.001455, rel=1e-2)  # it is not free to verify wider


@pytest.mark.parametrize("seed", range(4))
def test_a_fit_stands_noise_and_outliers(seed):
    """A whole cell is off by two."""
    medians = medians_of(TRUE, (1, 4, 16), SHAPES, noise=0.03, seed=seed)
    medians[4, Shape.chain(1)] *= 2
    fitted = RoundCost.fit_rounds(medians)
    for batch, shape in itertools.product((1, 4, 16), SHAPES):
        assert fitted.round(batch, shape) == pytest.approx(TRUE.round(batch, shape), rel=0.15)


def test_a_fit_is_never_negative_and_never_falls_with_width():
    random = np.random.default_rng(0)
    for _ in range(20):
        medians = {
            (int(random.integers(1, 33)), SHAPES[random.integers(len(SHAPES))]): random.uniform(0.01, 0.1)
            for _ in range(int(random.integers(1, 20)))
        }
        cost = RoundCost.fit_rounds(medians)
        assert min(cost.target.base, cost.target.slope, cost.draft.base, cost.draft.slope, cost.overhead) >= 0
        assert cost.round(8, Shape(5, 4, 16)) >= cost.round(8, Shape(3, 4, 8)) >= cost.round(4, Shape(3, 4, 8)) >= 0


def test_one_cell_alone_predicts_itself():
    cost = RoundCost.fit_rounds({(4, Shape.chain(3)): 0.05})
    assert cost.round(4, Shape.chain(3)) == pytest.approx(0.05)
    with pytest.raises(ValueError, match="no round was measured"):
        RoundCost.fit_rounds({})


def test_huber_against_least_squares():
    """A line through 20 points of which 4 are far off."""
    x = np.arange(1.0, 21)
    y = 3 + 0.5 * x
    spoiled = y.copy()
    spoiled[[2, 7, 11, 19]] *= 3
    features = np.stack([np.ones(20), x], 1)
    least = np.linalg.lstsq(features, spoiled, rcond=None)[0]
    found = robust(features, spoiled, [0, 1])
    np.testing.assert_allclose(found, [3, 0.5], rtol=0.05)
    assert np.abs(features @ found - y).max() < np.abs(features @ least - y).max() / 10


def test_tokens_within_the_free_width_cost_nothing():
    cost = RoundCost.relative(0.05, 0.01, 16)
    assert cost.round(1, Shape.chain(3)) == pytest.approx(1.15)
    assert cost.round(8, Shape.chain(3)) == pytest.approx(1 + 0.01 * 16 + 3 * 0.05)
    for wrong in ((-1, 0, 1), (0.1, -1, 1), (0.1, 0, 0), (float("nan"), 0, 1), (0.1, float("inf"), 1)):
        with pytest.raises(ValueError, match="expected a finite number"):
            RoundCost.relative(*wrong)


@pytest.mark.parametrize("steps", [1, 3, 8])
@pytest.mark.parametrize("batch", [1, 8])
def test_break_even_acceptance(batch, steps):
    cost = RoundCost.relative(0.05, 0.02)
    acceptance = break_even_acceptance(cost, batch, steps)
    assert cost.speedup(batch, Shape.chain(steps), constant(acceptance, steps)) == pytest.approx(1)


def test_break_even_acceptance_at_one_step_is_the_cost():
    assert break_even_acceptance(RoundCost.relative(0.25), 1, 1) == pytest.approx(0.25)
    assert break_even_acceptance(RoundCost.relative(1.5), 1, 1) is None


def test_break_even_batch():
    cost, shape = RoundCost.relative(0.05, 0.02), Shape.chain(3)
    limit = break_even_batch(cost, shape, 2.0)
    assert cost.speedup(limit, shape, 2.0) >= 1 > cost.speedup(limit + 1, shape, 2.0)
    assert break_even_batch(cost, shape, 1.0) == 0
    assert break_even_batch(RoundCost.relative(0.05), shape, 2.0) is None


def test_grid_holds_what_can_be_filled():
    shapes = grid(3, [1, 2, 4], [2, 4, 8, 16])
    assert shapes == sorted(set(shapes))
    assert [shape for shape in shapes if shape.topk == 1] == [Shape.chain(steps) for steps in range(4)]
    assert all(shape.steps < shape.draft_tokens <= shape.candidates + 1 for shape in shapes if shape.steps)
    assert Shape(2, 2, 4) in shapes and Shape(2, 4, 16) in shapes and Shape(3, 4, 16) in shapes


def test_no_speculation_wins_a_tie():
    even = predict([NO_SPECULATION, Shape.chain(1)], RoundCost.relative(0.25), [0.25])
    assert even[1].speedup == pytest.approx(1)
    assert best(even).shape == NO_SPECULATION
