"""Queries and keys of SGLang's attention layers, read from what a layer was given and from the KV pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sglang_eagle31.server.probe.scene import Rows


def query_of(layer: Any, query: Tensor, kwargs: Mapping[str, Any]) -> Tensor:
    """``[rows, heads, D]``; a latent layer may bring its rotated part apart."""
    rotated = kwargs.get("q_rope")
    if rotated is None:
        return query.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
    heads = layer.tp_q_head_num
    return torch.cat([query.reshape(-1, heads, query.shape[-1]), rotated.reshape(-1, heads, rotated.shape[-1])], dim=-1)


def committed(runner: Any, layer: Any, rows: Rows, given: Tensor | None, fresh: bool) -> Tensor | None:
    """Keys of a request's committed tokens, ``[length, key heads, D]``; None where the pool holds another form.

    A latent layer that attends to a prompt in full form is given its keys, and writes latents to the pool; such keys
    are taken as they were ``given`` when they are all the keys that there are (``fresh``).
    """
    slots = runner.req_to_token_pool.req_to_token[rows.slot, : rows.length]
    found = _pooled(runner, layer, slots)
    if found is None and fresh and given is not None:
        found = given.reshape(len(given), layer.tp_k_head_num, -1)[rows.first : rows.last + 1]
    return found if found is not None and found.shape[-1] == layer.qk_head_dim else None


def drafted(runner: Any, layer: Any, rows: Rows, path: Sequence[Tensor]) -> Tensor | None:
    """Committed keys and those of the drafted rows, step after step: ``[length + steps * branches, key heads, D]``."""
    table = runner.req_to_token_pool.req_to_token
    return _pooled(runner, layer, torch.cat([table[rows.slot, : rows.length].long(), *path]))


def branches(length: int, count: int, depth: int, device: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Columns ``[S]``, visible ``[count, S]`` and own keys ``[count]`` of ``count`` branches at a depth.

    A row sees the committed keys and the slots of its own branch.
    """
    everyone = torch.arange(count, device=device)
    steps = torch.arange(depth, device=device).repeat_interleave(count)
    columns = torch.cat([torch.arange(length, device=device), length + steps])
    own = torch.eye(count, dtype=torch.bool, device=device).repeat(1, depth)
    visible = torch.cat([torch.ones(count, length, dtype=torch.bool, device=device), own], dim=1)
    return columns, visible, length + (depth - 1) * count + everyone


def _pooled(runner: Any, layer: Any, slots: Tensor) -> Tensor | None:
    pool, slots = runner.token_to_kv_pool, slots.long()
    mapping = getattr(pool, "layers_mapping", None)
    if mapping is not None and mapping[layer.layer_id][1]:  # a sliding-window layer has a pool of its own
        slots = pool.translate_loc_from_full_to_swa(slots).long()
    found: Tensor = pool.get_key_buffer(layer.layer_id)[slots]
    return found if found.dim() == 3 and found.shape[-1] == layer.qk_head_dim else None
