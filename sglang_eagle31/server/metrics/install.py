"""Put the meter into an EAGLE31 server's scheduler."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from sglang_eagle31.server.metrics.live import Watch

logger = logging.getLogger("sglang_eagle31")


def counted(worker: type) -> type:
    """``worker``, whose rounds are counted from the moment when its graphs are captured."""

    base: Any = worker

    def init_cuda_graphs(self: Any, *args: Any, **kwargs: Any) -> None:
        base.init_cuda_graphs(self, *args, **kwargs)
        attach(self)

    return type(worker.__name__, (worker,), {"init_cuda_graphs": init_cuda_graphs, "__module__": worker.__module__})


def attach(worker: Any) -> Watch | None:
    """Count in this process; None on ranks whose rounds another one counts.

    Raises:
        ValueError: SGLang's processing of results cannot be hooked.
    """
    from sglang.srt.runtime_context import get_observability, get_parallel

    from sglang_eagle31 import patches
    from sglang_eagle31.patches import batch_result_processor_decode, internal_state_get
    from sglang_eagle31.server.resolve import refuse

    if get_parallel().attn_tp_rank or get_parallel().pp_rank:
        return None
    guard = getattr(worker, "guard", None)
    opened = guard.ledger.export if guard is not None else None
    watch = Watch(worker.speculative_num_steps, get_observability().enable_metrics, opened)
    batch_result_processor_decode.WATCHES.append(watch)
    hooked = replace(
        batch_result_processor_decode.SEAM, kind="AROUND", handler=batch_result_processor_decode.count_round
    )
    reasons = patches.install((hooked,)) + internal_state_get.show("acceptance", watch.to_json)
    if reasons:
        raise refuse(reasons)
    return watch
