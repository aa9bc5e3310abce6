"""Which drafts of a request count for its acceptance rate.

Target: sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor._handle_finish_state_updated_req
Why: SGLang counts drafts that were accepted after a request's end, and does not record how deep each round drafted,
    which adaptive speculation changes from round to round.
How: before SGLang handles the request's new state, what was cut off is taken out of its counters, and the depth of the
    round is added to `spec_num_cap_tokens`, which SGLang sends to the tokenizer process and itself fills for DSpark
    only.
Upstream: none reported (0.5.23).
Remove when: SGLang records the depth of each round.
"""  # noqa: E501

from __future__ import annotations

from typing import Any

from sglang_eagle31.patches._seam import Seam


def count(self: Any, req: Any, batch: Any, result: Any, i: int, *args: Any, **kwargs: Any) -> None:
    """BEFORE hook: correct the request's counters for the round that has just been added to its output."""
    from sglang_eagle31.server.guard import asks
    from sglang_eagle31.server.lossless import rates

    if result.accept_index is None or not batch.forward_mode.is_decode():
        return
    accepted = result.num_correct_drafts_per_req_cpu[i]
    depth = asks.depth(req.sampling_params.custom_params, result.accept_index.shape[1] - 1)
    retained = result.grammar_retained_tokens[i] if result.grammar_retained_tokens is not None else None
    run = accepted + 1 if retained is None else len(retained)
    used, offered = rates.counted(accepted, depth, rates.emitted(run, len(req.output_ids), req.finished_len))
    req.spec_num_cap_tokens += offered
    if used != accepted:
        req.spec_num_correct_drafts -= accepted - used
        req.spec_correct_drafts_histogram[accepted] -= 1
        req.update_spec_correct_drafts_histogram(used)
        while req.spec_correct_drafts_histogram[-1] == 0:
            req.spec_correct_drafts_histogram.pop()


SEAM = Seam(
    "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor."
    "_handle_finish_state_updated_req",
    ("self", "req", "batch", "result", "i"),
    "BEFORE",
    "eagle31",
    count,
)
