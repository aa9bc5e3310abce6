"""One forward of SGLang's draft model as the probe sees it: which rows, of which requests, at which depth."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from sglang_eagle31.server.probe import attention

View = tuple[Tensor, Tensor, Tensor, Tensor]
"""Weights ``[R, A, S]``, visible ``[R, S]``, columns ``[S]``, own keys ``[R]`` of one layer."""


@dataclass
class Rows:
    """One request's part of a forward.

    Attributes:
        rid: SGLang's id of the request.
        slot: its row in the table of cache slots.
        first, last: its rows in the forward; ``last`` is the one from which drafting starts, except in draft steps,
            where all rows from ``first`` to ``last`` count.
        length: committed tokens, the row's own included at depth 0.
        located: rows by which the sink is located, in a prefill.
        means: mean weight of each key over those rows, one a layer.
        views: what the rows attend to, one a layer.
    """

    rid: str
    slot: Tensor
    first: int
    last: int
    length: int
    located: list[int] = field(default_factory=list)
    means: list[Tensor] = field(default_factory=list)
    views: list[View] = field(default_factory=list)

    def keep(self, weight: Tensor, visible: Tensor, columns: Tensor, own: Tensor, located: int) -> None:
        """The weights of one layer: the first ``located`` rows locate the sink, the rest are measured."""
        if located:
            self.means.append(attention.column_means(weight[:located], own[:located]))
        if len(weight) > located:
            self.views.append((weight[located:], visible[located:], columns, own[located:]))


@dataclass
class Scene:
    """One forward.

    Attributes:
        kind: ``prefill``, ``extend`` (the accepted tokens after a verify) or ``draft``.
        depth: 0, or the depth of the drafted rows.
        sampled: whether its rows are recorded.
        requests: its requests in order.
        fed: the states that the forward was given, ``[rows, width]``.
        fused: what ``fc`` made of them.
        whole: whether the slots of all earlier steps of the round are known.
    """

    kind: Literal["prefill", "extend", "draft"]
    depth: int
    sampled: bool
    requests: list[Rows]
    fed: Tensor | None
    fused: Tensor | None = None
    whole: bool = True

    def fresh(self, rows: Rows) -> bool:
        """Whether the forward's own rows are all keys of the request: a prefill that continues nothing."""
        return self.kind == "prefill" and rows.last - rows.first + 1 == rows.length

    def sinks(self) -> list[int | None]:
        """The located sink of each request; one copy from the device."""
        found = [torch.stack(rows.means).mean(0).argmax() if rows.means else None for rows in self.requests]
        seen = [one for one in found if one is not None]
        places = iter(torch.stack(seen).tolist() if seen else [])
        return [None if one is None else int(next(places)) for one in found]


def open_scene(positions: Tensor, batch: Any, sampled: bool) -> Scene | None:
    """The scene of a forward, or None when nothing of it is watched."""
    mode = batch.forward_mode
    fed = getattr(batch.spec_info, "hidden_states", None)
    if mode.is_idle() or mode.is_target_verify():
        return None
    if mode.is_draft_extend_v2():
        return Scene("extend", 0, True, _extend(positions, batch), fed) if sampled else None
    if mode.is_extend():
        return Scene("prefill", 0, sampled, _prefill(batch), fed)
    if mode.is_decode() and sampled:
        return _draft(positions, batch, fed)
    return None


def _prefill(batch: Any) -> list[Rows]:
    out, start = [], 0
    # SGLang keeps copies on the CPU, where they need no synchronisation; not in every mode.
    news = batch.extend_seq_lens_cpu or batch.extend_seq_lens.tolist()
    befores = batch.extend_prefix_lens_cpu or batch.extend_prefix_lens.tolist()
    for index, (new, before) in enumerate(zip(news, befores, strict=True)):
        located = [start + row for row in attention.sink_rows(new)]
        slot = batch.req_pool_indices[index]
        out.append(Rows(batch.rids[index], slot, start, start + new - 1, before + new, located))
        start += new
    return out


def _extend(positions: Tensor, batch: Any) -> list[Rows]:
    """The last accepted row of each request; the rows after it are padding."""
    count, accepted = batch.batch_size, batch.spec_info.num_accept_tokens.tolist()
    width = len(positions) // count
    rows = [index * width + taken - 1 for index, taken in enumerate(accepted)]
    places = positions[torch.tensor(rows, device=positions.device)].tolist()
    return [
        Rows(batch.rids[index], batch.req_pool_indices[index], index * width, row, place + 1)
        for index, (row, place) in enumerate(zip(rows, places, strict=True))
    ]


def _draft(positions: Tensor, batch: Any, fed: Tensor | None) -> Scene | None:
    """Rows of one request follow each other, one a branch; the first step's position is the committed length."""
    lengths = batch.seq_lens.tolist()
    branches = len(positions) // len(lengths)
    depths = set((positions.view(len(lengths), branches) - batch.seq_lens.view(-1, 1) + 1).flatten().tolist())
    if len(depths) != 1 or min(depths) < 1:
        return None
    requests = [
        Rows(batch.rids[index], batch.req_pool_indices[index], index * branches, (index + 1) * branches - 1, length)
        for index, length in enumerate(lengths)
    ]
    return Scene("draft", depths.pop(), True, requests, fed)
