"""How large the target's logits are at one place; a server tells log-probabilities only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def best_logit(model: Path, dtype: str, prefix: Sequence[int]) -> float:
    """The largest logit after ``prefix``, token ids, by transformers on the CPU, computed in ``dtype``."""
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    with torch.inference_mode():
        return float(loaded(torch.tensor([list(prefix)])).logits[0, -1].max())
