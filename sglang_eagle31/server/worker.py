"""Eagle31Worker: SGLang's EAGLE worker, with the target's captured layers checked and what runs reported."""

from __future__ import annotations

import logging
from typing import Any

from sglang.srt.runtime_context import get_context, get_spec
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

from sglang_eagle31.head.spec import DrafterSpec
from sglang_eagle31.server import capture as target
from sglang_eagle31.server import resolve as algorithm
from sglang_eagle31.server.guard.install import attach
from sglang_eagle31.server.guard.live import Guard
from sglang_eagle31.server.lossless.prefill import repaired
from sglang_eagle31.server.options import Eagle31Config

logger = logging.getLogger("sglang_eagle31")


def register_drafters() -> None:
    """Make SGLang's loader find our drafter classes. Raises what their import raises."""
    from sglang.srt.models.registry import ModelRegistry

    ModelRegistry.register("sglang_eagle31.server.drafter", overwrite=True, strict=True)


class HeadWeights:
    """SGLang's updater of the draft's weights, except from disk.

    ``/update_weights_from_disk`` loads its path into the target and then into the draft, too, but it holds a target and
    no head. What the head shares with the target (embedding, output rows) is the same memory and updated with it.
    """

    def __init__(self, updater: Any) -> None:
        self._updater = updater

    def __getattr__(self, name: str) -> Any:
        return getattr(self._updater, name)

    def update_weights_from_disk(self, *args: Any, **kwargs: Any) -> tuple[bool, str]:
        """Nothing to do; SGLang's success and message."""
        return True, "Succeeded to update the target's weights; the draft head keeps its own."


class Eagle31Worker(EAGLEWorkerV2):
    """SGLang's worker for an EAGLE31 server; drafting, verification and caches are inherited."""

    guard: Guard | None = None

    def init_attention_backends(self) -> None:
        """Compare what the target captures with the head's spec, before graphs are captured.

        Raises:
            ValueError: the target's captured layers cannot be read back.
        """
        super().init_attention_backends()
        plan = algorithm.plan_of(self.server_args)
        assert plan is not None, "Eagle31Worker needs the plan that algorithm.resolve left on the server arguments"
        spec = DrafterSpec.from_json(plan["spec"])
        self._check_capture(spec)
        for _, runner in self.weight_update_runners():
            runner.weight_updater = HeadWeights(runner.weight_updater)
        if plan["seeds"]:
            get_context().override("eagle31.seeds", enable_deterministic_inference=True)
        facts = algorithm.facts_of(self.server_args)
        assert facts is not None
        logger.info(algorithm.describe(facts))

    def init_cuda_graphs(self, *args: Any, **kwargs: Any) -> None:
        """SGLang's, then the guard, which may prepare more of them."""
        super().init_cuda_graphs(*args, **kwargs)
        self.guard = attach(self, Eagle31Config.of(self.server_args).guard)

    def forward_batch_generation(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """SGLang's round, in the shape that the guard chooses."""
        if self.guard is None:
            return super().forward_batch_generation(batch, *args, **kwargs)
        return self.guard.around(super().forward_batch_generation, batch, *args, **kwargs)

    def on_verify_complete_cpu(self, num_correct_drafts_per_req: list[int], batch_size: int = 0) -> None:
        """SGLang's, and the guard's, where it could not read the round before."""
        super().on_verify_complete_cpu(num_correct_drafts_per_req, batch_size)
        if self.guard is not None and self.device != "cpu":
            self.guard.processed(num_correct_drafts_per_req)

    def _stub_skipped_draft_extend(self, batch: Any, batch_output: Any) -> None:
        """SGLang's, as wide as the configured draft, and the guard keeps what the draft did not read."""
        running: int = self.topk
        self.topk: int = self.draft_worker.topk
        super()._stub_skipped_draft_extend(batch, batch_output)
        self.topk = running
        if self.guard is not None and self.guard.backlog is not None:
            self.guard.skipped(batch, batch_output)

    def alloc_memory_pool(self, *args: Any, **kwargs: Any) -> Any:
        """SGLang's, which refuses rejection sampling with a reduced draft vocabulary; on a CPU it is served.

        The method looks at the option for that refusal alone (seam `EagleDraftWorker.draft_forward` does the rest).
        """
        if self.device != "cpu":
            return super().alloc_memory_pool(*args, **kwargs)
        with get_spec().override(speculative_use_rejection_sampling=False):
            return super().alloc_memory_pool(*args, **kwargs)

    def _forward_prefill_batch(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """SGLang's prefill, with the penalties of requests that have output already."""
        with repaired(batch):
            return super()._forward_prefill_batch(batch, *args, **kwargs)

    def _check_capture(self, spec: DrafterSpec) -> None:
        if not spec.use_aux_hidden_state:
            return  # the head reads the final state, which SGLang always hands out
        model: Any = self.target_worker.model_runner.model
        try:
            had = target.align_capture(model, list(spec.boundaries))
        except ValueError as error:
            raise algorithm.refuse([str(error)]) from error
        if had != list(spec.boundaries):
            logger.info("EAGLE31: SGLang would have captured %s; set to %s", had, list(spec.boundaries))
