"""What EAGLE31 runs, in `/server_info`.

Target: sglang.srt.utils.common.build_server_info
Why: a plugin that failed silently looks healthy; the facts must be readable on the running server.
How: after SGLang built its answer, the key `eagle31` is added for a server that runs EAGLE31.
Upstream: SGLang's answer has no place for plugins (0.5.23).
Remove when: SGLang lets a plugin add to the server's metadata.
"""

from __future__ import annotations

from typing import Any

from sglang_eagle31.patches._seam import Seam


def add_facts(result: dict[str, Any], server_args: Any, scheduler_info: dict[str, Any]) -> dict[str, Any]:
    """AFTER hook: add the facts of the staged head."""
    from sglang_eagle31.server.resolve import facts_of

    facts = facts_of(server_args)
    return result if facts is None else {**result, "eagle31": facts}


SEAM = Seam(
    "sglang.srt.utils.common.build_server_info",
    ("server_args", "scheduler_info"),
    "AFTER",
    "eagle31",
    add_facts,
)
