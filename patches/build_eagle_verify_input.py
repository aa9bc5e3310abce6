"""The tree of a draft, between drafting and verification.

Target: sglang.srt.speculative.eagle_worker_common.build_eagle_verify_input
Why: which rank of its siblings a node had, by which acceptance of trees is learnt, is not in what verification gets;
    and a request that caps its drafts shares the round of others.
How: around the call in SGLang's EAGLE worker, only where a guard is attached: the numbers of the chosen candidates are
    kept by the guard, and the children of nodes at a request's cap are taken off.
Upstream: no per-request depth in SGLang (0.5.23).
Remove when: SGLang has a per-request number of steps, and reports the rank of accepted nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_eagle31.patches._seam import Seam

GUARDS: list[Any] = []
"""The guard of this process, once it is attached."""


def keep_choice(
    build_eagle_verify_input: Callable[..., Any],
    batch: Any,
    draft_input: Any,
    parent_list: Any,
    top_scores_index: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """AROUND hook: SGLang's verify input, cut by the guard."""
    built = build_eagle_verify_input(batch, draft_input, parent_list, top_scores_index, *args, **kwargs)
    if not GUARDS or batch.forward_mode.is_idle():
        return built
    return GUARDS[-1].drafted(built, top_scores_index)


SEAM = Seam(
    "sglang.srt.speculative.eagle_worker_common.build_eagle_verify_input",
    ("batch", "draft_input", "parent_list", "top_scores_index"),
    "AROUND",
    "eagle31",
    keep_choice,
)
