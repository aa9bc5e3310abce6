"""The meter in SGLang's scheduler: what a processed verify round says of its requests.

A round counts for a request as it does in SGLang's own ``spec_verify_ct``: not if the request had ended or was
retracted before the round was processed, which happens to the one that overlaps with its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sglang_eagle31.server.guard import asks
from sglang_eagle31.server.lossless import rates
from sglang_eagle31.server.metrics.export import Exporter
from sglang_eagle31.server.metrics.fingerprint import Templates
from sglang_eagle31.server.metrics.meter import Meter, Row

TALLY = "eagle31_tally"
"""On SGLang's request: its `meter.Tally`."""


class Watch:
    """The meter of this process; it is made at the first round, when a request brings the tokenizer."""

    def __init__(self, steps: int, metrics: bool, opened: Callable[[dict[str, str]], None] | None = None) -> None:
        """``steps`` is the configured depth; ``metrics`` whether the server exports to Prometheus.

        ``opened`` is told SGLang's labels once they are known.
        """
        self.steps, self.metrics, self.opened = steps, metrics, opened
        self.meter: Meter | None = None

    def to_json(self) -> dict[str, Any]:
        """What ``/server_info`` shows; nothing before the first round."""
        return {} if self.meter is None else self.meter.to_json()

    def around(self, process: Callable[..., Any], processor: Any, batch: Any, result: Any) -> Any:
        """SGLang's processing of a decode result, with the round counted."""
        started = [None if req.finished() or req.is_retracted else len(req.output_ids) for req in batch.reqs]
        answer = process(processor, batch, result)
        accepted = result.num_correct_drafts_per_req_cpu
        if accepted:
            meter = self.meter or self._open(processor, batch)
            nodes = max(0, (result.speculative_num_draft_tokens or 1) - 1)
            path = result.accept_index  # [batch, steps + 1]; adaptive speculation changes its width
            steps = min(self.steps, nodes) if path is None else path.shape[1] - 1
            meter.round([*_rows(meter, batch.reqs, started, accepted, steps)], steps, nodes)
        return answer

    def _open(self, processor: Any, batch: Any) -> Meter:
        special, name = special_tokens(batch.reqs[0].tokenizer, processor.model_config)
        self.meter = Meter(Templates(special, name), self.steps)
        if self.metrics:
            labels = getattr(processor.metrics_collector, "labels", None) or {}
            self.meter.exporter = Exporter(labels)
            if self.opened is not None:
                self.opened(labels)
        return self.meter


def _rows(
    meter: Meter, reqs: Iterable[Any], started: list[int | None], accepted: list[int], steps: int
) -> Iterator[Row]:
    for req, before, count in zip(reqs, started, accepted, strict=True):
        if before is None:
            continue
        tally = getattr(req, TALLY, None)
        if tally is None:
            tally = meter.begin(req.origin_input_ids)
            setattr(req, TALLY, tally)
        committed = (len(req.output_ids) if req.finished_len is None else req.finished_len) - before
        depth = asks.depth(req.sampling_params.custom_params, steps)
        used, offered = rates.counted(count, depth, committed)
        ended = req.finished_reason.to_json().get("type") == "abort" if req.finished() else None
        yield Row(tally, len(req.origin_input_ids) + before, count, used, offered, committed, ended)


def special_tokens(tokenizer: Any, model_config: Any) -> tuple[set[int], Callable[[int], str]]:
    """Ids of special tokens and a way to write them: the tokenizer's, or without one the model's BOS and EOS."""
    if tokenizer is not None and hasattr(tokenizer, "all_special_ids"):
        added = getattr(tokenizer, "added_tokens_decoder", {})
        special = {int(token) for token, entry in added.items() if getattr(entry, "special", False)}
        return special | set(tokenizer.all_special_ids), lambda token: str(tokenizer.convert_ids_to_tokens(token))
    config = model_config.hf_config
    given = [getattr(config, "bos_token_id", None), getattr(config, "eos_token_id", None)]
    flat = [one for entry in given for one in (entry if isinstance(entry, (list, tuple)) else [entry])]
    return {int(token) for token in flat if token is not None}, str
