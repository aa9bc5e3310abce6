"""Put the guard into an EAGLE31 server's worker, or say why it cannot act there."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from sglang_eagle31.maths.shape import Shape
from sglang_eagle31.server.guard.backlog import Backlog
from sglang_eagle31.server.guard.live import Guard
from sglang_eagle31.server.guard.policy import Policy
from sglang_eagle31.server.guard.prepared import prepared
from sglang_eagle31.server.guard.switch import CpuSwitch, GraphSwitch, Still

logger = logging.getLogger("sglang_eagle31")
SKIP = "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND"


def attach(worker: Any, asked: str | None) -> Guard | None:
    """The guard of a worker whose graphs are captured; None where it cannot act.

    One that is off decides nothing and learns nothing; what requests ask for is done all the same.

    Args:
        worker: of SGLang's EAGLE, on any rank.
        asked: ``on``, ``off``, ``observe``; None is ``on`` on a CPU, and ``observe`` elsewhere.

    Raises:
        ValueError: SGLang's state cannot be hooked.
    """
    on_cpu = worker.device == "cpu"
    mode = asked or ("on" if on_cpu else "observe")
    reason = _unfit(worker) or (_unfit_for_graphs(worker.server_args) if mode == "on" and not on_cpu else None)
    if reason:
        logger.info("EAGLE31: the guard is off: %s", reason)
        return None
    configured = Shape(worker.speculative_num_steps, worker.topk, worker.speculative_num_draft_tokens)
    switch, mode = _switch(worker, configured, mode, on_cpu)
    agree = _agreement() if mode == "on" else _alone  # else all ranks come to the same by themselves
    guard = Guard(worker, switch, Policy(prepared(configured, switch.everywhere)), mode, agree)
    if on_cpu and _may_skip(worker):
        os.environ[SKIP] = "1"
        guard.backlog = Backlog()
    _show(guard)
    logger.info("EAGLE31: guard %s, shapes %s", mode, " ".join(map(str, guard.policy.shapes)))
    return guard


def _switch(worker: Any, configured: Shape, mode: str, on_cpu: bool) -> tuple[Any, str]:
    if on_cpu:
        return CpuSwitch(worker, configured), mode
    if mode == "on" and configured.topk > 1:
        logger.warning("EAGLE31: the guard only observes: on this device SGLang prepares other shapes for topk 1 alone")
    elif mode == "on":
        return GraphSwitch(worker, configured), mode
    return Still(configured), "off" if mode == "off" else "observe"


def _unfit(worker: Any) -> str | None:
    from sglang.srt.runtime_context import get_parallel, get_spec

    if get_spec().speculative_adaptive:
        return "--speculative-adaptive decides instead; fix: drop it for the guard, which knows what rounds cost"
    if get_parallel().pp_size > 1:
        return "--pipeline-parallel-size above 1 drafts a round ahead"
    if get_parallel().attn_dp_size > 1:
        return "--enable-dp-attention would need one decision of all its ranks"
    if worker.draft_worker is None:
        return "this rank drafts nothing"
    return None


def _unfit_for_graphs(server_args: Any) -> str | None:
    """Where runtime states cannot be swapped: SGLang's reasons against ``--speculative-adaptive``, and one more."""
    from sglang.srt.arg_groups.overrides import resolving_view

    flags = resolving_view(server_args)
    if flags.enable_two_batch_overlap or flags.enable_pdmux:
        return "--enable-two-batch-overlap and --enable-pdmux keep state of their own beside the draft's shape"
    if flags.disaggregation_mode == "prefill":
        return "a prefill server verifies nothing"
    return None


def _alone(shape: Shape) -> Shape:
    return shape


def _may_skip(worker: Any) -> bool:
    """Whether a plain round may leave out the draft's layer; `backlog` knows plain caches and positions only."""
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
    from sglang.srt.runtime_context import get_spec

    runner = worker.draft_worker.draft_runner
    plain = not isinstance(runner.token_to_kv_pool, SWAKVPool) and not runner.model_config.model_is_mrope
    return plain and not get_spec().speculative_use_rejection_sampling


def _agreement() -> Callable[[Shape], Shape]:
    """The first tensor-parallel rank's shape, for all of them; ranks whose clocks decide apart would hang."""
    from sglang.srt.runtime_context import get_parallel

    group = get_parallel().tp_group
    if get_parallel().tp_size == 1:
        return _alone
    import torch

    def agree(shape: Shape) -> Shape:
        numbers = torch.tensor([shape.steps, shape.topk, shape.draft_tokens])
        torch.distributed.broadcast(numbers, group.first_rank, group=group.cpu_group)
        return Shape(*numbers.tolist())

    return agree


def _show(guard: Guard) -> None:
    from sglang.srt.runtime_context import get_parallel

    from sglang_eagle31.patches import build_eagle_verify_input, internal_state_get
    from sglang_eagle31.server.resolve import refuse

    build_eagle_verify_input.GUARDS.append(guard)
    if get_parallel().attn_tp_rank:
        return
    reasons = internal_state_get.show("guard", guard.to_json)
    if reasons:
        raise refuse(reasons)
