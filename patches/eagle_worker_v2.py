"""SGLang's EAGLE worker, which ours extends.

Target: sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2.__init__
Why: drafting, tree building, verification and the radix cache are SGLang's and are reused.
How: Eagle31Worker subclasses it, checks the captured layers of the target and reports what runs.
Upstream: internal class; the record holds the constructor's parameters.
Remove when: never; this is what the package extends.
"""

from __future__ import annotations

from sglang_eagle31.patches._seam import Seam

SEAM = Seam(
    "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2.__init__",
    ("self", "server_args", "gpu_id", "nccl_port", "target_worker"),
    "USE",
    "eagle31",
)
