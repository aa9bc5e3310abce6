"""SGLang's scheduler, allocator, pools, prefix cache and EAGLE worker, in this process, with a language for a model.

All of these are the real objects; only the forward of the two models is a stand-in (`rollback_runners`), and what a
server has around the scheduler (sockets, metrics, streaming) is absent. On a CPU without ``sgl_kernel`` the ops under
them are ours.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any, Protocol
from unittest.mock import patch

import torch
import torch._dynamo
from rollback_language import STOP, VOCAB
from transformers import LlamaConfig

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")  # before SGLang asks what it runs on
CPU = "cpu"


@dataclass(frozen=True)
class Shape:
    """What a walk is run with.

    Attributes:
        page: tokens a page of the KV pool.
        topk, steps, nodes: the draft tree; ``nodes`` counts the root.
        slots: tokens that the KV pool holds.
        rows: requests that can hold KV at once.
        chunk: tokens a prefill, longer prompts come in chunks.
        cache: "unified" (what servers use, its core in Rust), "unified-python" or "radix" (`RadixCache`).
        overlap: the scheduler works one round behind the model, as servers do by default.
    """

    page: int = 1
    topk: int = 1
    steps: int = 3
    nodes: int = 4
    slots: int = 400
    rows: int = 6
    chunk: int = 32
    cache: str = "unified"
    overlap: bool = True


@contextlib.contextmanager
def world(shape: Shape, seed: int) -> Iterator[World]:
    """A fresh world under SGLang's process-wide configuration, which is put back afterwards."""
    from sglang.srt.plugins import load_plugins
    from sglang.srt.runtime_context import get_context

    load_plugins()
    settings = get_context().override_server_args(
        device=CPU,
        page_size=shape.page,
        attention_backend="torch_native",
        speculative_algorithm="EAGLE3",
        speculative_num_steps=shape.steps,
        speculative_eagle_topk=shape.topk,
        speculative_num_draft_tokens=shape.nodes,
        chunked_prefill_size=shape.chunk,
        max_prefill_tokens=4 * shape.chunk,
        max_running_requests=shape.rows,
        pp_max_micro_batch_size=shape.rows,
        disable_overlap_schedule=not shape.overlap,
        schedule_policy="lpm",
        schedule_conservativeness=0.2,  # admit more than fits, so that requests have to be sent back
    )
    from sglang.srt.managers import overlap_utils

    with settings, torch.inference_mode(), torch._dynamo.config.patch(disable=True):
        # Overlap hands values from round to round with a Triton kernel; on a CPU SGLang does not overlap.
        with patch.object(overlap_utils, "gather_spec_extras", _gather):
            yield World(shape, seed)


def _gather(index: torch.Tensor, *buffers: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(buffer[index] for buffer in buffers)


class Watch(Protocol):
    """Told what the scheduler does."""

    def scheduled(self, batch: Any) -> None:
        """A batch (None: nothing) is to run; its slots are allocated."""

    def ran(self, batch: Any) -> None:
        """It has run on the models."""

    def using(self, batch: Any) -> None:
        """The scheduler is about to use the result of a batch."""


class World:
    """The objects, and one step of the scheduler's loop."""

    def __init__(self, shape: Shape, seed: int) -> None:
        from rollback_runners import DraftRunner, Drafts, TargetRunner
        from rollback_scheduler import make_scheduler

        self.shape = shape
        self.config: Any = SimpleNamespace(
            vocab_size=VOCAB,
            context_len=512,
            model_is_mrope=False,
            requires_mm_token_modalities=False,
            self_opened_think_start_ids=None,
            think_end_ids=None,
            linear_attn_registry_result=None,
            is_multimodal=False,
            is_encoder_decoder=False,
            hf_config=LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=VOCAB),
        )
        self._make_pools()
        self.drafts = Drafts(shape, Random(seed))
        self.target = TargetRunner(self)
        self.draft = DraftRunner(self, self.drafts)
        self.worker = self._make_worker()
        self.scheduler = make_scheduler(self)
        self.requests: dict[str, Any] = {}

    def _make_pools(self) -> None:
        from sglang.srt.mem_cache.allocation_sizing import get_req_to_token_extra_context_len
        from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
        from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool

        shape, width = self.shape, self.config.context_len + get_req_to_token_extra_context_len()
        self.rows = ReqToTokenPool(shape.rows, width, CPU, enable_memory_saver=False)

        def pool() -> Any:
            sizes: dict[str, Any] = {"head_num": 1, "head_dim": 1, "layer_num": 1, "device": CPU}
            return MHATokenToKVPool(
                shape.slots,
                shape.page,
                torch.int64,
                enable_memory_saver=False,
                enable_kv_cache_copy=True,
                **sizes,
            )

        self.target_kv, self.draft_kv = pool(), pool()
        if shape.page == 1:
            self.allocator: Any = TokenToKVPoolAllocator(shape.slots, torch.int64, CPU, self.target_kv, need_sort=False)
        else:
            self.allocator = PagedTokenToKVPoolAllocator(
                shape.slots, shape.page, torch.int64, CPU, self.target_kv, need_sort=False
            )
        self.cache = self._make_cache()

    def _make_cache(self) -> Any:
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.radix_cache import RadixCache
        from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

        params = CacheInitParams(
            disable=False,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            page_size=self.shape.page,
            is_eagle=True,
            tree_components=(ComponentType.FULL,),
            tree_core_backend="python" if self.shape.cache == "unified-python" else None,
        )
        return RadixCache(params) if self.shape.cache == "radix" else UnifiedRadixCache(params)

    def _make_worker(self) -> Any:
        from rollback_scheduler import Silent
        from sglang.srt.configs.draft_parallel import DraftParallelLayout
        from sglang.srt.speculative.eagle_utils import default_tree_mask_mode
        from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker, EAGLEWorkerV2
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        shape = self.shape
        shared: dict[str, Any] = {
            "server_args": None,
            "device": CPU,
            "topk": shape.topk,
            "speculative_num_steps": shape.steps,
            "speculative_num_draft_tokens": shape.nodes,
            "speculative_algorithm": SpeculativeAlgorithm.from_string("EAGLE3"),
            "plan_stream": None,
            "plan_stream_ctx": contextlib.nullcontext(),
            "req_to_token_pool": self.rows,
            "token_to_kv_pool_allocator": self.allocator,
        }
        drafter: Any = EagleDraftWorker.__new__(EagleDraftWorker)
        drafter.__dict__ |= shared | {
            "target_worker": self.target,
            "draft_worker": SimpleNamespace(model_runner=self.draft),
            "draft_runner": self.draft,
            "parallel_layout": DraftParallelLayout(tp_group=None, attn_tp_size=1),
            "cuda_graph_runner": None,
            "cuda_graph_runner_for_draft_extend": None,
            "draft_attn_backend": Silent(attn_backends=[None] * shape.steps),
            "hot_token_id": None,
            "index_share_for_mtp_iteration": False,
            "seed_dsa_topk_from_draft_extend": False,
            "tree_mask_mode": default_tree_mask_mode(),
        }
        drafter._rebuild_topk1_chain_buffers()
        worker: Any = EAGLEWorkerV2.__new__(EAGLEWorkerV2)
        worker.__dict__ |= shared | {
            "_target_worker": self.target,
            "_draft_worker": drafter,
            "adaptive_controller": None,
            "enable_dp_spec_prefill_coordination": False,
        }
        return worker

    def ask(self, name: str, prompt: list[int], count: int, stops: bool) -> None:
        """Queue a request: ``count`` tokens at most, and whether it stops at `STOP`."""
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.sampling.sampling_params import SamplingParams

        sampling = SamplingParams(
            max_new_tokens=count, temperature=0.0, stop_token_ids=[STOP] if stops else None, ignore_eos=not stops
        )
        sampling.normalize(None)
        request = Req(name, "", array("q", prompt), sampling, vocab_size=VOCAB)
        self.requests[name] = request
        self.scheduler._add_request_to_queue(request)

    def abort(self, name: str) -> None:
        """As a client that went away."""
        from sglang.srt.managers.io_struct import AbortReq

        self.scheduler.abort_request(AbortReq(rid=name))

    def step(self, watch: Watch) -> bool:
        """One turn of the scheduler's loop; False when there was nothing to do."""
        loop, waiting = self.scheduler, self.scheduler.result_queue
        plan = loop.get_next_batch_to_run(running_batch=loop.running_batch, last_batch=loop.last_batch)
        loop.running_batch, batch = plan.running_batch, plan.batch_to_run
        watch.scheduled(batch)
        busy = batch is not None or bool(waiting)
        if waiting and (batch is None or loop.is_disable_overlap_for_batch(batch, last_batch=loop.last_batch)):
            self._use(*waiting.popleft(), watch)
        if batch is not None:
            result = loop.run_batch(batch)
            watch.ran(batch)
            waiting.append((batch.copy(), result))
        if len(waiting) > self.shape.overlap:
            self._use(*waiting.popleft(), watch)
        loop.last_batch = batch
        return busy

    def empty_cache(self) -> None:
        """Evict everything that no request holds."""
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        self.cache.evict(EvictParams(num_tokens=self.shape.slots))

    def _use(self, batch: Any, result: Any, watch: Watch) -> None:
        watch.using(batch)
        self.scheduler.process_batch_result(batch, result)
