"""Put the probe into a server's worker class, when a rate was asked for."""

from __future__ import annotations

import logging
from typing import Any

from sglang_eagle31.head.spec import DrafterSpec
from sglang_eagle31.server.probe.export import Exporter
from sglang_eagle31.server.probe.live import Probe

logger = logging.getLogger("sglang_eagle31")


def probed(worker: type, rate: float) -> type:
    """``worker``, watched from the moment when its graphs are captured."""

    base: Any = worker

    def init_cuda_graphs(self: Any, *args: Any, **kwargs: Any) -> None:
        base.init_cuda_graphs(self, *args, **kwargs)
        attach(self, rate)

    return type(worker.__name__, (worker,), {"init_cuda_graphs": init_cuda_graphs, "__module__": worker.__module__})


def attach(worker: Any, rate: float) -> Probe | None:
    """Watch a worker's draft model; None on ranks that record nothing.

    A replayed CUDA graph cannot be watched, so the draft leaves its graphs, and on every tensor-parallel rank: a graph
    and eager code gather other shapes.

    Raises:
        ValueError: the worker drafts in a way that the probe does not know, or SGLang's state cannot be hooked.
    """
    from sglang.srt.runtime_context import get_observability, get_parallel, get_spec

    from sglang_eagle31.patches import internal_state_get
    from sglang_eagle31.server import resolve as algorithm

    draft = worker.draft_worker
    if draft is None:
        return None
    if not hasattr(draft, "draft_forward") or hasattr(draft, "draft_runner_list"):
        raise ValueError(
            f"--eagle31-drift-sample {rate}: {type(worker).__name__} does not draft step by step with one draft model; "
            "fix: drop the option"
        )
    if get_spec().speculative_adaptive:
        raise ValueError(
            f"--eagle31-drift-sample {rate}: --speculative-adaptive changes the draft's CUDA graphs while it serves, "
            "and a graph cannot be watched; fix: drop one of the two"
        )
    leave_graphs(draft)
    if get_parallel().attn_tp_rank != 0:
        return None
    plan = algorithm.plan_of(worker.server_args)
    boundaries = DrafterSpec.from_json(plan["spec"]).boundaries if plan else ()
    exporter = Exporter() if get_observability().enable_metrics else None
    probe = Probe(draft.draft_runner, rate, boundaries, exporter, get_parallel().attn_tp_size)
    probe.attach()
    reasons = internal_state_get.show("drift", probe.to_json)
    if reasons:
        raise ValueError(f"--eagle31-drift-sample {rate}: {'; '.join(reasons)}; fix: drop the option")
    logger.info("EAGLE31: the drift probe records %g of the rounds; /server_info has them", rate)
    return probe


def leave_graphs(draft: Any) -> None:
    """Have the draft model of a worker run eagerly: its prefill, its extend and its steps."""
    runners = (
        getattr(draft, "cuda_graph_runner", None),
        getattr(draft, "cuda_graph_runner_for_draft_extend", None),
        getattr(draft.draft_runner, "prefill_cuda_graph_runner", None),
    )
    for runner in runners:
        if runner is not None and hasattr(runner, "can_run_graph"):
            runner.can_run_graph = _never


def _never(forward_batch: Any) -> bool:
    return False
