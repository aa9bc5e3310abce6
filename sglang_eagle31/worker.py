"""Eagle31Worker: SGLang's EAGLE worker, with the target's captured layers checked and what runs reported."""

from __future__ import annotations

import logging
from typing import Any

from sglang.srt.runtime_context import get_context, get_spec
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

from sglang_eagle31 import algorithm, target
from sglang_eagle31.drafter.spec import DrafterSpec
from sglang_eagle31.lossless.prefill import repaired

logger = logging.getLogger("sglang_eagle31")


def register_drafters() -> None:
    """Make SGLang's loader find our drafter classes. Raises what their import raises."""
    from sglang.srt.models.registry import ModelRegistry

    ModelRegistry.register("sglang_eagle31.drafter", overwrite=True, strict=True)


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
