"""A request's acceptance rate over the depth that was drafted.

Target: sglang.srt.managers.tokenizer_manager.TokenizerManager._calculate_spec_decoding_metrics
Why: SGLang divides accepted drafts by all nodes of the tree. Of siblings at most one can be accepted, so a tree of 16
    nodes and 5 steps that accepts everything is reported as 5/15.
How: after SGLang filled `meta_info`, the number of proposed drafts and the rate are set to those that the scheduler
    counted; see `batch_result_processor_finish_state`.
Upstream: none reported (0.5.23).
Remove when: SGLang divides by the depth of the rounds.
"""

from __future__ import annotations

from typing import Any

from sglang_eagle31.patches._seam import Seam


def correct(result: Any, self: Any, meta_info: dict[str, Any], recv_obj: Any, i: int) -> None:
    """AFTER hook: the rate over the depth."""
    proposed = getattr(recv_obj, "spec_num_cap_tokens", None)
    if "spec_num_proposed_drafts" not in meta_info or proposed is None or len(proposed) <= i:
        return
    meta_info.pop("spec_cap_length", None)
    meta_info["spec_num_proposed_drafts"] = proposed[i]
    meta_info["spec_accept_rate"] = meta_info["spec_num_correct_drafts"] / proposed[i] if proposed[i] else 0.0


SEAM = Seam(
    "sglang.srt.managers.tokenizer_manager.TokenizerManager._calculate_spec_decoding_metrics",
    ("self", "meta_info", "recv_obj", "i"),
    "AFTER",
    "eagle31",
    correct,
)
