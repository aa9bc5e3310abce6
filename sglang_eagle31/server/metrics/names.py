"""The metrics in Prometheus, one list for the exporter, the page that maps them, and the dashboard's test.

Names are vLLM's with ``sglang:eagle31_spec_decode_`` in the place of ``vllm:spec_decode_`` where there is one with the
same meaning. The library appends ``_total`` to counters, and ``_bucket``, ``_sum``, ``_count`` to the histogram.
"""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "sglang:eagle31_spec_decode_"


@dataclass(frozen=True)
class Metric:
    """One metric; ``labels`` are those beside SGLang's own."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    kind: str = "counter"

    def series(self) -> tuple[str, ...]:
        """The names that a query uses."""
        ends = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}[self.kind]
        return tuple(PREFIX + self.name + end for end in ends)


PARTS = (
    Metric("num_drafts", "Verify rounds of requests that verified a draft."),
    Metric("num_draft_tokens", "Drafted positions: the steps of each draft, however many branches."),
    Metric("num_accepted_tokens", "Drafts accepted by verification."),
    Metric("num_committed_tokens", "Tokens that verify rounds added to answers."),
)
"""Of everything, and again ``_by_context`` and ``_by_template``."""
WHOLE = (
    Metric("num_rounds", "Verify rounds of requests, those without a draft included."),
    Metric("num_tree_nodes", "Drafted tokens verified, all branches counted."),
    Metric("num_offered_tokens", "Drafted positions up to the end of the answer."),
    Metric("num_used_tokens", "Drafts accepted up to the end of the answer."),
)
POSITIONS = (
    Metric("num_draft_tokens_per_pos", "Drafts that reached a position (0 is the first drafted token).", ("position",)),
    Metric(
        "num_accepted_tokens_per_pos", "Drafts accepted at a position (0 is the first drafted token).", ("position",)
    ),
)
GROUPS = ("context", "template")
REQUESTS = Metric("requests", "Requests that ended in a verify round, by outcome.", ("outcome",))
LENGTH = Metric("request_accept_length", "1 + used drafts / rounds of finished requests.", (), "histogram")
ALARM = Metric("acceptance_alarm", "1 while acceptance has collapsed, by likely cause.", ("cause",), "gauge")


def by(metric: Metric, group: str) -> Metric:
    """The same metric apart for each context bucket or template."""
    return Metric(f"{metric.name}_by_{group}", f"By {group}: {metric.help}", (group, *metric.labels), metric.kind)


METRICS = (
    *PARTS,
    *WHOLE,
    *POSITIONS,
    *(by(metric, group) for group in GROUPS for metric in (*PARTS, *POSITIONS)),
    REQUESTS,
    LENGTH,
    ALARM,
)
"""Every metric."""
