"""The sampler's penalties in a prefill for requests that have output already.

SGLang counts output tokens in its decode batches only. A request that was retracted starts its counts at zero when it
is prefilled again, and a running request that is mixed into a prefill (``--enable-mixed-chunk``) is one of several
tokens a round short. Both are sampled here by SGLang's sampler, so what it is given is replaced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from sglang_eagle31.server.lossless import penalties, processors
from sglang_eagle31.server.lossless.asks import Asks
from sglang_eagle31.server.lossless.copies import on
from sglang_eagle31.server.lossless.repair import LEDGERS, output_lengths, penalties_of, stops_of


@contextmanager
def repaired(batch: Any) -> Iterator[None]:
    """Within it, ``batch.sampling_info`` is right for a prefill; afterwards it is SGLang's again."""
    info, running = batch.sampling_info, {id(req) for req in batch.decoding_reqs or ()}
    going_on = [row for row, req in enumerate(batch.reqs) if id(req) in running or len(req.output_ids)]
    if batch.forward_mode.is_idle() or not going_on or (asks := Asks.of(batch.reqs, info)).none(info):
        yield
        return
    tails = [row for row in going_on if id(batch.reqs[row]) in running]
    roots = batch.input_ids[len(batch.input_ids) - len(tails) :].long().clone()  # tails are last, a token each
    batch.sampling_info = _exact(batch, asks, going_on, dict(zip(tails, range(len(tails)), strict=True)), roots)
    try:
        yield
    finally:
        batch.sampling_info = info
    rows = [row for row in tails if row in asks.remembered()]
    if rows:
        where = [tails.index(row) for row in rows]
        LEDGERS.commit([batch.reqs[row] for row in rows], where, roots.unsqueeze(1))


def _exact(batch: Any, asks: Asks, going_on: list[int], tails: dict[int, int], roots: torch.Tensor) -> Any:
    """The sampling info with what the rows ``going_on`` need; ``tails`` gives the place of a row in ``roots``."""
    info = batch.sampling_info
    changes: dict[str, Any] = {}
    counted = [row for row in asks.counted if row in going_on]
    short = [row for row in asks.short if row in going_on]
    if info.acc_additive_penalties is not None:
        rows = on(roots.device, going_on)
        added = info.acc_additive_penalties.index_fill(0, rows, 0.0)
        scaled = info.acc_scaling_penalties
        scaled = torch.ones_like(added) if scaled is None else scaled.index_fill(0, rows, 1.0)
        if counted:
            _count(batch, counted, tails, roots, added, scaled)
        if short:
            _forbid(batch, short, added)
        changes |= {"acc_additive_penalties": added, "acc_scaling_penalties": scaled}
    heard = [row for row in asks.processed if row in tails]
    if heard:
        params = list(info.custom_params)
        for row in heard:
            req, root = batch.reqs[row], int(roots[tails[row]])
            params[row] = processors.params_at_nodes(params[row], req, LEDGERS.find(req).read(), [[root]])[0]
        changes["custom_params"] = params
    return dataclasses.replace(info, **changes)


def _count(
    batch: Any, rows: list[int], tails: dict[int, int], roots: torch.Tensor, added: torch.Tensor, scaled: torch.Tensor
) -> None:
    """Write the penalties of ``rows`` into ``added`` and ``scaled`` [B, V]."""
    reqs, index = [batch.reqs[row] for row in rows], on(roots.device, rows)
    counts = LEDGERS.counts(reqs, added.shape[1], roots.device)
    last = [roots[tails[row]] if row in tails else roots.new_tensor(-1) for row in rows]
    counts = penalties.add_counts(counts, torch.stack(last).unsqueeze(1))
    asked = penalties_of(reqs, roots.device)
    added[index] = -asked.offsets(counts)
    scaled[index] = asked.factors(counts)


def _forbid(batch: Any, rows: list[int], added: torch.Tensor) -> None:
    """Write ``min_new_tokens`` of ``rows`` into ``added`` [B, V]."""
    reqs, index = [batch.reqs[row] for row in rows], on(added.device, rows)
    part = added[index].unsqueeze(1)
    lengths = output_lengths(batch, index, reqs).unsqueeze(1)
    penalties.forbid_stops(part, *stops_of(reqs, added.shape[1], added.device), lengths)
    added[index] = part.squeeze(1)
