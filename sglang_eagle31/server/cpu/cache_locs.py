"""KV-slot bookkeeping ops of EAGLE speculative decoding on a CPU.

Dimensions: B requests; W = width of a row of `req_to_token`; K = topk; D = draft steps; S = longest accepted path.
`req_to_token` [requests, W] int32 maps a request's row and a position to a KV slot. Other tensors may have any integer
dtype; `B == 0` is a no-op everywhere. NumPy on zero-copy views, as in `tree`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Ints = NDArray[np.integer[Any]]

_LENGTH_UNKNOWN = 1 << 60
"""Bytes that a view of a buffer of unknown length claims to have."""


class _Rows:
    """NumPy array interface over the rows of a buffer of which only the address and the row size are known."""

    def __init__(self, address: int, row_bytes: int) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (_LENGTH_UNKNOWN // row_bytes,),
            "typestr": f"|V{row_bytes}",
            "version": 3,
        }


@lru_cache(maxsize=16)
def _row_views(addresses: tuple[int, ...], row_bytes: tuple[int, ...]) -> tuple[NDArray[np.void], ...]:
    """One array of opaque rows per buffer. Views do not own memory, so a cached one is as good as its address."""
    return tuple(np.asarray(_Rows(*buffer)) for buffer in zip(addresses, row_bytes, strict=True))


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """Copy rows `src_loc` to rows `tgt_loc` in every K and V buffer; rows may overlap (all are read before any write).

    Args:
        data_ptrs: [buffers] uint64 address of each buffer, which the caller keeps alive.
        strides: [buffers] bytes of a row of each buffer.
        tgt_loc: [M] rows to write.
        src_loc: [M] rows to read.

    Raises:
        ValueError: a negative row. Rows past a buffer's end cannot be seen from here.
    """
    target, source = tgt_loc.numpy().ravel(), src_loc.numpy().ravel()
    moves = (target != source).nonzero()[0]  # accepted nodes often lie in place already
    if moves.size == 0:
        return
    target, source = target.take(moves), source.take(moves)
    if target.min() < 0 or source.min() < 0:
        raise ValueError(f"KV rows must not be negative: tgt_loc={target}, src_loc={source}")
    for rows in _row_views(tuple(data_ptrs.tolist()), tuple(strides.tolist())):
        rows[target] = rows[source]


def _ragged(starts: Ints, lengths: Ints) -> Ints:
    """Concatenation of the ranges [starts[i], starts[i] + lengths[i]): int64 [sum of lengths]."""
    if starts.size == 1:
        start = int(starts[0])
        return np.arange(start, start + int(lengths[0]))
    ends = lengths.cumsum(dtype=np.int64)
    total = int(ends[-1]) if ends.size else 0
    index: Ints = np.repeat(starts - ends + lengths, lengths) + np.arange(total)
    return index


def _row_starts(req_pool_indices: torch.Tensor, positions: Ints, pool_len: int) -> Ints:
    """Flat index into `req_to_token` of one position of each request: int64 [B]."""
    starts: Ints = np.multiply(req_pool_indices.numpy(), pool_len, dtype=np.int64) + positions
    return starts


def _flat(table: torch.Tensor) -> Ints:
    """Flat view of a contiguous tensor; a non-contiguous one is an error of torch's, never a copy."""
    flat: Ints = table.view(-1).numpy()
    return flat


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """Gather the KV slots of accepted nodes, packed to the front of the output; what follows them is left alone.

    Args:
        accept_index: [B*S] or [B, S] index into `out_cache_loc`, negative = not accepted.
        out_cache_loc: [B*N] KV slot of each node.
        accept_out_cache_loc: [>= accepted], written.
    """
    index = accept_index.numpy().ravel()
    accepted = index[index >= 0]
    accept_out_cache_loc.numpy()[: accepted.size] = out_cache_loc.numpy().take(accepted)


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor, accept_stride: int
) -> None:
    """Last accepted token of each request.

    Args:
        accept_tokens: [B*S] or [B, S] the target's tokens along the accepted path.
        accept_lens: [B] tokens accepted, bonus included, so at least 1.
        bonus_tokens: [B], written.
        accept_stride: S.
    """
    lens = accept_lens.numpy()
    index = np.arange(-1, lens.size * accept_stride - 1, accept_stride) + lens
    bonus_tokens.numpy()[...] = accept_tokens.numpy().ravel().take(index)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Read each request's K*D draft slots, reserved from position `seq_lens` on.

    Args:
        req_pool_indices: [B] row of each request.
        req_to_token: [requests, W].
        seq_lens: [B] committed tokens.
        out_cache_loc: [B*K*D], written.
        pool_len: W.
        topk: K.
        num_steps: D.
    """
    begin = _row_starts(req_pool_indices, seq_lens.numpy(), pool_len)
    slots = np.arange(topk * num_steps)
    out_cache_loc.numpy()[...] = _flat(req_to_token).take((begin[:, None] + slots).ravel())


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Read each request's slots of positions [start, end), packed one request after the other.

    Args:
        req_pool_indices: [B] row of each request.
        req_to_token: [requests, W].
        start_offset: [B].
        end_offset: [B], not below `start_offset`.
        out_cache_loc: [>= sum of lengths], written up to that sum.
        pool_len: W.
    """
    start = start_offset.numpy()
    index = _ragged(_row_starts(req_pool_indices, start, pool_len), end_offset.numpy() - start)
    out_cache_loc.numpy()[: index.size] = _flat(req_to_token).take(index)


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write fresh slots into positions [start, end) of each request; the inverse of `assign_extend_cache_locs_cpu`.

    Args:
        req_pool_indices: [B] row of each request.
        req_to_token: [requests, W], written.
        start_offset: [B].
        end_offset: [B], not below `start_offset`.
        out_cache_loc: [>= sum of lengths] slots, one request after the other.
        pool_len: W.
    """
    start = start_offset.numpy()
    index = _ragged(_row_starts(req_pool_indices, start, pool_len), end_offset.numpy() - start)
    _flat(req_to_token)[index] = out_cache_loc.numpy()[: index.size]


def rotate_input_ids_cpu(
    input_ids: torch.Tensor,
    extend_start_loc: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    topk_index: torch.Tensor,
    select_index: torch.Tensor | None = None,
) -> None:
    """Shift each request's segment left by one token, in place, and put a new token at its end.

    Args:
        input_ids: [tokens], written.
        extend_start_loc: [B] first token of each segment.
        extend_seq_lens: [B] length of each segment; an empty one is left alone.
        topk_index: [B] or [B, 1] new token.
        select_index: [B] index into `input_ids` for the new token, in place of the segment's end.
    """
    lens = extend_seq_lens.numpy()
    if lens.size == 0:
        return
    begin, tokens, ids = extend_start_loc.numpy().astype(np.int64), topk_index.numpy().ravel(), input_ids.numpy()
    last = begin + lens - 1 if select_index is None else select_index.numpy()
    kept = lens > 0
    if not kept.all():
        begin, lens, tokens, last = begin[kept], lens[kept], tokens[kept], last[kept]
    index = _ragged(begin, lens - 1)
    ids[index] = ids.take(index + 1)
    ids[last] = tokens


def build_draft_decode_metadata_cpu(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> torch.Tensor:
    """One table row per draft branch: the request's committed slots, then the D slots of that branch.

    Args:
        req_to_token: [requests, W] with branch k's slots at positions seq_len + k*D to seq_len + (k+1)*D - 1.
        req_pool_indices: [B] row of each request.
        seq_lens: [B] committed tokens.
        topk: K.
        num_steps: D.
        pool_len: W.

    Returns:
        [B*K, W], dtype of `req_to_token`; row b*K + k is defined in its first seq_lens[b] + D entries.
    """
    lens = seq_lens.numpy()
    batch = lens.size
    table = torch.empty((batch * topk, pool_len), dtype=req_to_token.dtype)
    if batch == 0:
        return table
    known = req_to_token.numpy()
    rows = table.numpy().reshape(batch, topk, pool_len)
    longest = int(lens.max())
    rows[:, :, :longest] = known[req_pool_indices.numpy(), :longest][:, None]
    steps = np.arange(num_steps)
    branch = np.arange(topk)[:, None]
    position = lens[:, None, None] + steps  # [B, 1, D]
    slots = known[req_pool_indices.numpy()[:, None, None], position + branch * num_steps]  # [B, K, D]
    rows[np.arange(batch)[:, None, None], branch, position] = slots
    return table
