"""Put another draft shape into SGLang's EAGLE worker between two rounds."""

from __future__ import annotations

import logging
from typing import Any

from sglang_eagle31.maths.shape import Shape

logger = logging.getLogger("sglang_eagle31")


class CpuSwitch:
    """On a CPU: no graphs, and attention backends that take any shape but for the draft's, which is made once a shape.

    SGLang's record keeps the configured shape: what it allocates for a round follows from that, and is enough for each
    smaller one.
    """

    everywhere = plain = True

    def __init__(self, worker: Any, configured: Shape) -> None:
        self.worker, self.configured, self.running = worker, configured, configured
        self.kept: dict[Shape, dict[str, Any]] = {configured: self._parts()}

    def run(self, shape: Shape) -> None:
        """Draft and verify ``shape`` from now on; not for a shape wider or deeper than the configured one."""
        if shape == self.running:
            return
        worker, draft = self.worker, self.worker.draft_worker
        worker.topk = shape.topk
        for each in (worker, draft):
            each.speculative_num_steps, each.speculative_num_draft_tokens = shape.steps, shape.draft_tokens
        if shape.steps:
            if shape not in self.kept:
                self.kept[shape] = self._made(shape)
            for name, value in self.kept[shape].items():
                setattr(draft, name, value)
            draft.draft_runner.draft_attn_backend = draft.draft_attn_backend
        self.running = shape

    def begin(self, draft_input: Any) -> None:
        """Before a draft: of the candidates that the last verification left, those that the shape has room for."""
        topk = self.worker.draft_worker.topk = self.running.topk
        if topk < self.configured.topk:
            draft_input.topk_p, draft_input.topk_index = draft_input.topk_p[:, :topk], draft_input.topk_index[:, :topk]

    def end(self) -> None:
        """After a draft: the next verification leaves as many as the configured shape has room for."""
        self.worker.draft_worker.topk = self.configured.topk

    def _parts(self) -> dict[str, Any]:
        draft = self.worker.draft_worker
        names = ("draft_attn_backend", "_topk1_parents_prealloc", "_topk1_score_indices_prealloc")
        return {name: getattr(draft, name) for name in names if hasattr(draft, name)}

    def _made(self, shape: Shape) -> dict[str, Any]:
        from sglang_eagle31.server.cpu.attention import multi_step_backend

        draft = self.worker.draft_worker
        draft.topk = shape.topk
        try:
            draft._rebuild_topk1_chain_buffers()
        finally:
            draft.topk = self.configured.topk
        backend = multi_step_backend(draft.draft_runner, shape.topk, shape.steps)
        return self._parts() | {"draft_attn_backend": backend}


class GraphSwitch:
    """On other devices: SGLang's adaptive runtime states, each with its own graphs; chains only, as SGLang's are."""

    everywhere, plain = False, True

    def __init__(self, worker: Any, configured: Shape) -> None:
        """Prepare the state without speculation beside the configured one; what SGLang raises if it cannot."""
        from sglang.srt.speculative.adaptive_runtime_state import SpecRuntimeState
        from sglang.srt.speculative.eagle_worker_v2 import logger as theirs

        self.worker, self.running = worker, configured
        draft, target = worker.draft_worker, worker.target_worker.model_runner
        self.states = {
            configured: SpecRuntimeState(
                configured.steps,
                configured.draft_tokens,
                draft_attn_backend=draft.draft_attn_backend,
                cuda_graph_runner=draft.cuda_graph_runner,
                target_attn_backend=target.attn_backend,
                target_graph_runner=target.decode_cuda_graph_runner,
                draft_extend_attn_backend=draft.draft_extend_attn_backend,
                cuda_graph_runner_for_draft_extend=draft.cuda_graph_runner_for_draft_extend,
            ),
            Shape(): worker.build_adaptive_runtime_state(0, 1),
        }
        theirs.addFilter(lambda record: not record.getMessage().startswith("Switch adaptive runtime state"))

    def run(self, shape: Shape) -> None:
        """Draft and verify ``shape`` from now on, one of the two."""
        if shape != self.running:
            self.worker.apply_runtime_state(self.states[shape])
            self.running = shape

    def begin(self, draft_input: Any) -> None:
        """Nothing: every shape has the same topk."""

    def end(self) -> None:
        """Nothing."""


class Still:
    """No other shape than the configured one can be run."""

    everywhere = plain = False

    def __init__(self, configured: Shape) -> None:
        self.running = configured

    def run(self, shape: Shape) -> None:
        """Only ever the configured shape."""
        assert shape == self.running

    def begin(self, draft_input: Any) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""
