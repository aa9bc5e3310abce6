"""The target answers prompts through SGLang's engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_eagle31.tools.train.generate import Reply


class SGLangEngine:
    """SGLang's engine in processes of its own, without speculation."""

    name = "sglang"

    def __init__(self, model: str, device: str, dtype: str, eos: int, seed: int, **options: Any) -> None:
        import sglang

        self.eos = eos
        self.engine = sglang.Engine(
            model_path=model,
            device=device,
            dtype=dtype,
            skip_tokenizer_init=True,
            random_seed=seed,
            log_level="error",
            **options,
        )

    def __enter__(self) -> SGLangEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.shutdown()

    def answer(
        self, prompts: Sequence[list[int]], temperatures: Sequence[float], max_new_tokens: int, key: str
    ) -> list[Reply]:
        """As ``Engine.answer``. Sampled tokens depend on SGLang's own seed and batches.

        Greedy and sampled prompts are asked apart: in one batch SGLang sorts the vocabulary for both.
        """
        replies: dict[int, Reply] = {}
        for sampled in (False, True):
            rows = [row for row, heat in enumerate(temperatures) if bool(heat) == sampled]
            if not rows:
                continue
            outputs = self.engine.generate(
                input_ids=[list(prompts[row]) for row in rows],
                sampling_params=[
                    {"max_new_tokens": max_new_tokens, "stop_token_ids": [self.eos], "temperature": temperatures[row]}
                    for row in rows
                ],
            )
            replies |= {row: self._reply(output) for row, output in zip(rows, outputs, strict=True)}
        return [replies[row] for row in range(len(prompts))]

    def _reply(self, output: dict[str, Any]) -> Reply:
        ids, finished = list(output["output_ids"]), output["meta_info"]["finish_reason"]["type"] == "stop"
        if finished and ids[-1:] != [self.eos]:
            ids.append(self.eos)
        return Reply(ids, finished)
