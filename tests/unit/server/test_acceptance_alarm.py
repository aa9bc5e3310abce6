"""The alarm on simulated traffic: silent when nothing changes, and the right cause soon after something does."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from sglang_eagle31.server.metrics.alarm import Alarm
from sglang_eagle31.server.metrics.evidence import ALL, BLOCK, DEEP, FIRST, Block, Sums
from sglang_eagle31.server.metrics.fingerprint import Templates
from sglang_eagle31.server.metrics.meter import Meter, Row
from sglang_eagle31.server.metrics.rules import CAUSES, Finding

CHAT, RAW = [1, 50, 1], [50]
"""Prompts of two templates."""


class Traffic:
    """Requests of varied acceptance through a meter, one after the other."""

    def __init__(self, seed: int = 0, steps: int = 5, nodes: int = 5) -> None:
        self.chance, self.meter = random.Random(seed), Meter(Templates({1}, lambda token: f"<{token}>"), steps)
        self.steps, self.nodes, self.sent = steps, nodes, 0

    @property
    def alarm(self) -> Alarm:
        return self.meter.alarm

    def request(self, level: float, prompt: list[int], context: int = 100, deep: float | None = None) -> None:
        """One of 3 to 60 rounds, whose acceptance a token varies widely around ``level`` from request to request."""
        own = self.chance.betavariate(6 * level, 6 * (1 - level))
        tally = self.meter.begin(prompt)
        rounds = self.chance.randint(3, 60)
        for index in range(rounds):
            accepted = 0
            while accepted < self.steps and self.chance.random() < (own if not accepted or deep is None else deep):
                accepted += 1
            ended = False if index == rounds - 1 else None
            self.meter.round(
                [Row(tally, context, accepted, accepted, self.steps, accepted + 1, ended)], self.steps, self.nodes
            )
        self.sent += 1

    def until_raised(self, send: Callable[[], None], most: int = 400) -> int:
        """Requests until something is raised."""
        for sent in range(1, most + 1):
            send()
            if self.alarm.raised is not None:
                return sent
        raise AssertionError("nothing was raised")

    def causes(self) -> str | None:
        return None if self.alarm.raised is None else self.alarm.raised.cause


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    caplog.set_level(logging.INFO, "sglang_eagle31")
    yield lambda: [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("level", [0.35, 0.6, 0.8])
def test_unchanged_traffic_is_silent(level: float, warnings: Callable[[], list[str]]) -> None:
    traffic = Traffic()
    for index in range(500):
        traffic.request(level, CHAT if index % 3 else RAW, context=(100, 700, 3000)[index % 3])
    assert warnings() == [] and traffic.alarm.times == 0 and traffic.causes() is None


def test_ordinary_differences_are_silent(warnings: Callable[[], list[str]]) -> None:
    """From code to chat and back, longer contexts a little worse, a template a little worse."""
    traffic = Traffic()
    for index in range(600):
        level = (0.88 if index // 150 % 2 == 0 else 0.7) * (0.85 if index % 4 == 0 else 1)
        traffic.request(level, RAW if index % 4 == 0 else CHAT, context=100 if index % 2 else 5000)
    assert warnings() == []


def test_a_dead_head_from_the_start(warnings: Callable[[], list[str]]) -> None:
    traffic = Traffic()
    assert traffic.until_raised(lambda: traffic.request(0.02, CHAT)) <= 40
    for _ in range(200):
        traffic.request(0.02, CHAT)
    assert traffic.causes() == "dead" and len(warnings()) == 1
    assert "audit" in warnings()[0] and "collapsed" in warnings()[0]


def test_a_poor_head_is_not_dead(warnings: Callable[[], list[str]]) -> None:
    traffic = Traffic()
    for _ in range(300):
        traffic.request(0.25, CHAT)
    assert warnings() == []


def test_few_requests_prove_nothing(warnings: Callable[[], list[str]]) -> None:
    traffic = Traffic()
    for _ in range(7):
        traffic.request(0.02, CHAT)
    assert warnings() == []


def test_a_new_template(warnings: Callable[[], list[str]]) -> None:
    traffic = Traffic()
    for _ in range(150):
        traffic.request(0.75, CHAT)
    assert traffic.until_raised(lambda: traffic.request(0.3, RAW)) <= 60
    raised = traffic.alarm.to_json()
    assert raised["cause"] == "template" and "..." in raised["text"] and "BOS" in raised["text"]
    assert raised["value"] < 0.6 * raised["reference"]
    for index in range(200):  # it stands, and is not told again
        traffic.request(0.75 if index % 2 else 0.3, CHAT if index % 2 else RAW)
    assert traffic.causes() == "template" and len(warnings()) == 1


def test_only_long_contexts(warnings: Callable[[], list[str]]) -> None:
    traffic = Traffic()
    lengths = (100, 3000, 20000, 40000)
    for index in range(400):
        context = lengths[index % 4]
        traffic.request(0.25 if context > 16384 else 0.75, CHAT, context)
    assert traffic.causes() == "context" and len(warnings()) == 1
    assert "16384 tokens of context on" in warnings()[0]


def test_a_fall_against_the_level_before_and_its_end(
    warnings: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    traffic = Traffic()
    for _ in range(200):
        traffic.request(0.75, CHAT)
    assert traffic.until_raised(lambda: traffic.request(0.25, CHAT)) <= 60
    assert traffic.causes() == "fall" and traffic.alarm.raised is not None
    reference = traffic.alarm.raised.reference
    for _ in range(300):  # the level before is kept: what is bad does not become normal
        traffic.request(0.25, CHAT)
    assert traffic.causes() == "fall" and traffic.alarm.raised.reference == pytest.approx(reference, abs=0.05)
    for _ in range(100):
        traffic.request(0.75, CHAT)
    assert traffic.causes() is None and len(warnings()) == 1
    assert sum("recovered" in record.getMessage() for record in caplog.records) == 1
    assert traffic.alarm.to_json() == {"cause": None, "times": 1}


def test_hysteresis(warnings: Callable[[], list[str]]) -> None:
    """Between the thresholds a raised alarm stands and a silent server stays silent."""
    traffic = Traffic()
    for _ in range(200):
        traffic.request(0.8, CHAT)
    for _ in range(200):
        traffic.request(0.8 * 0.68, CHAT)
    assert warnings() == []
    other = Traffic()
    for _ in range(200):
        other.request(0.8, CHAT)
    other.until_raised(lambda: other.request(0.2, CHAT))
    for _ in range(200):
        other.request(0.8 * 0.57, CHAT)
    assert other.causes() == "fall" and other.alarm.times == 1


def test_a_shift_of_traffic_is_no_fall(warnings: Callable[[], list[str]]) -> None:
    """Two templates of different levels, both above the threshold to each other, that change places."""
    traffic = Traffic()
    for index in range(300):
        traffic.request(*((0.85, CHAT) if index % 10 else (0.6, RAW)))
    for index in range(300):
        traffic.request(*((0.6, RAW) if index % 10 else (0.85, CHAT)))
    assert warnings() == []


def test_a_broken_feedback_is_told_of_chains_only(warnings: Callable[[], list[str]]) -> None:
    chain, tree = Traffic(nodes=5), Traffic(nodes=16)
    for _ in range(150):
        chain.request(0.7, CHAT, deep=0.01)
        tree.request(0.7, CHAT, deep=0.01)
    assert chain.causes() == "feedback" and "fed back" in warnings()[0]
    assert tree.causes() is None


def test_fewer_steps_are_no_fall(warnings: Callable[[], list[str]]) -> None:
    traffic = Traffic(steps=5)
    for _ in range(200):
        traffic.request(0.75, CHAT)
    traffic.steps = traffic.nodes = 1
    for _ in range(200):
        traffic.request(0.75, CHAT)
    assert warnings() == []


def test_sums_of_blocks() -> None:
    blocks = []
    for accepted in ([3, 0, 1], [5, 5], [0]):
        block = Block()
        for count in accepted:
            block.add(count, 5, chain=True)
        blocks.append(block)
    assert [(b.rounds, b.first, b.tried, b.accepted) for b in blocks] == [(3, 2, 7, 4), (2, 2, 10, 10), (1, 0, 1, 0)]
    assert [(b.deep_tried, b.deep_accepted) for b in blocks] == [(4, 2), (8, 8), (0, 0)]
    sums = Sums()
    for block in blocks:
        sums.add(block)
    assert sums.ratio(ALL) == 14 / 18 and sums.ratio(FIRST) == 4 / 6 and sums.ratio(DEEP) == 10 / 12
    n, x = np.array([7, 10, 1]), np.array([4, 10, 0])
    between = 3 / 2 * ((x - 14 / 18 * n) ** 2).sum() / 18**2
    assert sums.variance(ALL) == pytest.approx(max(between, 15 / 20 * 5 / 20 / 18))
    sums.add(blocks[0], -1)
    assert sums.blocks == 2 and sums.trials(ALL) == 11


def test_the_interval_holds_its_level_with_rounds_that_are_alike() -> None:
    """Of 95 % intervals over requests of varied acceptance, about 95 % hold the mean; binomial ones would not."""
    generator = np.random.default_rng(0)
    inside, narrow, runs = 0, 0, 400
    for _ in range(runs):
        sums = Sums()
        for own in generator.beta(1.5, 1.5, 60):
            block = Block(rounds=BLOCK, tried=BLOCK, accepted=int(generator.binomial(BLOCK, own)))
            sums.add(block)
        low, high = sums.bounds(ALL, 1.96)
        inside += low <= 0.5 <= high
        narrow += abs(sums.ratio(ALL) - 0.5) <= 1.96 * (0.25 / sums.trials(ALL)) ** 0.5
    assert 0.91 <= inside / runs <= 0.985 and narrow / runs < 0.6


def test_every_cause_has_words() -> None:
    traffic = Traffic()
    traffic.meter.begin(CHAT)
    texts = {traffic.alarm.text(Finding(cause, 1, 0.1, 0.7, True, False)) for cause in CAUSES}
    assert len(texts) == len(CAUSES) and all("fix: " in text for text in texts)
