"""What `tune --url` decides, on simulated servers whose best shape is known."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from rich.console import Console
from tune_servers import DEAR_VERIFY, LIMITS, REGIMES, Simulated, falling

from sglang_eagle31.maths.cost import Line, RoundCost
from sglang_eagle31.maths.shape import NO_SPECULATION, Shape
from sglang_eagle31.server.guard.evidence import Outcome
from sglang_eagle31.tools.shared.guard_records import Limits
from sglang_eagle31.tools.tune.answer import Answer, Budget, Options, answer, turns_of
from sglang_eagle31.tools.tune.report import Report
from sglang_eagle31.tools.tune.run import show
from sglang_eagle31.tools.tune.shapes import candidates, contenders, probes
from sglang_eagle31.tools.tune.turns import levelled

SERVER = {"model": "m", "head": "h", "variant": "eagle3.1", "device": "cpu", "dtype": "float32", "version": "0"}


def ask(
    regime: str, options: Options | None = None, seconds: float = 1e9, **changes: object
) -> tuple[Simulated, Answer]:
    server = replace(REGIMES[regime], **changes)
    budget = Budget(0.0, seconds, server.clock)
    return server, answer(server, server.limits, 0.0, server.users, options or Options(), budget)


@cache
def usual(regime: str) -> tuple[Simulated, Answer]:
    """`ask` as it is by default."""
    return ask(regime)


def check(server: Simulated, found: Answer) -> None:
    """The pick against the true best of the whole grid."""
    true = {shape: server.gain(shape) for shape in candidates(server.limits)}
    best = max(true.values())
    assert true[found.pick] >= 0.95 * best, f"{found.pick}: {true[found.pick]:.3f} of {best:.3f}"


@pytest.mark.parametrize("regime", REGIMES)
def test_the_pick_is_within_5_percent_of_the_best_shape(regime):
    check(*usual(regime))


@pytest.mark.parametrize(
    "wrong",
    [
        RoundCost(Line(0.03, 0.0), Line(0.0, 0.0)),
        RoundCost(Line(0.03, 0.0), Line(0.02, 0.0)),
        RoundCost(Line(0.003, 0.03), Line(0.0, 0.02)),
    ],
    ids=["all is free", "only steps cost", "only width costs"],
)
def test_a_wrong_fit_would_be_found(monkeypatch, wrong):
    monkeypatch.setattr(RoundCost, "fit_rounds", classmethod(lambda cls, seconds: wrong))
    failed = 0
    for regime in ("cheap verify, good head", "dear verify", "cheap verify, poor head"):
        try:
            check(*ask(regime))
        except AssertionError:
            failed += 1
    assert failed


@pytest.mark.parametrize("regime", ["dead head", "dead head, cheap verify", "dear draft"])
def test_do_not_speculate(regime):
    _, found = usual(regime)
    assert not found.speculate and found.pick == NO_SPECULATION
    assert len(found.realised) == 4 and found.best.gain < 1.03


@pytest.mark.parametrize("regime", REGIMES)
def test_predictions_of_the_whole_grid(regime):
    server, found = usual(regime)
    for one in found.predictions:
        assert one.speedup == pytest.approx(server.gain(one.shape), rel=0.16, abs=0.03)
    errors = [one.speedup / server.gain(one.shape) - 1 for one in found.predictions]
    assert np.median(np.abs(errors)) < 0.06


def test_without_noise_the_fit_is_exact():
    server, found = ask("dear verify, 8 users", noise=0.0, drift=0.0)
    assert found.learnt.batch == 8 and found.learnt.misfit < 1e-6
    for shape in candidates(LIMITS):
        assert found.learnt.cost.round(8, shape) == pytest.approx(DEAR_VERIFY.round(8, shape), rel=1e-4)
    plain = DEAR_VERIFY.round(8, NO_SPECULATION)
    assert found.learnt.verify_slope == pytest.approx(8 * 0.006 / plain, rel=1e-3)
    assert max(found.learnt.missed(_confirmed(server)).values()) < 1e-4


def _confirmed(server):
    from sglang_eagle31.tools.tune.turns import run_cycles

    shapes = [NO_SPECULATION, Shape(3, 2, 8), Shape.chain(4)]
    return run_cycles(server, shapes, [0, 1], lambda _: True, server.clock, lambda: None)


def test_a_tree_that_accepts_less_than_its_table_says():
    class Duller(Simulated):
        """Of a tree's accepted drafts a fifth is lost, as if the draft chose its nodes badly."""

        def outcome(self, shape, batch):
            found = super().outcome(shape, batch)
            if shape.topk > 1 and self.random.random() < 0.2:
                return type(found)(np.ones(batch, np.int64), 0 * found.tried, 0 * found.hit)
            return found

    server = Duller(DEAR_VERIFY, falling(0.7, 0.05, 0.3))
    found = answer(server, LIMITS, 0.0, 1, Options(), Budget(0.0, 1e9, server.clock))
    assert found.best.shape.is_chain  # confirmed against the trees, which are predicted too high


def test_acceptance_of_chains_is_that_of_chains():
    class Unsure(Simulated):
        """A third of the trees misses at once."""

        def outcome(self, shape, batch):
            if shape.topk > 1 and self.random.random() < 0.33:
                return Outcome.tree([[]] * batch, [shape.topk] * batch, shape.steps, shape.topk)
            return super().outcome(shape, batch)

    server = Unsure(DEAR_VERIFY, falling(0.7, 0.05, 0.3), users=2)
    learnt = answer(server, LIMITS, 0.0, 2, Options(), Budget(0.0, 1e9, server.clock)).learnt
    assert learnt.chains[0, 0] == pytest.approx(0.7, abs=0.04)
    assert learnt.trees[0, 0] == pytest.approx(0.47, abs=0.04)


def test_a_turn_of_each_shape_in_alternating_order():
    server, found = ask("dear verify", Options(turns=2))
    first = probes(candidates(LIMITS))
    assert server.ran[:10] == [*first, *reversed(first)]
    confirmed = [one.shape for one in found.realised]
    assert server.ran[10:] == [*confirmed, *reversed(confirmed)]
    assert len(server.ran) == turns_of(LIMITS, Options(turns=2))
    assert found.requests == 2 * len(server.ran)


def test_a_machine_that_slows_down_favours_no_shape():
    true = np.array([1.0, 2.0, 3.0, 5.0])
    slower = np.array([1.0, 1.5, 0.7, 2.0, 1.1])[:, None]
    found = levelled(true * slower)
    assert found / found[0] == pytest.approx(true)
    disturbed = true * slower
    disturbed[0, 2] *= 1.5  # one turn
    found = levelled(disturbed)
    assert found / found[0] == pytest.approx(true, rel=0.01)
    steadily = 1.01 ** np.array([[0, 1, 2, 3], [7, 6, 5, 4], [8, 9, 10, 11]])
    found = levelled(true * steadily)
    assert found / found[0] == pytest.approx(true)


def test_the_budget_shortens_turns_and_is_said():
    server, found = ask("dear verify", Options(turns=5), seconds=300.0)
    assert 1 < found.cycles < 5 and server.now < 300
    assert any("of 5 turns of confirming" in note for note in found.notes)


def test_the_measured_grid_and_its_time():
    server, found = ask("dear verify", Options(turns=2, grid=True))
    assert found.grid is not None and len(found.grid) == len(candidates(LIMITS))
    gains = {one.shape: one.gain for one in found.grid}
    assert found.of_best == gains[found.pick] / max(gains.values()) and 0.9 < found.of_best <= 1
    worst = min(gains, key=lambda shape: gains[shape])
    assert replace(found, pick=worst).of_best == gains[worst] / max(gains.values()) < 0.8
    estimated = ask("dear verify", Options(turns=2))[1].grid_seconds
    assert found.grid_seconds == pytest.approx(estimated, rel=0.15)
    assert found.seconds < 0.45 * found.grid_seconds


def test_only_listed_shapes_on_a_gpu():
    listed = (Shape(6, 4, 16), Shape(3, 4, 16), Shape(1, 4, 4))
    server, found = ask("cheap verify, good head", limits=replace(LIMITS, listed=listed, any=False))
    assert set(server.ran) == {NO_SPECULATION, *listed}
    assert found.pick == Shape(6, 4, 16)


def test_probes_tell_costs_apart():
    assert [str(shape) for shape in probes(candidates(LIMITS))] == ["0,1,1", "1,1,2", "6,1,7", "6,4,8", "6,4,16"]
    chains = Limits(Shape.chain(6), (Shape.chain(6),), True, "on")
    assert [str(shape) for shape in probes(candidates(chains))] == ["0,1,1", "1,1,2", "6,1,7", "4,1,5"]
    for most in (Shape(5, 4, 16), Shape(3, 2, 6), Shape(8, 8, 64)):
        shapes = candidates(Limits(most, (most,), True, "on"))
        assert all(
            shape.steps <= most.steps and shape.topk <= most.topk and shape.draft_tokens <= most.draft_tokens
            for shape in shapes
        )
        assert most in probes(shapes) and len(probes(shapes)) <= 5
        rows = [[1, s.draft_tokens, s.steps, s.steps * s.topk, s.steps > 0] for s in probes(shapes)]
        assert np.linalg.matrix_rank(np.array(rows, float)) == 5


def test_both_kinds_are_confirmed_when_they_are_close():
    _, found = usual("dear verify")
    predictions = [replace(one, speedup=1.5 if one.shape.topk > 1 else 1.4) for one in found.predictions]
    assert [one.shape.is_chain for one in contenders(predictions, 3)] == [False, True, False]
    far = [replace(one, speedup=1.5 if one.shape.topk > 1 else 1.1) for one in found.predictions]
    assert not any(one.shape.is_chain for one in contenders(far, 3))


def shown(report: Report) -> str:
    console = Console(width=150)
    with console.capture() as capture:
        show(report, console)
    return capture.get()


def test_the_report_of_several_concurrencies():
    answers = [usual("dear verify")[1], replace(usual("dear verify, 8 users")[1], temperature=0.8)]
    report = Report(LIMITS, Options(), answers, SERVER)
    text = shown(report)
    assert f"temperature 0, concurrency 1: {answers[0].pick}, predicted 1." in text
    assert answers[0].pick.flags() in text
    assert "temperature 0.8, concurrency 8" in text
    assert "acceptance by depth, of chains: 0.7" in text and "plain steps: on a CPU" in text
    assert "needed to measure every shape as often, so this is" in text
    assert "the guard of this server is on" in text
    record = json.loads(json.dumps(report.to_json()))
    assert 0.1 < record["fraction_of_grid"] < 0.5
    assert record["answers"][0]["flags"] == answers[0].pick.flags()
    assert len(record["answers"][0]["predicted"]) == len(candidates(LIMITS))
    observing = replace(report, limits=replace(LIMITS, mode="observe"))
    assert "is observe; with --eagle31-guard on it" in shown(observing)


def test_a_row_for_each_temperature():
    cold = usual("dear verify")[1]
    hot = replace(ask("dear verify", table=falling(0.5, 0.05, 0.3))[1], temperature=0.8)
    text = shown(Report(LIMITS, Options(), [cold, hot], SERVER))
    first = [one.learnt.chains[0, 0] for one in (cold, hot)]
    assert f"by temperature: {first[0]:.2f} at 0, {first[1]:.2f} at 0.8; use the row" in text


def test_the_report_that_says_no():
    report = Report(LIMITS, Options(), [usual("dead head")[1]], SERVER)
    text = shown(report)
    assert "do not speculate" in text and "--speculative" not in text and "guard" not in text
    assert "of first drafts are right" in text
    assert report.to_json()["recommended_flags"] == ""


def test_rules_name_their_numbers():
    _, found = usual("dear draft")
    text = shown(Report(LIMITS, Options(), [replace(found, temperature=1.2, concurrency=64)], SERVER))
    assert "so only short drafts can pay" in text and "less than about 3 B" in text
    assert "at temperature 1.2" in text and "at concurrency 64 a batch fills the machine" in text
    _, short = ask("cheap verify, good head", answer=16, table=falling(0.9, 0.01, 0.3))
    text = shown(Report(LIMITS, Options(), [short], SERVER))
    assert "answers are short (16 tokens)" in text and "width is almost free" in text
    assert "a good fit for speculation" in text


def test_one_setting_for_all_rows_has_the_largest_mean_gain():
    one, many = usual("dear verify")[1], usual("dear verify, 8 users")[1]
    report = Report(LIMITS, Options(), [one, many], SERVER)
    shape = report.recommended()
    means = {each: report.gains(one)[each] * report.gains(many)[each] for each in candidates(LIMITS)}
    assert means[shape] == max(means.values()) and shape.steps
    assert f"one setting for all rows, by the mean gain (predicted where not confirmed): {shape.flags()}" in shown(
        report
    )
    assert replace(report, options=Options(margin=0.5)).recommended() == NO_SPECULATION
    dead = usual("dead head")[1]
    assert Report(LIMITS, Options(), [many, dead], SERVER).recommended() == NO_SPECULATION
