"""The frozen target: its captured hidden states, its final state, its most likely token at every position.

Dimensions: B sequences, n tokens, H_t target width, K captured states, V vocabulary.
Boundary ``b`` is the residual stream before block ``b`` (equal to Hugging Face ``hidden_states[b]`` for ``b < N``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def default_boundaries(num_layers: int) -> tuple[int, int, int]:
    """The usual early/middle/late triple ``(2, N//2, N-3)``; raises ValueError where it would not be three layers."""
    triple = (2, num_layers // 2, num_layers - 3)
    if not 0 < triple[0] < triple[1] < triple[2]:
        raise ValueError(f"--layers: a target of {num_layers} layers has no default triple; name three boundaries")
    return triple


@dataclass
class Recording:
    """What one or more forward passes left behind; every list holds one tensor a pass."""

    states: list[list[Tensor]] = field(default_factory=list)
    """One list a boundary, of ``[B, n, H_t]``."""
    final: list[Tensor] = field(default_factory=list)
    """``[B, n, H_t]`` after the final norm: the input of ``lm_head``."""

    def fused(self) -> list[Tensor]:
        """``[B, n, K*H_t]`` of each pass, boundaries in ascending order."""
        return [torch.cat(parts, dim=-1) for parts in zip(*self.states, strict=True)]


class Target:
    """A Hugging Face decoder with ``model.model.layers`` and ``model.model.norm`` (Llama type), in evaluation mode."""

    def __init__(self, model: Any, boundaries: Sequence[int]) -> None:
        self.model = model.eval().requires_grad_(False)
        self.boundaries = tuple(boundaries)
        layers = int(model.config.num_hidden_layers)
        if list(boundaries) != sorted(set(boundaries)) or not all(0 < b < layers for b in boundaries):
            raise ValueError(f"--layers {list(boundaries)}: boundaries must rise and lie in 1..{layers - 1}")

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def embedding(self) -> Tensor:
        """``[V, H_t]``"""
        weight: Tensor = self.model.get_input_embeddings().weight
        return weight

    @property
    def head(self) -> Tensor:
        """``[V, H_t]``: the rows of the language-model head."""
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight

    @contextmanager
    def recording(self, dtype: torch.dtype = torch.bfloat16) -> Iterator[Recording]:
        """Collect states of every forward pass made inside the block."""
        record = Recording(states=[[] for _ in self.boundaries])

        def keep(store: list[Tensor]) -> Any:
            def hook(_module: Any, _args: Any, output: Any) -> None:
                state = output[0] if isinstance(output, tuple) else output
                store.append(state.to(dtype, copy=True))

            return hook

        inner = self.model.model
        modules = [inner.layers[b - 1] for b in self.boundaries] + [inner.norm]
        handles = [
            module.register_forward_hook(keep(store))
            for module, store in zip(modules, [*record.states, record.final], strict=True)
        ]
        try:
            yield record
        finally:
            for handle in handles:
                handle.remove()

    @torch.inference_mode()
    def features(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``(states [n, K*H_t] bf16, final [n, H_t] bf16, argmax [n])`` of one sequence ``ids [n]``."""
        with self.recording() as record:
            logits = self.model(input_ids=ids[None].to(self.device), use_cache=False).logits
        return record.fused()[0][0].cpu(), record.final[0][0].cpu(), logits[0].argmax(-1).to(torch.int32).cpu()


def load_target(path: str, boundaries: Sequence[int] | None, device: str, dtype: torch.dtype) -> tuple[Target, Any]:
    """Load a local Hugging Face folder; returns the target and its tokenizer."""
    if not Path(path).is_dir():
        raise ValueError(f"--target {path}: no such folder; give a local Hugging Face folder")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(device)
    triple = boundaries or default_boundaries(int(model.config.num_hidden_layers))
    return Target(model, triple), AutoTokenizer.from_pretrained(path)
