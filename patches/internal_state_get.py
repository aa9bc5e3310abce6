"""What the drift probe has seen, in the scheduler's internal state.

Target: sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController.get_internal_state
Why: the numbers are in the scheduler process, and `/server_info` is answered by another.
How: only with `--eagle31-drift-sample`: after SGLang built the state, the key `eagle31` with the probe's record is
    added; `/server_info` shows it under `internal_states`.
Upstream: SGLang's internal state has no place for plugins (0.5.23).
Remove when: SGLang lets a plugin add to the scheduler's internal state.
"""

from __future__ import annotations

from typing import Any

from sglang_eagle31.patches._seam import Seam

PROBES: list[Any] = []
"""The probe of this process, once it is attached."""


def add_drift(result: Any, self: Any, recv_req: Any) -> Any:
    """AFTER hook, put in place by the probe: add its record."""
    result.internal_state["eagle31"] = {"drift": PROBES[-1].to_json()}
    return result


SEAM = Seam(
    "sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController.get_internal_state",
    ("self", "recv_req"),
    "USE",
    "eagle31",
)
