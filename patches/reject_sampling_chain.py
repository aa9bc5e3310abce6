"""The sampling ops of verification on a CPU.

Target: sglang.kernels.ops.speculative.reject_sampling.chain_speculative_sampling_triton
Why: SGLang has no tree sampling, top-k and top-p for verification on a CPU, and rejection sampling as a Triton kernel.
How: around the kernel: CPU tensors go to our op in torch. `eagle_utils` has None in the place of the other three; there
    our ops are put when EAGLE31's worker is made on a CPU, under the same call. The record holds the parameters that
    both sampling ops are called with.
Upstream: SGLang resolves the ops by platform, without one for a CPU (0.5.23).
Remove when: `sglang.kernels.ops.speculative.verify_sampling` and `sglang.kernels.ops.sampling.renorm` have CPU ops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_eagle31.patches._seam import Seam


def sample_chain(kernel: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """AROUND hook: rejection sampling, ours on a CPU."""
    probs = kwargs.get("target_probs")
    if probs is None or probs.device.type != "cpu":
        return kernel(*args, **kwargs)
    from sglang_eagle31.server.cpu.sampling import chain_speculative_sampling

    return chain_speculative_sampling(*args, **kwargs)


def put_ops() -> list[str]:
    """Give `eagle_utils` our ops where SGLang has none for this platform; the reasons for which that cannot be."""
    from sglang.srt.speculative import eagle_utils

    from sglang_eagle31.server.cpu.filters import keep_top_k, keep_top_p
    from sglang_eagle31.server.cpu.sampling import tree_speculative_sampling_target_only

    ops = {
        "tree_speculative_sampling_target_only": tree_speculative_sampling_target_only,
        "top_k_renorm_prob": keep_top_k,
        "top_p_renorm_prob": keep_top_p,
    }
    lost = [
        f"sglang.srt.speculative.eagle_utils has no {name} any more" for name in ops if name not in vars(eagle_utils)
    ]
    if not lost:
        for name, op in ops.items():
            if getattr(eagle_utils, name) is None:
                setattr(eagle_utils, name, op)
    return lost


SEAM = Seam(
    "sglang.kernels.ops.speculative.reject_sampling.chain_speculative_sampling_triton",
    (
        "predicts",
        "accept_index",
        "accept_token_num",
        "candidates",
        "retrive_index",
        "retrive_next_token",
        "retrive_next_sibling",
        "uniform_samples",
        "uniform_samples_for_final_sampling",
        "target_probs",
        "draft_probs",
        "threshold_single",
        "threshold_acc",
        "deterministic",
    ),
    "AROUND",
    "eagle31",
    sample_chain,
)
