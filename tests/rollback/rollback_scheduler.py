"""SGLang's scheduler on the world's objects; what a server has around it is silent or absent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from rollback_world import World

AROUND = """
    ipc_channels metrics_collector output_streamer profiler_manager load_publisher load_inquirer
""".split()
OFF = """
    enable_priority_scheduling enable_lora enable_lora_overlap_loading enable_overlap_mlx enable_pdmux
    is_hybrid_swa enable_hierarchical_cache enable_lmcache enable_session_radix_cache enable_hicache_storage
    enable_decode_hicache enable_unified_cache_external_linker enable_hisparse attn_dp_enabled
    enable_unified_memory enable_fpm abort_on_priority_when_disabled schedule_low_priority_values_first
    is_hybrid_ssm require_mlp_sync is_mixed_chunk
""".split()
NONE = """
    dllm_config decode_offload_manager hisparse_coordinator mm_receiver lora_drainer min_free_slots_delayer
    dynamic_chunk_sizer truncation_align_size scripted_scheduler_hook rust_server forward_sleep_time
    max_queued_requests scheduler_stage_metrics prefill_delayer
""".split()


class Silent:
    """What the scheduler reports to; it does nothing."""

    def __init__(self, **known: Any) -> None:
        self.__dict__ |= known

    def __getattr__(self, name: str) -> Any:
        return Silent()

    def __call__(self, *args: Any, **more: Any) -> None:
        pass


def make_scheduler(world: World) -> Any:
    """SGLang's scheduler over the world's pools, cache and worker."""
    from sglang.srt.disaggregation.utils import DisaggregationMode
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    class Bare(Scheduler):  # type: ignore[misc]
        """SGLang's scheduler without what it has around it."""

        def __init__(self) -> None:
            pass

        def publish_load_snapshot(self, force: bool = False) -> None:
            """Would tell a router."""

        def _record_step_counters(self, batch: Any, result: Any) -> None:
            """Would count for metrics."""

        def flush_cache(self, empty_cache: bool = True) -> Any:
            """Needs communicators."""

    loop: Any = Bare()
    shape = world.shape
    loop.__dict__ |= dict.fromkeys(OFF, False) | dict.fromkeys(NONE)
    loop.__dict__ |= {name: Silent() for name in AROUND}
    loop.__dict__ |= {
        "enable_overlap": shape.overlap,
        "disaggregation_mode": DisaggregationMode.NULL,
        "spec_algorithm": SpeculativeAlgorithm.from_string("EAGLE3"),
        "is_generation": True,
        "page_size": shape.page,
        "device": "cpu",
        "model_config": world.config,
        "tp_worker": world.target,
        "draft_worker": world.worker,
        "model_worker": world.worker,
        "req_to_token_pool": world.rows,
        "token_to_kv_pool_allocator": world.allocator,
        "tree_cache": world.cache,
        "max_running_requests": shape.rows,
        "max_prefill_tokens": 4 * shape.chunk,
        "processed_tokens_counter": 0,
        "schedule_policy": "lpm",
        "priority_scheduling_preemption_threshold": 0,
        "max_req_len": world.config.context_len - 1,
        "forward_stream": torch.cpu.current_stream(),
        "schedule_stream": torch.cpu.current_stream(),
        "grammar_manager": SimpleNamespace(has_waiting_grammars=lambda: False, abort_requests=lambda request: None),
        "ngram_embedding_manager": SimpleNamespace(prepare_for_forward=_same),
        "dp_attn_adapter": SimpleNamespace(maybe_prepare_mlp_sync_batch=_same, maybe_convert_decode_to_extend=_same),
        "chunked_prefill_size": shape.chunk,
        "chunked_req": None,
        "_pending_chunked_abort_req": None,
        "prefill_decode_interval": 0,
        "prefill_decode_interval_min_bs": None,
        "_prefill_decode_interval_remaining": 0,
        "_sched_idled": False,
        "metrics_reporter": Silent(enable_metrics=False, num_generated_tokens=0, forward_ct_decode=0),
        "pp_group": SimpleNamespace(is_last_rank=True),
    }
    loop.init_running_status()
    loop.init_schedule_policy()
    loop.init_overlap()
    loop.init_batch_result_processor()
    return loop


def _same(batch: Any, **more: Any) -> Any:
    return batch
