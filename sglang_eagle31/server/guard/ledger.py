"""What the guard did, as JSON and in Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sglang_eagle31.maths.shape import Shape
from sglang_eagle31.server.guard.evidence import Outcome
from sglang_eagle31.server.guard.policy import Policy

PREFIX = "sglang:eagle31_guard_"
EVERY = 16
"""Rounds between two updates of the gauges."""


class Ledger:
    """Rounds of one scheduler, and sums of what their drafts tried and hit."""

    def __init__(self, policy: Policy, mode: str, everywhere: bool) -> None:
        self.policy, self.mode, self.everywhere = policy, mode, everywhere
        self.plain = self.drafted = 0
        self.tried, self.hit = np.zeros(policy.size), np.zeros(policy.size)
        self.metrics: Metrics | None = None

    def count(self, shape: Shape, outcome: Outcome | None) -> None:
        """One round, whoever chose its shape."""
        if shape.steps:
            self.drafted += 1
        else:
            self.plain += 1
        if outcome is not None and shape.steps:
            depths, ranks = outcome.tried.shape
            self.tried[:depths, :ranks] += outcome.tried
            self.hit[:depths, :ranks] += outcome.hit
        if self.metrics is not None and (self.plain + self.drafted) % EVERY == 0:
            self.metrics.update(self)

    def export(self, labels: Mapping[str, str]) -> None:
        """Keep Prometheus up to date from now on; ``labels`` are SGLang's."""
        self.metrics = Metrics(labels)

    @property
    def fallback_ratio(self) -> float | None:
        """Rounds without a draft by all rounds."""
        rounds = self.plain + self.drafted
        return self.plain / rounds if rounds else None

    def to_json(self) -> dict[str, Any]:
        """The record in ``/server_info``; docs/guard.md explains it."""
        policy = self.policy
        batch = policy.last_batch
        return {
            "mode": self.mode,
            "configured": str(policy.shapes[0]),
            "shapes": [str(shape) for shape in policy.shapes],
            "any": self.everywhere,
            "rounds": {"plain": self.plain, "drafted": self.drafted},
            "fallback_ratio": self.fallback_ratio,
            "changes": policy.changes,
            "acceptance": policy.evidence.table().tolist(),
            "tried": self.tried.tolist(),
            "hit": self.hit.tolist(),
            "seconds": policy.times.to_json(),
            "running": {label: str(regime.running) for label, regime in policy.ranges()},
            "predicted": {str(shape): gain for shape, gain in policy.gains(batch).items()} if batch else {},
            "realised": policy.realised(batch) if batch else None,
        }


class Metrics:
    """The guard's part of Prometheus, with SGLang's labels first."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        # After SGLang has set PROMETHEUS_MULTIPROC_DIR, which the import reads.
        from prometheus_client import Counter, Gauge

        self.own, names = tuple(map(str, labels.values())), tuple(labels)
        self.done = {"plain": 0, "drafted": 0}
        self.rounds = Counter(PREFIX + "rounds", "Decode rounds, without and with a draft.", (*names, "kind"))
        gauges = {
            "fallback_ratio": "Rounds without a draft by all rounds, since the start.",
            "num_steps": "Draft steps of the shape that runs; 0 is no speculation.",
            "num_draft_tokens": "Tokens verified at once of the shape that runs.",
            "realised_gain": "Tokens per time of the shape that runs, by those without speculation.",
        }
        self.gauges = {
            name: Gauge(PREFIX + name, text, names, multiprocess_mode="mostrecent") for name, text in gauges.items()
        }

    def update(self, ledger: Ledger) -> None:
        """Bring Prometheus up to the ledger."""
        for kind, count in (("plain", ledger.plain), ("drafted", ledger.drafted)):
            self.rounds.labels(*self.own, kind).inc(count - self.done[kind])
            self.done[kind] = count
        batch = ledger.policy.last_batch
        running = ledger.policy.regime(batch).running if batch else ledger.policy.shapes[0]
        values = {
            "fallback_ratio": ledger.fallback_ratio,
            "num_steps": running.steps,
            "num_draft_tokens": running.draft_tokens,
            "realised_gain": ledger.policy.realised(batch) if batch else None,
        }
        for name, value in values.items():
            if value is not None:
                self.gauges[name].labels(*self.own).set(value)
