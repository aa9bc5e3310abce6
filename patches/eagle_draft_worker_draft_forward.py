"""Draft probabilities over the target's vocabulary, for rejection sampling on a CPU.

Target: sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker.draft_forward
Why: verification compares them token by token with the target's, and a head with a reduced vocabulary has fewer.
How: after the drafts are made, on a CPU: each probability goes to the target id of its draft id. SGLang's refusal of
    such a head is passed by in `Eagle31Worker.alloc_memory_pool`.
Upstream: "FIXME: support reduced (hot) draft vocab by scattering draft probs" in the same class (0.5.23).
Remove when: SGLang scatters them.
"""

from __future__ import annotations

from typing import Any

from sglang_eagle31.patches._seam import Seam


def spread(result: Any, self: Any, forward_batch: Any) -> Any:
    """AFTER hook: the drafts with their probabilities [B, steps, V]."""
    *drafts, probs = result
    if probs is None or self.hot_token_id is None or probs.device.type != "cpu":
        return result
    from sglang_eagle31.server.cpu.filters import spread_draft_probs

    return (*drafts, spread_draft_probs(probs, self.hot_token_id, self.target_worker.model_config.vocab_size))


SEAM = Seam(
    "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker.draft_forward",
    ("self", "forward_batch"),
    "AFTER",
    "eagle31",
    spread,
)
