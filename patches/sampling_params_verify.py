"""A wrong wish of a request about its drafts is answered with an error.

Target: sglang.srt.sampling.sampling_params.SamplingParams.verify
Why: SGLang takes `custom_params` as they are. A misspelt number of steps would be drafted as configured, and a
    measurement with a misspelt shape would be one of another shape, without a word.
How: before SGLang verifies a request's sampling params, `speculative_num_steps` and `eagle31_shape` among its
    `custom_params` are read; SGLang answers the ValueError with status 400, as it does for its own params. A cap is
    wrong on a server with `--speculative-use-rejection-sampling` too, which would accept drafts past it.
Upstream: no per-request speculation in SGLang (0.5.23).
Remove when: SGLang has a per-request number of steps.
"""

from __future__ import annotations

from typing import Any

from sglang_eagle31.patches._seam import Seam
from sglang_eagle31.server.guard.asks import wrong


def refuse_wrong_asks(self: Any, vocab_size: int) -> None:
    """BEFORE hook. Raises ValueError naming the param, its value and the fix."""
    reason = wrong(self.custom_params, _by_rejection)
    if reason is not None:
        raise ValueError(reason)


def _by_rejection() -> bool:
    """Whether this server verifies by rejection sampling; not where SGLang has no server's flags (tests, scripts)."""
    from sglang.srt.runtime_context import get_spec

    try:
        return bool(get_spec().speculative_use_rejection_sampling)
    except ValueError:
        return False


SEAM = Seam(
    "sglang.srt.sampling.sampling_params.SamplingParams.verify",
    ("self", "vocab_size"),
    "BEFORE",
    "eagle31",
    refuse_wrong_asks,
)
