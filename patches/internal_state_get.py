"""What this package knows in the scheduler process, in the scheduler's internal state.

Target: sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController.get_internal_state
Why: the numbers are in the scheduler process, and `/server_info` is answered by another.
How: once a part of ours has something to show (acceptance; the probe of `--eagle31-drift-sample`): after SGLang built
    the state, the key `eagle31` with a record of each part is added; `/server_info` shows it under `internal_states`.
Upstream: SGLang's internal state has no place for plugins (0.5.23).
Remove when: SGLang lets a plugin add to the scheduler's internal state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sglang_eagle31.patches._seam import Seam, install

SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {}
"""What to show under which name, in this process."""


def add_sections(result: Any, self: Any, recv_req: Any) -> Any:
    """AFTER hook, put in place by `show`: add the records."""
    result.internal_state["eagle31"] = {name: read() for name, read in SECTIONS.items()}
    return result


def show(name: str, read: Callable[[], dict[str, Any]]) -> list[str]:
    """Show what ``read`` returns; the reasons for which it cannot be, empty when it is."""
    SECTIONS[name] = read
    return install((replace(SEAM, kind="AFTER", handler=add_sections),))


SEAM = Seam(
    "sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController.get_internal_state",
    ("self", "recv_req"),
    "USE",
    "eagle31",
)
