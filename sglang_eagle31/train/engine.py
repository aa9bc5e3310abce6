"""The target answers prompts through SGLang's engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_eagle31.train.generate import Reply


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
        """As ``Engine.answer``. Sampled tokens depend on SGLang's own seed and batches."""
        shared = {"max_new_tokens": max_new_tokens, "stop_token_ids": [self.eos]}
        sampling = [{**shared, "temperature": t} for t in temperatures]
        outputs = self.engine.generate(input_ids=list(prompts), sampling_params=sampling)
        replies = []
        for output in outputs:
            ids, finished = list(output["output_ids"]), output["meta_info"]["finish_reason"]["type"] == "stop"
            if finished and ids[-1:] != [self.eos]:
                ids.append(self.eos)
            replies.append(Reply(ids, finished))
        return replies
