"""What the CPU server runs: its verification ops, its filters, and SGLang's sampler without speculation."""

from __future__ import annotations

import torch

from sglang_eagle31.server.cpu import sampling as ops
from sglang_eagle31.server.cpu.filters import keep_top_k, keep_top_p
from sglang_eagle31.server.lossless import filters
from sglang_eagle31.tools.verify.exact import Sampling
from sglang_eagle31.tools.verify.rounds import Rule


def weights(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Weights ``[R, V]`` that ``eagle_sample`` hands to the ops, of the target's logits ``[R, V]``.

    The repairs take over where SGLang's own order of filters is another than its sampler's: with min-p, and with top-k
    and top-p together.
    """
    rows, vocab = logits.shape
    temperatures = torch.full((rows, 1), sampling.temperature)
    top_ks = torch.full((rows,), sampling.top_k)
    top_ps, min_ps = torch.full((rows,), sampling.top_p), torch.full((rows,), sampling.min_p)
    by_top_k, by_top_p = sampling.top_k < vocab, sampling.top_p < 1
    if sampling.min_p > 0 or (by_top_k and by_top_p):
        limits = (top_ks, top_ps, min_ps)
        kept = filters.keep(logits, limits, temperatures, keep_top_k, keep_top_p, joint=True)
        return torch.softmax(kept / temperatures, dim=-1)
    probs = torch.softmax(logits / temperatures, dim=-1)
    if by_top_k:
        probs = keep_top_k(probs, top_ks)
    return keep_top_p(probs, top_ps) if by_top_p else probs


RULES = {
    "target-only": Rule("target-only", ops.tree_speculative_sampling_target_only, weights, sampled_draft=False),
    "rejection": Rule("rejection", ops.chain_speculative_sampling, weights, sampled_draft=True),
}
"""The default of ``--speculative-algorithm EAGLE31``, and ``--speculative-use-rejection-sampling``."""


def sglang_draw(logits: torch.Tensor, sampling: Sampling, random: torch.Generator) -> torch.Tensor:
    """One token ``[R]`` after logits ``[R, V]`` by SGLang's own sampler, as a CPU server without speculation has it."""
    from sglang_eagle31.server.cpu import standin

    standin.prepare()
    from sglang.srt.layers.sampler import top_k_top_p_min_p_sampling_from_probs_torch

    rows = len(logits)
    with torch.random.fork_rng(devices=[]):  # it draws from the global generator
        torch.manual_seed(int(torch.randint(2**62, (), generator=random)))
        tokens: torch.Tensor = top_k_top_p_min_p_sampling_from_probs_torch(
            torch.softmax(logits / sampling.temperature, dim=-1),
            torch.full((rows,), sampling.top_k),
            torch.full((rows,), sampling.top_p),
            torch.full((rows,), sampling.min_p),
            sampling.min_p > 0,
            None,
            torch.zeros(rows, dtype=torch.long),
        )
    return tokens
