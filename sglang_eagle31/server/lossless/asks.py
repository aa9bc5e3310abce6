"""Which requests of a batch ask for something that SGLang's verification lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ALL_TOKENS = 1 << 30
"""SGLang's top-k for "the whole vocabulary" (``sampling_params.TOP_K_ALL``)."""


@dataclass(frozen=True)
class Asks:
    """Rows of a batch, each list ascending.

    Attributes:
        counted: with a frequency, presence or repetition penalty.
        short: with ``min_new_tokens`` that the host has not seen reached.
        processed: with a custom logit processor.
        filtered: sampled with min-p, or with both top-k and top-p.
    """

    counted: list[int]
    short: list[int]
    processed: list[int]
    filtered: list[int]

    @classmethod
    def of(cls, reqs: Sequence[Any], info: Any) -> Asks:
        """From the requests of a batch and its ``SamplingBatchInfo``."""
        counted, short, filtered = [], [], []
        for row, req in enumerate(reqs):
            params = req.sampling_params
            if params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1.0:
                counted.append(row)
            if params.min_new_tokens > len(req.output_ids):
                short.append(row)
            if params.top_k > 1 and (params.min_p > 0 or (params.top_k < ALL_TOKENS and params.top_p != 1.0)):
                filtered.append(row)
        entries = info.custom_logit_processor.values() if info.has_custom_logit_processor else ()
        return cls(counted, short, sorted({row for entry in entries for row in entry.rows}), filtered)

    def none(self, info: Any) -> bool:
        """Whether SGLang is right for all of them.

        It is not while ``info`` has penalties: SGLang counts a token a round, and so forbids stop tokens longer than
        ``min_new_tokens`` says.
        """
        if info.acc_additive_penalties is not None or info.acc_scaling_penalties is not None:
            return False
        return not (self.counted or self.short or self.processed or self.filtered)

    def remembered(self) -> list[int]:
        """Rows whose committed output must be known."""
        return sorted({*self.counted, *self.processed})


def stop_tokens(req: Any, vocab_size: int) -> list[int]:
    """Tokens that ``min_new_tokens`` forbids, as SGLang has them: the request's, the model's and the tokenizer's."""
    found = {*(req.sampling_params.stop_token_ids or ()), *(req.eos_token_ids or ())}
    if req.tokenizer is not None:
        found |= {*(getattr(req.tokenizer, "additional_stop_token_ids", None) or ()), req.tokenizer.eos_token_id}
    return sorted(token for token in found if token is not None and 0 <= token < vocab_size)


def padded(rows: list[list[int]]) -> list[list[int]]:
    """Rows of one width, filled up with a token of their own; -1 in a row without any."""
    width = max(map(len, rows), default=0)
    return [row + [row[0] if row else -1] * (width - len(row)) for row in rows]
