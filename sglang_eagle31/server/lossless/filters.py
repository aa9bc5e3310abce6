"""Top-k, top-p and min-p of one distribution together, as SGLang's sampler has them without speculation.

Dimensions: R rows; V vocabulary.

SGLang 0.5.23 has two laws (``layers/sampler.py``). *Joint*, of the backend ``pytorch`` and, where no request of a batch
asks for min-p, of ``flashinfer``: each of the three looks at the softmax. *In turn*, of ``flashinfer`` with min-p:
top-p looks at what top-k left, renormalised. Min-p is relative to the most probable token, which all of them keep, so
it is the same in both. SGLang's verification has top-k and top-p in turn and no min-p.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Filter = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(probabilities [R, V], limits [R]) to probabilities with 0 for what is cut off; renormalised or not."""


def keep(
    logits: torch.Tensor,
    limits: Sequence[torch.Tensor],
    temperatures: torch.Tensor,
    top_k: Filter,
    top_p: Filter,
    *,
    joint: bool,
) -> torch.Tensor:
    """Logits with ``-inf`` for the tokens that are never sampled.

    Args:
        logits: [R, V].
        limits: top-k (int), top-p and min-p, each [R].
        temperatures: [R, 1].
        top_k: filter by number.
        top_p: filter by mass.
        joint: the law; see above.

    Returns:
        a new tensor [R, V].
    """
    top_ks, top_ps, min_ps = limits
    probs = torch.softmax(logits.float() / temperatures, dim=-1)
    first = top_k(probs.clone(), top_ks)
    second = top_p((probs if joint else first / first.sum(-1, keepdim=True)).clone(), top_ps)
    kept = (first > 0) & (second > 0) & (probs >= probs.amax(-1, keepdim=True) * min_ps.unsqueeze(1))
    return logits.masked_fill(~kept, float("-inf"))
