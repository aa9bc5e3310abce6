"""The target of an offline probe: any causal language model of transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sglang_eagle31.head.spec import DrafterSpec


class TargetModel:
    """A transformers model with its tokenizer."""

    def __init__(self, model: Any, tokenizer: Any = None) -> None:
        self.model, self.tokenizer = model.eval().requires_grad_(False), tokenizer
        config = model.config.get_text_config()
        self.depth = int(config.num_hidden_layers)

    @classmethod
    def load(cls, path: str) -> TargetModel:
        """From a local folder, in the dtype of its files. Raises ValueError if it is not a folder."""
        if not Path(path).is_dir():
            raise ValueError(f"--target {path}: no such folder; fix: give a local Hugging Face folder")
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model = AutoModelForCausalLM.from_pretrained(path, dtype="auto")
        try:
            tokenizer = AutoTokenizer.from_pretrained(path)
        except (OSError, ValueError):  # a folder without one serves prompts of token ids
            tokenizer = None
        return cls(model, tokenizer)

    @property
    def embedding(self) -> Tensor:
        """``[V, H]``"""
        weight: Tensor = self.model.get_input_embeddings().weight
        return weight

    @property
    def head(self) -> Tensor:
        """``[V, H]``"""
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight

    def encode(self, messages: Sequence[Any]) -> list[int]:
        """Token ids of a conversation under the target's template, ready to be answered."""
        if self.tokenizer is None:
            raise ValueError("the target has no tokenizer; fix: prompts of token ids, or add the tokenizer's files")
        text = self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    @torch.inference_mode()
    def answer(self, ids: Sequence[int], tokens: int, ignore_eos: bool = False) -> list[int]:
        """The target's own greedy continuation, ``tokens`` at most."""
        given = torch.tensor([list(ids)])
        stop: dict[str, Any] = {"eos_token_id": None, "min_new_tokens": tokens} if ignore_eos else {}
        pad = self.model.generation_config.pad_token_id
        out = self.model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=tokens,
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            pad_token_id=0 if pad is None else pad,
            **stop,
        )
        return [int(token) for token in out[0, len(ids) :]]

    @torch.inference_mode()
    def states(self, ids: Sequence[int], spec: DrafterSpec) -> Tensor:
        """What a head of ``spec`` reads of each token, ``[n, k * target width]``: its boundaries, or the final state.

        Boundary b is the residual stream before block b; transformers' ``hidden_states[b]``, except for the last one.
        """
        last: list[Tensor] = []
        hook = self._blocks()[-1].register_forward_hook(lambda _m, _a, out: last.append(_first(out)))
        try:
            out = self.model(input_ids=torch.tensor([list(ids)]), output_hidden_states=True, use_cache=False)
        finally:
            hook.remove()
        if not spec.use_aux_hidden_state:
            final: Tensor = out.hidden_states[-1][0]
            return final
        taken = [out.hidden_states[b] if b < self.depth else last[0] for b in spec.boundaries]
        return torch.cat([state[0] for state in taken], dim=-1)

    def _blocks(self) -> Any:
        for module in self.model.modules():
            if isinstance(module, nn.ModuleList) and len(module) == self.depth:
                return module
        raise ValueError(f"the target has no list of {self.depth} blocks; fix: probe a decoder of transformers")


def _first(out: Any) -> Tensor:
    state: Tensor = out[0] if isinstance(out, tuple) else out
    return state


def read_prompts(file: Path, target: TargetModel, limit: int | None = None) -> list[list[int]]:
    """Prompts of a JSONL file as token ids: ``{"messages": [...]}``, ``{"input_ids": [...]}`` or a list of ids a line.

    Raises:
        ValueError: a line that is none of these, or a file without prompts.
    """
    prompts: list[list[int]] = []
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        raise ValueError(f"--prompts {file}: {error}; fix: give a JSONL file") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip() or (limit is not None and len(prompts) >= limit):
            continue
        try:
            prompts.append(_ids(json.loads(line), target))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f'--prompts {file}, line {number}: {error}; fix: {{"messages": [...]}} or {{"input_ids": [...]}}'
            ) from error
    if not prompts:
        raise ValueError(f"--prompts {file}: no prompts; fix: one JSON object a line")
    return prompts


def _ids(entry: Any, target: TargetModel) -> list[int]:
    if isinstance(entry, dict) and "messages" in entry:
        return target.encode(entry["messages"])
    ids = entry["input_ids"] if isinstance(entry, dict) else entry
    if not isinstance(ids, list) or not ids or not all(type(token) is int and token >= 0 for token in ids):
        raise ValueError("expected messages or token ids")
    return ids
