"""The ops under the names by which SGLang imports them from `sgl_kernel` on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_eagle31.server.cpu import cache_locs, tree

OPS: dict[str, Callable[..., Any]] = {
    op.__name__: op
    for op in (
        cache_locs.assign_draft_cache_locs_contiguous_cpu,
        cache_locs.assign_extend_cache_locs_cpu,
        cache_locs.assign_req_to_token_pool_cpu,
        cache_locs.build_draft_decode_metadata_cpu,
        cache_locs.copy_all_layer_kv_cache_cpu,
        cache_locs.fill_accept_out_cache_loc_cpu,
        cache_locs.fill_bonus_tokens_cpu,
        cache_locs.rotate_input_ids_cpu,
        tree.build_tree_kernel_efficient_cpu,
        tree.verify_tree_greedy_cpu,
    )
}
"""Name in `sgl_kernel` to implementation."""
