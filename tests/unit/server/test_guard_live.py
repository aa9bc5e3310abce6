"""The guard around rounds of a made-up worker: what it runs, what it learns, and what does not count."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_eagle31.maths.shape import NO_SPECULATION, Shape
from sglang_eagle31.server.guard import live
from sglang_eagle31.server.guard.backlog import Backlog, Unread
from sglang_eagle31.server.guard.evidence import Outcome
from sglang_eagle31.server.guard.live import Guard
from sglang_eagle31.server.guard.policy import Policy
from sglang_eagle31.server.guard.prepared import prepared

CONFIGURED = Shape.chain(5)
Params = dict[str, Any] | None


class FakeSwitch:
    """Notes what it is told."""

    def __init__(self, everywhere: bool = True, plain: bool = True) -> None:
        self.everywhere, self.plain = everywhere, plain
        self.running, self.ran = CONFIGURED, []  # type: Shape, list[Shape]
        self.drafting = False

    def run(self, shape: Shape) -> None:
        self.running = shape
        self.ran.append(shape)

    def begin(self, draft_input: Any) -> None:
        self.drafting = True

    def end(self) -> None:
        self.drafting = False


class Told(Policy):
    """Chooses as told, and notes what it is told."""

    def __init__(self, everywhere: bool = True) -> None:
        super().__init__(prepared(CONFIGURED, everywhere))
        self.next: Shape = CONFIGURED
        self.observed: list[tuple[int, Shape, Outcome, float]] = []
        self.learnt: list[tuple[int, Shape, Outcome, float]] = []

    def choose(self, batch: int) -> Shape:
        return self.next

    def observe(self, batch: int, shape: Shape, outcome: Outcome, seconds: float) -> None:
        self.observed.append((batch, shape, outcome, seconds))

    def learn(self, batch: int, shape: Shape, outcome: Outcome, seconds: float) -> None:
        self.learnt.append((batch, shape, outcome, seconds))


class Clock:
    """Seconds, as the test sets them."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(live, "time", made)
    return made


def batch_of(params: Sequence[Params], extend: bool = False, idle: bool = False, mixed: bool = False) -> Any:
    mode = SimpleNamespace(is_extend=lambda: extend, is_idle=lambda: idle)
    reqs = [
        SimpleNamespace(rid=str(row), sampling_params=SimpleNamespace(custom_params=one))
        for row, one in enumerate(params)
    ]
    lengths = torch.full((len(reqs),), 11)
    return SimpleNamespace(
        forward_mode=mode, is_extend_in_batch=mixed, reqs=reqs, seq_lens_cpu=lengths, spec_info="draft input"
    )


class Scene:
    """A guard whose rounds take as many seconds as asked and accept as many drafts as asked."""

    def __init__(self, clock: Clock, mode: str = "on", agree: Any = lambda shape: shape, **switch: bool) -> None:
        self.clock, self.switch = clock, FakeSwitch(**switch)
        self.policy = Told(self.switch.everywhere)
        self.guard = Guard("worker", self.switch, self.policy, mode, agree)
        self.forwarded: list[tuple[Any, ...]] = []

    def round(self, *params: Params, accepted: Sequence[int] = (2,), seconds: float = 1.0, **kind: bool) -> Shape:
        def forward(batch: Any, *args: Any, **kwargs: Any) -> Any:
            self.forwarded.append((*args, kwargs))
            self.clock.now += seconds
            drafts = [one if self.switch.running.steps else 0 for one in accepted]
            return SimpleNamespace(accept_lens=torch.tensor(drafts) + 1)

        self.guard.around(forward, batch_of(params or (None,), **kind), "more", key=1)
        return self.switch.running


def test_a_round_runs_in_the_chosen_shape_and_is_observed_once_it_is_over(clock: Clock) -> None:
    scene = Scene(clock)
    assert scene.round(seconds=3.0) == CONFIGURED and scene.policy.observed == []
    scene.policy.next = NO_SPECULATION
    assert scene.round(seconds=2.0) == NO_SPECULATION
    assert scene.forwarded == [("more", {"key": 1})] * 2
    ((size, shape, outcome, seconds),) = scene.policy.observed
    assert (size, shape, seconds) == (1, CONFIGURED, 3.0)
    assert outcome.tokens.tolist() == [3] and outcome.tried[:, 0].tolist() == [1, 1, 1, 0, 0]
    scene.round()
    assert scene.policy.observed[1][1:] == (NO_SPECULATION, scene.policy.observed[1][2], 2.0)
    assert scene.guard.to_json()["rounds"] == {"plain": 1, "drafted": 1}


@pytest.mark.parametrize("kind", ["extend", "idle", "mixed"])
def test_a_round_before_a_prefill_has_no_time(clock: Clock, kind: str) -> None:
    scene = Scene(clock)
    scene.round()
    ran = len(scene.switch.ran)
    scene.round(seconds=50.0, **{kind: True})
    assert len(scene.switch.ran) == ran  # a prefill runs in whatever shape there is
    scene.round()
    scene.round()
    assert [seconds for *_, seconds in scene.policy.observed] == [1.0]
    assert scene.guard.to_json()["rounds"]["drafted"] == 2  # counted all the same


def test_capped_requests_say_nothing_about_acceptance(clock: Clock) -> None:
    scene = Scene(clock)
    scene.round({"speculative_num_steps": 1}, None, {"speculative_num_steps": 5}, accepted=(1, 4, 0))
    scene.round({"speculative_num_steps": 0}, {"speculative_num_steps": 1}, accepted=(0, 1))
    scene.round()
    (size, shape, outcome, _), (_, shorter, one, _) = scene.policy.observed
    assert (size, shape) == (3, CONFIGURED)
    assert outcome.tokens.tolist() == [5, 1] and outcome.tried[0, 0] == 2
    assert shorter == Shape.chain(1) and one.tokens.tolist() == [2]


def test_a_batch_of_capped_requests_only_is_counted_and_not_observed(clock: Clock) -> None:
    scene = Scene(clock, everywhere=False, plain=False)
    assert scene.round({"speculative_num_steps": 2}, accepted=(2,)) == CONFIGURED
    scene.guard.processed([2])
    scene.round()
    assert scene.policy.observed == [] and scene.guard.to_json()["rounds"]["drafted"] == 1


def test_observing_never_changes_the_shape(clock: Clock) -> None:
    scene = Scene(clock, mode="observe")
    scene.policy.next = NO_SPECULATION
    assert [scene.round() for _ in range(3)] == [CONFIGURED] * 3
    assert len(scene.policy.observed) == 2
    assert scene.round({"speculative_num_steps": 0}) == NO_SPECULATION  # what requests ask for is done in every mode


@pytest.mark.parametrize("ask", [{"speculative_num_steps": 0}, {"speculative_num_steps": 2}, {"eagle31_shape": "0"}])
def test_where_there_is_no_other_shape_the_configured_one_runs(clock: Clock, ask: Params) -> None:
    assert Scene(clock, mode="observe", everywhere=False, plain=False).round(ask) == CONFIGURED
    assert Scene(clock, everywhere=False, plain=True).round(ask) == NO_SPECULATION


def test_a_pinned_shape_is_run_and_learnt_from_but_not_judged(clock: Clock) -> None:
    scene, pin = Scene(clock), {"eagle31_shape": "4,1,5"}
    assert scene.round(pin, pin, accepted=(1, 1)) == Shape.chain(4)
    assert scene.round(pin, None, accepted=(1, 1)) == CONFIGURED
    assert scene.round({"eagle31_shape": "6,1,7"}) == CONFIGURED  # deeper than configured
    scene.round()
    assert [shape for _, shape, *_ in scene.policy.learnt] == [Shape.chain(4)]
    assert [shape for _, shape, *_ in scene.policy.observed] == [CONFIGURED] * 2


def test_ranks_run_what_the_first_one_chose(clock: Clock) -> None:
    asked: list[Shape] = []

    def agree(shape: Shape) -> Shape:
        asked.append(shape)
        return Shape.chain(2)

    scene = Scene(clock, agree=agree)
    assert scene.round() == Shape.chain(2) and asked == [CONFIGURED]
    scene.round()
    assert scene.policy.observed[0][1] == Shape.chain(2)


def test_lengths_that_come_late_belong_to_the_oldest_round(clock: Clock) -> None:
    scene = Scene(clock, everywhere=False)
    scene.round(None, None, accepted=(9, 9), seconds=1.0)
    scene.policy.next = NO_SPECULATION
    scene.round(None, None, seconds=2.0)
    assert scene.policy.observed == []  # what the device gave is not read
    scene.guard.processed([4, 0])
    scene.policy.next = CONFIGURED
    scene.round(None, None, seconds=3.0)
    scene.guard.processed([0, 0])
    scene.round(None, None)
    scene.guard.processed([2, 2])
    scene.guard.processed([1, 1])  # of the round that still runs: its time is not known yet
    told = [(shape, outcome.tokens.tolist(), seconds) for _, shape, outcome, seconds in scene.policy.observed]
    assert told == [(CONFIGURED, [5, 1], 1.0), (NO_SPECULATION, [1, 1], 2.0), (CONFIGURED, [3, 3], 3.0)]
    scene.guard.processed([7, 7])  # of no round: a server's own warm-up
    scene.round(None, None)
    assert len(scene.policy.observed) == 4


def verify_input() -> Any:
    chain = torch.tensor([[1, 2, 3, 4, 5, -1]] * 2)
    return SimpleNamespace(positions=(torch.arange(6).repeat(2, 1) + 40).flatten(), retrieve_next_token=chain)


def test_a_draft_is_cut_for_the_requests_that_cap_it(clock: Clock) -> None:
    scene = Scene(clock)
    scene.round({"speculative_num_steps": 2}, None, accepted=(2, 5))
    assert scene.switch.drafting
    made = verify_input()
    assert scene.guard.drafted(made, "numbers") is made and not scene.switch.drafting
    assert made.retrieve_next_token.tolist() == [[1, 2, -1, -1, -1, -1], [1, 2, 3, 4, 5, -1]]
    assert scene.guard.tree == (made, "numbers") and scene.guard.tree[0] is made


def test_what_the_draft_did_not_read_is_read_before_the_next_draft(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, read = Scene(clock), []
    monkeypatch.setattr(live.backlog, "read", lambda worker, batch, unread: read.append((worker, unread)))
    scene.guard.backlog = Backlog()
    scene.policy.next = NO_SPECULATION
    scene.round()
    tokens, states = torch.tensor([7]), torch.zeros(1, 2)
    result = SimpleNamespace(
        new_seq_lens=torch.tensor([11]),
        next_token_ids=tokens,
        logits_output=SimpleNamespace(hidden_states=states),
    )
    scene.guard.skipped(batch_of([None]), result)
    scene.round()
    assert read == []  # another plain round
    scene.policy.next = CONFIGURED
    scene.round()
    assert read == [("worker", {0: [Unread(10, tokens, states, 0)]})]
    scene.round()
    assert len(read) == 1
