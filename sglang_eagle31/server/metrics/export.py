"""The counters in Prometheus; what came since the last time is added, so that nothing is lost or counted twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sglang_eagle31.server.metrics.alarm import Alarm
from sglang_eagle31.server.metrics.counters import CONTEXTS, LENGTHS, Counters, Requests, Totals
from sglang_eagle31.server.metrics.fingerprint import Templates
from sglang_eagle31.server.metrics.names import (
    ALARM,
    GROUPS,
    LENGTH,
    METRICS,
    PARTS,
    POSITIONS,
    PREFIX,
    REQUESTS,
    WHOLE,
)
from sglang_eagle31.server.metrics.rules import CAUSES


class Exporter:
    """The metrics of one scheduler, with SGLang's own labels first."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        # After SGLang has set PROMETHEUS_MULTIPROC_DIR, which the import reads.
        from prometheus_client import Counter, Gauge, Histogram

        self.own, self.done = tuple(map(str, labels.values())), dict[tuple[str, ...], int]()
        self.metrics: dict[str, Any] = {}
        for metric in METRICS:
            given = PREFIX + metric.name, metric.help, (*labels, *metric.labels)
            if metric.kind == "counter":
                self.metrics[metric.name] = Counter(*given)
            elif metric.kind == "gauge":
                self.metrics[metric.name] = Gauge(*given, multiprocess_mode="mostrecent")
            else:
                self.metrics[metric.name] = Histogram(*given, buckets=LENGTHS)

    def update(self, counters: Counters, templates: Templates, alarm: Alarm, lengths: list[float]) -> None:
        """Bring Prometheus up to the counters; ``lengths`` are accept lengths of requests finished since."""
        for name, labels, value in series(counters, templates):
            key = name, *labels
            more = value - self.done.get(key, 0)
            if more > 0 or key not in self.done:  # a stop string may take back committed tokens; Prometheus cannot
                self.metrics[name].labels(*self.own, *labels).inc(max(0, more))
                self.done[key] = max(0, value)
        histogram = self.metrics[LENGTH.name].labels(*self.own)
        for length in lengths:
            histogram.observe(length)
        for cause in CAUSES:
            raised = alarm.raised is not None and alarm.raised.cause == cause
            self.metrics[ALARM.name].labels(*self.own, cause).set(int(raised))


def series(counters: Counters, templates: Templates) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """Name, labels beside SGLang's, and value of every counter; contexts and templates without a round are left out."""
    whole = counters.total()
    yield from _parts(whole)
    numbers = whole.rounds, whole.nodes, whole.offered, whole.used_tokens
    yield from ((metric.name, (), value) for metric, value in zip(WHOLE, numbers, strict=True))
    names = {"context": CONTEXTS, "template": templates.digests}
    for group in GROUPS:
        for index, label in enumerate(names[group]):
            one = counters.total(**{group: index})
            if one.rounds:
                yield from ((f"{name}_by_{group}", (label, *labels), value) for name, labels, value in _parts(one))
    yield from _requests(counters.requests)


def _parts(totals: Totals) -> Iterator[tuple[str, tuple[str, ...], int]]:
    proposed, accepted = totals.proposed, totals.accepted
    values = totals.drafts, sum(proposed), sum(accepted), totals.committed
    yield from ((metric.name, (), value) for metric, value in zip(PARTS, values, strict=True))
    for metric, counts in zip(POSITIONS, (proposed, accepted), strict=True):
        yield from ((metric.name, (str(position),), count) for position, count in enumerate(counts))


def _requests(requests: Requests) -> Iterator[tuple[str, tuple[str, ...], int]]:
    yield REQUESTS.name, ("finished",), requests.finished
    yield REQUESTS.name, ("aborted",), requests.aborted
