"""Every seam into SGLang, one file each, with its Why and its Remove-when.

``python -m sglang_eagle31.patches`` prints ``docs/seams.md`` from these files; ``--check FILE`` fails when it is stale.
"""

from __future__ import annotations

from sglang_eagle31.patches import (
    attention_registry_torch_native,
    batch_result_processor_decode,
    batch_result_processor_finish_state,
    build_eagle_verify_input,
    draft_utils_decode_backend,
    draft_utils_extend_backend,
    eagle_draft_worker_draft_forward,
    eagle_utils_eagle_sample,
    eagle_utils_verify_uses_greedy,
    eagle_worker_v2,
    eagle_worker_v2_prefill,
    function_call_parser_parse_stream_chunk,
    internal_state_get,
    model_registry,
    reject_sampling_chain,
    req_update_finish_state,
    row_argmax,
    sampling_params_verify,
    server_args_add_cli_args,
    server_args_from_cli_args,
    server_args_resolve_once,
    spec_info_create_worker,
    spec_info_register,
    tokenizer_manager_spec_metrics,
    utils_build_server_info,
)
from sglang_eagle31.patches._seam import Group, Seam, fit, install

MODULES = (
    server_args_add_cli_args,
    server_args_from_cli_args,
    server_args_resolve_once,
    spec_info_register,
    spec_info_create_worker,
    eagle_worker_v2,
    build_eagle_verify_input,
    sampling_params_verify,
    eagle_utils_verify_uses_greedy,
    reject_sampling_chain,
    row_argmax,
    eagle_draft_worker_draft_forward,
    eagle_utils_eagle_sample,
    eagle_worker_v2_prefill,
    req_update_finish_state,
    batch_result_processor_finish_state,
    tokenizer_manager_spec_metrics,
    function_call_parser_parse_stream_chunk,
    model_registry,
    utils_build_server_info,
    batch_result_processor_decode,
    internal_state_get,
    attention_registry_torch_native,
    draft_utils_decode_backend,
    draft_utils_extend_backend,
)
SEAMS: tuple[Seam, ...] = tuple(module.SEAM for module in MODULES)


def group(name: Group) -> tuple[Seam, ...]:
    """The seams of one group."""
    return tuple(seam for seam in SEAMS if seam.group == name)


__all__ = ["MODULES", "SEAMS", "Group", "Seam", "fit", "group", "install"]
