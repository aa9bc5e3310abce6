"""How large the target's logits are at one place; a server tells log-probabilities only."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any


def best_logit(model: Path, dtype: str, prefix: Sequence[int]) -> float:
    """The largest logit after ``prefix``, token ids, by transformers on the CPU, computed in ``dtype``."""
    import torch

    with torch.inference_mode():
        return float(_loaded(model, dtype)(torch.tensor([list(prefix)])).logits[0, -1].max())


@lru_cache(maxsize=1)
def _loaded(model: Path, dtype: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
