"""Rows that need servers of their own: LoRA, two data-parallel replicas, two tensor-parallel ranks, seeds."""

from __future__ import annotations

from typing import Any

from matrix_case import Ask, Case, Place, greedy
from matrix_model import Folders
from matrix_sampling import DRAWS, HOT, LAW_PROMPT, prompts

PINNED = dict.fromkeys(("chain", "tree"), "Found no NVIDIA driver")
"""SGLang's LoRA layers pin memory (``lora/layers.py``), which torch does with a GPU only."""


def _plain(folders: Folders) -> list[Ask]:
    return [greedy(prompt, 40) for prompt in prompts(12, seed=91)]


def _adapted(folders: Folders) -> list[Ask]:
    """With the adapter and without, in one batch."""
    return [greedy(p, 40, lora_path=name) for p in prompts(5, seed=92) for name in ("style", None)]


def _differ(answers: Any) -> bool:
    return all(one["ids"] != other["ids"] for one, other in zip(answers[::2], answers[1::2], strict=True))


def _seeded(place: Place) -> list[list[int]]:
    """A seed gives one answer, alone or in a batch; over many, the answers have the target's law."""
    params = [{**HOT, "sampling_seed": seed} for seed in range(DRAWS)]
    body = {"input_ids": [LAW_PROMPT] * len(params), "sampling_params": params}
    answers = place.post("/generate", body).json()
    place.meta.extend(answer["meta_info"] for answer in answers)
    said = [answer["output_ids"] for answer in answers]
    for seed in range(8 if place.speculative else 0):
        again = place.post("/generate", {"input_ids": LAW_PROMPT, "sampling_params": params[seed]}).json()["output_ids"]
        if again != said[seed]:
            raise AssertionError(f"seed {seed}: {again} alone, {said[seed]} in a batch")
    return said


CASES = (
    Case("LoRA", "requests with an adapter and without in one batch", "lora", _adapted, holds=_differ, refused=PINNED),
    Case("Data parallel 2", "twelve requests over two replicas", "data parallel", _plain),
    Case("Tensor parallel 2", "two ranks, gloo", "tensor parallel", _plain),
    Case("Seeds", "a seed gives one answer in any batch", "seeds", _seeded, "law", acts=True),
)
