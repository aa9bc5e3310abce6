"""Sampled requests are verified by sampling on a CPU too.

Target: sglang.srt.speculative.eagle_utils._verify_uses_greedy
Why: on a CPU SGLang verifies every batch greedily, whatever its temperature: only the first token of an answer is
    sampled, so output does not follow the target's distribution.
How: around the question: on a CPU only a batch of greedy requests is verified greedily. The others take SGLang's own
    sampling path, with our ops (see the next seam).
Upstream: https://github.com/sgl-project/sglang/pull/37134 did it for HIP; nothing open for a CPU (0.5.23).
Remove when: SGLang samples in verification on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable

from sglang_eagle31.patches._seam import Seam


def uses_greedy(asked: Callable[..., bool], *, is_all_greedy: bool, is_cpu: bool, **others: bool) -> bool:
    """AROUND hook: whether this batch is verified greedily."""
    return is_all_greedy if is_cpu else asked(is_all_greedy=is_all_greedy, is_cpu=is_cpu, **others)


SEAM = Seam(
    "sglang.srt.speculative.eagle_utils._verify_uses_greedy",
    ("is_all_greedy", "is_cpu"),
    "AROUND",
    "eagle31",
    uses_greedy,
)
