"""The guard's decisions on synthetic traces: it leaves what does not pay, comes back, and does not dither.

Times are drawn from a cost model with noise and outliers, tokens from acceptance by depth (and rank).
"""

import numpy as np
import pytest

from sglang_eagle31.maths.cost import Line, RoundCost
from sglang_eagle31.maths.expected import ranks, tokens
from sglang_eagle31.maths.shape import NO_SPECULATION, Shape
from sglang_eagle31.server.guard.evidence import Evidence, Outcome
from sglang_eagle31.server.guard.policy import Options, Policy

CHAIN = Shape.chain(3)
CHAINS = [CHAIN, Shape.chain(1), Shape.chain(5)]
COST = RoundCost(Line(0.025, 0.0008, 0), Line(0.0015, 0.0001))
"""Of the demo on a CPU: a chain of three steps takes 1.28 plain steps at one request, 1.9 at 32."""
GOOD, DEAD = (0.75, 0.7, 0.65, 0.6, 0.55), (0.0,)


class World:
    """A target and a head whose acceptance and speed can be changed between rounds."""

    def __init__(self, shapes, cost=COST, seed=0, noise=0.1, options=None):
        self.policy = Policy(shapes, options)
        self.cost, self.noise = cost, noise
        self.random = np.random.default_rng(seed)
        self.on, self.shapes = [], []

    def outcome(self, batch, shape, table):
        if not shape.steps:
            return Outcome.plain(batch)
        table = np.vstack([table, np.repeat(table[-1:], shape.steps, 0)])[: shape.steps, : shape.topk]
        if shape.topk == 1:
            right = self.random.random((batch, shape.steps)) < table[:, 0]
            return Outcome.chain(right.cumprod(1).sum(1), shape.steps)
        children = tree_children(shape, table)
        paths, missed = [], []
        for _ in range(batch):
            path = ()
            while (path in children) and (rank := self.rank(table[len(path)])) < children[path]:
                path = (*path, rank)
            paths.append(path)
            missed.append(children.get(path, 0))
        return Outcome.tree(paths, missed, shape.steps, shape.topk)

    def rank(self, row):
        return int((self.random.random() >= np.cumsum(row)).sum())

    def run(self, rounds, acceptance, batch=1, slower=1.0):
        """Tokens a request and true seconds of so many rounds; outliers are seen by the guard and not counted."""
        table = np.atleast_2d(np.asarray(acceptance, float))
        table = table.T if table.shape[0] == 1 else table
        given, spent = 0.0, 0.0
        for _ in range(rounds):
            size = batch if isinstance(batch, int) else int(self.random.choice(batch))
            shape = self.policy.choose(size)
            outcome = self.outcome(size, shape, table)
            true = self.cost.round(size, shape) * slower
            seen = true * np.exp(self.noise * self.random.standard_normal())
            if self.noise and self.random.random() < 0.05:
                seen *= 4
            self.policy.observe(size, shape, outcome, seen)
            given += outcome.mean
            spent += true / self.cost.round(size, NO_SPECULATION) / slower
            self.shapes.append(shape)
            self.on.append(bool(self.policy.regime(size).running.steps))
        return given / spent


def tree_children(shape, table):
    """How many children each node of the tree has, by its path of ranks."""
    from sglang_eagle31.maths.expected import tree

    built, paths, children = tree(shape, table), [], {}
    for parent, rank in zip(built.parent, built.rank, strict=True):
        above = paths[parent] if parent >= 0 else ()
        paths.append((*above, int(rank)))
        children[above] = children.get(above, 0) + 1
    return children


def rounds_until(flags, wanted):
    """Rounds before the flag is first so; more than there are when it never is."""
    return flags.index(wanted) if wanted in flags else len(flags) + 1


@pytest.mark.parametrize(("batch", "seed"), [(1, 0), (4, 2), (16, 3)])
@pytest.mark.parametrize("shapes", [[CHAIN], CHAINS], ids=["one", "three"])
def test_good_dead_good(shapes, batch, seed):
    """Leaves when it has lost the patience, loses at most 3 % while the head is dead, is back within 400 rounds."""
    world = World(shapes, seed=seed)
    world.run(400, GOOD, batch)
    good = world.run(500, GOOD, batch)
    assert world.on[-1] and good > 0.9 * best_gain(shapes, GOOD, batch)
    begin, lost = len(world.on), COST.round(batch, world.shapes[-1]) / COST.round(batch, NO_SPECULATION) - 1
    dead = world.run(2000, DEAD, batch)
    leaving = rounds_until(world.on[begin:], False)
    assert 1.4 * Options().patience >= leaving * lost or leaving <= 200
    assert not any(world.on[begin + leaving :])
    assert dead >= 0.97
    begin = len(world.on)
    world.run(500, GOOD, batch)
    back = rounds_until(world.on[begin:], True)
    assert back <= 400 and all(world.on[begin + back :])
    assert world.run(500, GOOD, batch) > 0.9 * best_gain(shapes, GOOD, batch)


def best_gain(shapes, acceptance, batch, cost=COST):
    return max(cost.speedup(batch, shape, tokens(shape, acceptance)) for shape in (NO_SPECULATION, *shapes))


def test_what_a_dead_phase_loses_is_what_was_derived():
    """Patience once, and the probing share for as long as it lasts; here without noise, to the round."""
    options = Options()
    world = World([CHAIN], noise=0.0)
    world.run(1000, (1.0,))
    rho = COST.round(1, CHAIN) / COST.round(1, NO_SPECULATION)
    begin = len(world.shapes)
    rate = world.run(4000, DEAD)
    leaving = int(np.ceil(options.patience / (rho - 1)))
    assert rounds_until(world.on[begin:], False) <= leaving + 1
    probes = sum(shape.steps > 0 for shape in world.shapes[begin + leaving :])
    assert 0 < probes * (rho - 1) <= options.probing * 4000
    assert rate >= 1 / (1 + options.probing + options.patience / 4000)


@pytest.mark.parametrize("gain", [0.97, 1.0, 1.03])
def test_break_even_is_no_reason_to_dither(gain):
    """Over 6,000 rounds of a head that brings what it costs: a change every 1,000 rounds at most, and no loss."""
    rho = COST.round(1, CHAIN) / COST.round(1, NO_SPECULATION)
    acceptance = next(a for a in np.arange(0, 1, 0.001) if tokens(CHAIN, [a]) >= gain * rho)
    world = World([CHAIN])
    rate = world.run(6000, (acceptance,))
    assert world.policy.changes <= 6
    assert rate >= 0.97


@pytest.mark.parametrize("seed", range(2))
def test_batch_sizes_decide_apart(seed):
    """The cost of width makes a chain pay at one request and lose at 64; both are served in turns."""
    steep = RoundCost(Line(0.02, 0.004), Line(0.001, 0.0005))
    acceptance = (0.65, 0.5, 0.4)
    assert best_gain([CHAIN], acceptance, 1, steep) > 1.2 and steep.speedup(64, CHAIN, tokens(CHAIN, acceptance)) < 0.8
    world = World([CHAIN], steep, seed)
    for _ in range(4):
        small, large = world.run(500, acceptance, 1), world.run(500, acceptance, 64)
    assert small > 1.1 and large >= 0.97
    assert world.policy.regime(1).running == CHAIN and world.policy.regime(64).running == NO_SPECULATION


def test_batch_sizes_that_come_and_go():
    world = World(CHAINS)
    world.run(1000, GOOD, range(1, 12))
    assert world.run(1000, GOOD, range(1, 12)) > 1.25
    world.run(1000, DEAD, range(1, 12))
    assert world.run(2000, DEAD, range(1, 12)) >= 0.97


def test_the_best_depth_is_found_and_followed():
    world = World(CHAINS)
    world.run(600, (0.95,))
    assert world.policy.regime(1).running == Shape.chain(5)
    world.run(800, (0.6, 0.05))
    assert world.policy.regime(1).running == Shape.chain(1)


@pytest.mark.parametrize("recovery", [0.0, 0.6])
def test_a_tree_runs_where_other_ranks_catch_enough(recovery):
    shapes = [CHAIN, Shape(3, 4, 8)]
    table = ranks([0.5, 0.45, 0.4], [recovery, recovery, recovery])
    gains = [COST.speedup(1, shape, tokens(shape, table)) for shape in shapes]
    best = shapes[int(np.argmax(gains))]
    assert abs(gains[0] - gains[1]) > 0.1
    for first in (shapes, shapes[::-1]):
        world = World(first)
        world.run(1500, table)
        assert world.policy.regime(1).running == best


def test_a_machine_that_slows_down_or_speeds_up_is_no_dead_head():
    world = World([CHAIN])
    world.run(1000, GOOD)
    for slower in (1.6, 1.0, 0.5):
        assert world.run(1000, GOOD, slower=slower) > 0.9 * best_gain([CHAIN], GOOD, 1)
        assert world.on[-1]


def test_a_sudden_slowdown_is_checked_and_found_to_be_none_of_the_heads():
    """Plain steps are timed rarely while it is on, so that their time is stale; eight of them settle it."""
    world = World([CHAIN], noise=0.02)
    world.run(500, GOOD)
    begin = len(world.on)
    world.run(300, GOOD, slower=2.5)
    assert 0 < world.on[begin:].count(False) <= 10


def test_a_head_that_is_back_is_judged_by_what_it_does_now():
    world = World([CHAIN])
    world.run(200, GOOD, 16)
    world.run(300, DEAD, 16)
    while not world.policy.regime(16).running.steps:
        stale = world.policy.gains(16)[CHAIN]
        world.run(1, GOOD, 16)
    true = best_gain([CHAIN], GOOD, 16)
    assert world.policy.gains(16)[CHAIN] == pytest.approx(true, rel=0.1) and stale < 0.9 * true


def test_probes_take_turns():
    """The cheapest shape does not pay, as drafting at all has a price; a deep one does."""
    cost = RoundCost(COST.target, COST.draft, 0.6 * COST.round(1, NO_SPECULATION))
    deep, acceptance = Shape.chain(5), (0.65,)
    assert best_gain([Shape.chain(1)], acceptance, 1, cost) == 1 and best_gain([deep], acceptance, 1, cost) > 1.2
    world = World([deep, Shape.chain(1)], cost, noise=0.02)
    world.run(300, acceptance)
    world.run(500, DEAD)
    assert not world.on[-1]
    world.run(1000, acceptance)
    assert world.policy.regime(1).running == deep


def test_a_few_slow_plain_steps_do_not_bring_it_back():
    """The first steps after it went off, by which it is checked that it went off for a reason."""
    policy, drafted = Policy([CHAIN]), 0
    for _ in range(3000):
        shape = policy.choose(1)
        drafted += bool(shape.steps)
        accepted = 3 if drafted <= 500 else 0
        outcome = Outcome.chain([accepted], 3) if shape.steps else Outcome.plain(1)
        slow = 4 if not policy.regime(1).running.steps and policy.regime(1).rounds < 3 else 1
        policy.observe(1, shape, outcome, COST.round(1, shape) * slow)
    assert policy.changes == 1 and not policy.regime(1).running.steps


def test_what_can_never_pay_is_never_probed():
    dear = RoundCost(Line(0.02, 0.02), Line(0.2))
    world = World([CHAIN, Shape(3, 4, 8)], dear, noise=0.02)
    world.run(1500, (1.0,), 64)
    assert Shape(3, 4, 8) not in world.shapes  # the chain showed that nothing wider can pay
    assert set(world.shapes[50:]) == {NO_SPECULATION}


def test_the_same_rounds_give_the_same_decisions():
    one, two = World(CHAINS, seed=3), World(CHAINS, seed=3)
    for world in (one, two):
        world.run(500, GOOD)
        world.run(500, DEAD)
    assert one.shapes == two.shapes and one.policy.gains(1) == two.policy.gains(1)


def test_what_it_reports():
    world = World([CHAIN])
    world.run(300, GOOD)
    assert [(label, regime.running) for label, regime in world.policy.ranges()] == [("1", CHAIN)]
    assert world.policy.realised(1) == pytest.approx(best_gain([CHAIN], GOOD, 1), rel=0.35)
    assert set(world.policy.times.to_json()) == {"0,1,1", "3,1,4"}
    gains = world.policy.gains(1)
    assert gains[NO_SPECULATION] == 1
    assert gains[CHAIN] == pytest.approx(best_gain([CHAIN], GOOD, 1), rel=0.25)
    with pytest.raises(ValueError, match="none of the prepared shapes drafts"):
        Policy([NO_SPECULATION])


@pytest.mark.parametrize("shape", [CHAIN, Shape(3, 3, 8), Shape(3, 3, 13)], ids=str)
def test_evidence_of_any_shape_finds_the_acceptance(shape):
    truth = ranks([0.6, 0.5, 0.4], [0.4, 0.4])
    world, evidence = World([shape]), Evidence(3, shape.topk, 1000)
    for _ in range(300):
        evidence.add(world.outcome(16, shape, truth))
    np.testing.assert_allclose(evidence.table(), truth[:, : shape.topk], atol=0.04)
