"""The frozen target: its captured hidden states, its final state, its most likely token at every position.

Dimensions: B sequences, n tokens, H_t target width, K captured states, V vocabulary.
Boundary ``b`` is the residual stream before block ``b`` (equal to Hugging Face ``hidden_states[b]`` for ``b < N``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sglang_eagle31.tools.train.data import Sample


def default_boundaries(num_layers: int) -> tuple[int, int, int]:
    """The usual early/middle/late triple ``(2, N//2, N-3)``; raises ValueError where it would not be three layers."""
    triple = (2, num_layers // 2, num_layers - 3)
    if not 0 < triple[0] < triple[1] < triple[2]:
        has = f"a target of {num_layers} layers has no default triple of captured layers"
        raise ValueError(f"{has}; fix: name three boundaries with --layers B,B,B")
    return triple


def parse_boundaries(text: str | None) -> tuple[int, ...] | None:
    """The value of --layers."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--layers {text}: no numbers; fix: boundaries, for example 2,15,27") from None


@dataclass
class Recording:
    """What one or more forward passes left behind; every list holds one tensor a pass."""

    states: list[list[Tensor]] = field(default_factory=list)
    """One list a boundary, of ``[B, n, H_t]``."""

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
            found = f"--layers {list(boundaries)}"
            raise ValueError(f"{found}: boundaries must rise and lie in 1..{layers - 1}; fix: for example 2,15,27")

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
        handles = [
            inner.layers[b - 1].register_forward_hook(keep(store))
            for b, store in zip(self.boundaries, record.states, strict=True)
        ]
        try:
            yield record
        finally:
            for handle in handles:
                handle.remove()

    @torch.inference_mode()
    def complete(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples with states, final states and argmax, from one teacher-forced pass over the padded batch."""
        length = max(len(s.ids) for s in samples)
        ids = torch.zeros(len(samples), length, dtype=torch.int64)
        for row, s in enumerate(samples):
            ids[row, : len(s.ids)] = s.ids
        with self.recording() as record:  # padding stands on the right, where causal attention never looks
            last = self.model.model(input_ids=ids.to(self.device), use_cache=False).last_hidden_state
        states = record.fused()[0].cpu()
        return [replace(s, **self._of(s, states[row], last[row])) for row, s in enumerate(samples)]

    def _of(self, sample: Sample, states: Tensor, last: Tensor) -> dict[str, Any]:
        n = len(sample.ids)
        wanted = torch.nn.functional.pad(sample.mask[1:], (0, 1))  # the argmax is used where the assistant speaks next
        argmax = torch.full((n,), -1, dtype=torch.int32)
        logits = self.model.get_output_embeddings()(last[:n][wanted.to(last.device)])
        argmax[wanted] = logits.argmax(-1).to(torch.int32).cpu()
        return {"states": states[:n].clone(), "final": last[:n].bfloat16().cpu(), "argmax": argmax}


def _folder(path: str) -> Path:
    if not Path(path).is_dir():
        raise ValueError(f"--target {path}: no such folder; fix: give a local Hugging Face folder")
    return Path(path)


def read_config(path: str) -> Any:
    """The target's config.json, as transformers reads it. Raises ValueError for what is no folder."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(_folder(path))


def read_tokenizer(path: str) -> Any:
    """The target's tokenizer. Raises ValueError for what is no folder, and where there is no chat template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(_folder(path))
    if not tokenizer.chat_template:
        raise ValueError(f"--target {path}: the tokenizer has no chat template; fix: use an instruction-tuned target")
    return tokenizer


def load_target(path: str, boundaries: Sequence[int] | None, device: str, dtype: torch.dtype) -> tuple[Target, Any]:
    """Load a local Hugging Face folder; returns the target and its tokenizer."""
    folder = _folder(path)
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device)
    triple = boundaries or default_boundaries(int(model.config.num_hidden_layers))
    return Target(model, triple), read_tokenizer(path)
