"""Verify rounds, where the scheduler commits them.

Target: sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor.process_batch_result_decode
Why: acceptance is counted from what SGLang has on the host anyway; the device is asked nothing, no synchronisation is
    added.
How: around SGLang's processing, in the scheduler of an EAGLE31 server: before it, which requests still run and how long
    their answers are; after it, accepted drafts, answers and ends.
Upstream: SGLang's counters are gauges of the last interval's mean (0.5.23); by position:
    https://github.com/sgl-project/sglang/pull/31750
Remove when: SGLang exports counters of drafts, and of acceptance by position.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_eagle31.patches._seam import Seam

WATCHES: list[Any] = []
"""The watch of this process, once it is attached."""


def count_round(process_batch_result_decode: Callable[..., Any], self: Any, batch: Any, result: Any) -> Any:
    """AROUND hook, put in place by the watch: SGLang's processing, with the round counted."""
    return WATCHES[-1].around(process_batch_result_decode, self, batch, result)


SEAM = Seam(
    "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
    ".process_batch_result_decode",
    ("self", "batch", "result"),
    "USE",
    "eagle31",
)
