"""Attention in torch for a CPU: a few query rows a request over gathered keys, and prefill one request at a time."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention


def rows(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    scale: float,
    cap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same number of query rows for every request.

    Args:
        query: ``[B, n, heads, D]``.
        key, value: ``[B, L, kv_heads, D or Dv]``, any strides.
        bias: ``[B, 1, groups * n, L]`` as `masks.bias` gives it, or None when every key is visible.
        scale: factor on the scores.
        cap: logit cap (``cap * tanh(score / cap)``); 0 is none.
        sinks: one learned logit a head, ``[heads]``, that takes part in the softmax only.

    Returns:
        ``[B, n, heads * Dv]``.
    """
    batch, count, heads, width = query.shape
    kv_heads = key.shape[2]
    groups = heads // kv_heads
    # [B, n, kv, g, D] -> [B, kv, g * n, D]
    stacked = query.view(batch, count, kv_heads, groups, width).permute(0, 2, 3, 1, 4)
    stacked = stacked.reshape(batch, kv_heads, groups * count, width)
    key, value = key.transpose(1, 2).to(query.dtype), value.transpose(1, 2).to(query.dtype)
    if cap or sinks is not None:
        out = _explicit(stacked, key, value, bias, scale, cap, _sink_rows(sinks, kv_heads, groups, count))
    else:
        out = scaled_dot_product_attention(stacked, key, value, attn_mask=bias, scale=scale)
    out = out.view(batch, kv_heads, groups, count, -1).permute(0, 3, 1, 2, 4)
    return out.reshape(batch, count, -1)


def prefill(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    window: int = -1,
    cap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """One request's new tokens, causal over its committed and new tokens.

    Args:
        query: ``[n, heads, D]``; row i is token ``L - n + i``.
        key, value: ``[L, kv_heads, D or Dv]``.
        window: keys before the query that it sees; negative is all.

    Returns:
        ``[n, heads * Dv]``.
    """
    count, heads, _ = query.shape
    length, kv_heads = key.shape[0], key.shape[1]
    groups = heads // kv_heads
    plain = count == length and window < 0 and not cap and sinks is None
    bias = None if plain else _causal(count, length, window, query.dtype)
    grouped = query.view(count, kv_heads, groups, -1).permute(2, 1, 0, 3)  # [g, kv, n, D]
    key, value = key.transpose(0, 1).to(query.dtype), value.transpose(0, 1).to(query.dtype)
    out = []
    for group in range(groups):  # sharing keys among few groups beats repeating them
        args = (grouped[group].unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0))
        if cap or sinks is not None:
            rows_of = None if sinks is None else sinks.view(kv_heads, groups)[:, group].view(1, -1, 1, 1)
            out.append(_explicit(*args, bias, scale, cap, rows_of)[0])
        else:
            out.append(scaled_dot_product_attention(*args, attn_mask=bias, is_causal=plain, scale=scale)[0])
    return torch.stack(out, dim=1).permute(2, 0, 1, 3).reshape(count, -1)  # [kv, g, n, D] -> [n, kv, g, D]


def _causal(count: int, length: int, window: int, dtype: torch.dtype) -> torch.Tensor:
    query = torch.arange(length - count, length).unsqueeze(1)
    key = torch.arange(length)
    hidden = key > query
    if window >= 0:
        hidden |= key < query - window
    return torch.zeros(count, length, dtype=dtype).masked_fill_(hidden, float("-inf"))


def _sink_rows(sinks: torch.Tensor | None, kv_heads: int, groups: int, count: int) -> torch.Tensor | None:
    """``[heads]`` to ``[1, kv_heads, groups * n, 1]``."""
    if sinks is None:
        return None
    return sinks.view(1, kv_heads, groups, 1).expand(-1, -1, -1, count).reshape(1, kv_heads, groups * count, 1)


def _explicit(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    scale: float,
    cap: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Softmax attention in float32 for what torch's fused kernel does not know: a logit cap and sinks."""
    scores = torch.matmul(query.float(), key.float().transpose(-1, -2)) * scale
    if cap:
        scores = cap * torch.tanh(scores / cap)
    if bias is not None:
        scores = scores + bias.float()
    if sinks is not None:
        scores = torch.cat([scores, sinks.float().expand(*scores.shape[:-1], 1)], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : key.shape[-2]]
    return torch.matmul(weights, value.float()).to(query.dtype)
