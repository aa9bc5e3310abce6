"""How large the target's logits are at one place; a server tells log-probabilities only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

SMALL = 4 << 30
"""Bytes of weights up to which a target is loaded beside its server."""

BestLogit = Callable[[Sequence[int]], float]
"""The largest logit after a prefix of token ids."""


def of_target(model: Path, dtype: str) -> BestLogit | None:
    """`best_logit` of the target in ``model``, which is loaded at the first call; None if it is not small."""
    size = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    return partial(best_logit, model, dtype) if 0 < size <= SMALL else None


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
