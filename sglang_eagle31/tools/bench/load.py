"""What one measured run of requests gives, whoever sent them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Load:
    """Rates and times of one cell.

    Attributes:
        requests: all of them were answered.
        output_tokens: of all answers.
        seconds: from the first request to the last answer.
        output_tok_s: output tokens by seconds, over all users.
        user_tok_s: of the median user while its answer is written, 1000 / ``tpot_ms``.
        ttft_ms: median time to the first token.
        tpot_ms: median over requests of the mean time between two tokens of an answer.
        itl_ms_p50: median time between two tokens; tokens that come together share the time since the last.
        itl_ms_p99: its 99th percentile.
    """

    requests: int
    output_tokens: int
    seconds: float
    output_tok_s: float
    user_tok_s: float
    ttft_ms: float
    tpot_ms: float
    itl_ms_p50: float
    itl_ms_p99: float

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


FIELDS = ("output_tok_s", "user_tok_s", "ttft_ms", "tpot_ms", "itl_ms_p50", "itl_ms_p99")
"""What the medians over rounds are taken of."""


@dataclass(frozen=True)
class Timing:
    """One streamed answer."""

    start: float
    """Seconds on any clock, as are the others."""
    first: float
    """When the first token came."""
    end: float
    tokens: int
    gaps: tuple[float, ...]
    """Seconds between tokens; those that came together share the time since the last."""


def summarise(timings: Sequence[Timing]) -> Load:
    """The record of requests that were all answered, each with one token at least."""
    seconds = max(t.end for t in timings) - min(t.start for t in timings)
    tokens = sum(t.tokens for t in timings)
    tpots = [1000 * (t.end - t.first) / (t.tokens - 1) for t in timings if t.tokens > 1]
    gaps = [1000 * gap for t in timings for gap in t.gaps]
    tpot = float(np.median(tpots)) if tpots else 0.0
    p50, p99 = (float(np.percentile(gaps, q)) if gaps else 0.0 for q in (50, 99))
    return Load(
        requests=len(timings),
        output_tokens=tokens,
        seconds=seconds,
        output_tok_s=tokens / seconds,
        user_tok_s=1000 / tpot if tpot else 0.0,
        ttft_ms=float(np.median([1000 * (t.first - t.start) for t in timings])),
        tpot_ms=tpot,
        itl_ms_p50=p50,
        itl_ms_p99=p99,
    )


def of_bench_serving(record: Mapping[str, Any]) -> Load:
    """The record that ``sglang.benchmark.serving`` writes; raises ValueError where a request failed."""
    errors = [error for error in record.get("errors", ()) if error]
    if errors:
        raise ValueError(f"{len(errors)} requests were not answered: {errors[0][-500:]}")
    tpot = float(record["median_tpot_ms"])
    return Load(
        requests=int(record["completed"]),
        output_tokens=int(record["total_output_tokens"]),
        seconds=float(record["duration"]),
        output_tok_s=float(record["output_throughput"]),
        user_tok_s=1000 / tpot if tpot else 0.0,
        ttft_ms=float(record["median_ttft_ms"]),
        tpot_ms=tpot,
        itl_ms_p50=float(record["median_itl_ms"]),
        itl_ms_p99=float(record["p99_itl_ms"]),
    )
