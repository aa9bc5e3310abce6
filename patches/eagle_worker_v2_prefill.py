"""Penalties of requests that have output when they are prefilled.

Target: sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2._forward_prefill_batch
Why: SGLang counts output tokens for penalties in decode batches only, one a batch. A request that was retracted and is
    prefilled again, and a running one that is mixed into a prefill, are sampled with the wrong counts.
How: Eagle31Worker overrides the method and puts exact penalties into the batch's sampling info while it runs.
Upstream: https://github.com/sgl-project/sglang/pull/28242 (penalties).
Remove when: SGLang's penalties are computed from a request's output.
"""

from __future__ import annotations

from sglang_eagle31.patches._seam import Seam

SEAM = Seam(
    "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2._forward_prefill_batch", ("self", "batch"), "USE", "eagle31"
)
