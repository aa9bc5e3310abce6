"""Greedy answers of the tiny target computed token by token, with penalties from their definition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM


def greedy(target: Path, prompt: Sequence[int], sampling: Mapping[str, Any], end: int | None = None) -> list[int]:
    """The answer to a prompt; ``end`` is the token that ``min_new_tokens`` forbids beside the ``stop_token_ids``."""
    torch.set_num_threads(1)  # more would only wait for each other
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    stops = {*sampling.get("stop_token_ids", ()), *([] if end is None else [end])}
    out: list[int] = []
    said, cache = list(prompt), None
    while len(out) < sampling["max_new_tokens"]:
        with torch.inference_mode():
            step = model(torch.tensor([said]), past_key_values=cache, use_cache=True)
        cache = step.past_key_values
        logits = penalised(step.logits[0, -1], Counter(out), sampling)
        if len(out) < sampling.get("min_new_tokens", 0):
            logits[list(stops)] = float("-inf")
        out.append(int(logits.argmax()))
        said = out[-1:]
        if out[-1] in stops and not sampling.get("ignore_eos", True):
            break
    return out


def penalised(logits: torch.Tensor, counts: Mapping[int, int], sampling: Mapping[str, Any]) -> torch.Tensor:
    """``logits`` [V] after an output in which each token occurs as often as ``counts`` says."""
    logits = logits.clone()
    for token, times in counts.items():
        value = float(logits[token])
        value -= sampling.get("frequency_penalty", 0.0) * times + sampling.get("presence_penalty", 0.0)
        repetition = sampling.get("repetition_penalty", 1.0)
        logits[token] = value * repetition if value < 0 else value / repetition
    return logits


def min_p_law(target: Path, contexts: Sequence[Sequence[int]], temperature: float, min_p: float) -> torch.Tensor:
    """Probabilities ``[contexts, V]`` of the token after each of some contexts of one length."""
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    with torch.inference_mode():
        probs = (model(torch.tensor(contexts)).logits[:, -1].double() / temperature).softmax(-1)
    kept = probs * (probs >= min_p * probs.amax(-1, keepdim=True))
    return kept / kept.sum(-1, keepdim=True)
