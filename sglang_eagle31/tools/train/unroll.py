"""The unrolled drafter: which rows take part, and attention over the context and each row's own chain.

Only rows that a loss reads are carried through the steps; all rows give keys and values at step 0. Dimensions: B
sequences, n positions, R rows kept of all sequences, m the most rows of one sequence, d head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_eagle31.tools.train.model import DraftHead, rope_tables

Embed = Callable[[int], Tensor]


@dataclass
class Rows:
    """The rows that are unrolled, sequence by sequence."""

    sequence: Tensor
    """``[R]``"""
    row: Tensor
    """``[R]``: position in the sequence."""
    slot: Tensor
    """``[R]``: place in a padded ``[B * m]``."""
    padded: Tensor
    """``[B, m]``: the rows' positions, 0 where there is none."""

    @classmethod
    def of(cls, wanted: Tensor) -> Rows:
        """The rows where ``wanted [B, n]`` is True."""
        sequence, row = wanted.nonzero(as_tuple=True)
        counts = wanted.sum(dim=1)
        m = max(int(counts.max()), 1)
        first = torch.cumsum(counts, 0) - counts
        slot = sequence * m + torch.arange(len(row), device=row.device) - first[sequence]
        padded = row.new_zeros(wanted.shape[0] * m)
        padded[slot] = row
        return cls(sequence, row, slot, padded.view(wanted.shape[0], m))

    @classmethod
    def leading_to(cls, counted: Tensor, steps: int) -> Rows:
        """The rows whose prediction at some step is one of the positions ``counted [B, n]``."""
        wanted = torch.zeros_like(counted)
        for step in range(steps):
            wanted |= F.pad(counted[:, 1 + step :], (0, min(1 + step, counted.shape[1])))
        return cls.of(wanted)

    def pad(self, x: Tensor) -> Tensor:
        """``x [R, ...]`` as ``[B, m, ...]``, zero where there is no row."""
        whole = x.new_zeros(self.padded.numel(), *x.shape[1:]).index_copy(0, self.slot, x)
        return whole.view(*self.padded.shape, *x.shape[1:])

    def unpad(self, x: Tensor) -> Tensor:
        """Inverse of ``pad``."""
        return x.flatten(0, 1).index_select(0, self.slot)


def hidden_keys(rows: Tensor, n: int, step: int, window: int | None) -> Tensor:
    """``[..., n]`` bool: step-0 keys that the queries of ``rows [...]`` do not see at ``step``.

    The query stands at position ``row + step``; with a window it sees that many positions, its own included.
    """
    keys = torch.arange(n, device=rows.device)
    hidden = keys > rows[..., None]
    if window is not None:
        hidden |= keys <= rows[..., None] + step - window
    return hidden


def chain_attention(
    q: Tensor, context: tuple[Tensor, Tensor], chain: list[tuple[Tensor, Tensor]], hidden: Tensor, rows: Rows
) -> Tensor:
    """Attention of the newest step, ``[R, kv, group, d]``.

    q ``[R, kv, group, d]``; context: keys and values of step 0, ``[B, n, kv, d]`` each, without ``hidden [B, m, n]``;
    chain: those of the row's own later steps, ``[R, kv, d]`` each. One softmax covers both.
    """
    n = hidden.shape[-1]
    q = q * q.shape[-1] ** -0.5
    keys, values = (x.transpose(1, 2) for x in context)  # [B, kv, n, d]
    grouped = rows.pad(q).permute(0, 2, 3, 1, 4)  # [B, kv, group, m, d]
    scores = (grouped.flatten(2, 3) @ keys.transpose(2, 3)).unflatten(2, grouped.shape[2:4])
    scores = scores.masked_fill(hidden[:, None, None], float("-inf"))
    if chain:
        own = torch.stack([(q * k[:, :, None]).sum(-1) for k, _ in chain], dim=-1)  # [R, kv, group, later]
        scores = torch.cat([scores, rows.pad(own).permute(0, 2, 3, 1, 4)], dim=-1)
    weights = torch.softmax(scores, dim=-1)
    mixed = (weights[..., :n].flatten(2, 3) @ values).unflatten(2, grouped.shape[2:4])
    out = rows.unpad(mixed.permute(0, 3, 1, 2, 4))
    if chain:
        shares = rows.unpad(weights[..., n:].permute(0, 3, 1, 2, 4))
        for later, (_, v) in enumerate(chain):
            out = out + shares[..., later, None] * v[:, :, None]
    return out


def unroll(
    head: DraftHead, rows: Rows, states: Tensor, embeds: Tensor, steps: int, embed: Embed | None = None
) -> Iterator[Tensor]:
    """Yield for each step the state that ``lm_head`` reads, ``[R, H]``.

    states ``[B, n, K*H_t]``; embeds ``[B, n, H]``: embeddings of each row's next token. At step ``i > 0`` a row is
    given the embedding of the token ``i`` further on (teacher forcing), or what ``embed(i)`` gives, ``[R, H]``,
    asked for after the state of the step before was yielded.
    """
    config, attention = head.config, head.midlayer.self_attn
    where, n = (rows.sequence, rows.row), states.shape[1]
    w_embedding, w_state = attention.halves()
    split = attention.widths
    tokens = F.linear(head.embedding_input(embeds), w_embedding)  # [B, n, q + k + v]
    fused = head.fuse(states)
    read = head.state_input(fused)
    _, kv = tokens.split(split, dim=-1)
    cos, sin = rope_tables(torch.arange(n, device=states.device), config.head_dim, config.rope_theta)
    context = attention.keys_values(F.linear(read, w_state[split[0] :]) + kv, cos, sin)
    g = fused[where]
    q = F.linear(read[where], w_state[: split[0]]) + tokens[where][:, : split[0]]
    chain: list[tuple[Tensor, Tensor]] = []
    for step in range(steps):
        cos, sin = rope_tables(rows.row + step, config.head_dim, config.rope_theta)
        if step > 0:
            if embed is None:
                half = tokens[rows.sequence, (rows.row + step).clamp_max(n - 1)]
            else:
                half = F.linear(head.embedding_input(embed(step)), w_embedding)
            q, kv = (F.linear(head.state_input(g), w_state) + half).split(split, dim=-1)
            chain.append(attention.keys_values(kv, cos, sin))
        hidden = hidden_keys(rows.padded, n, step, config.window)
        seen = chain if config.window is None else chain[max(0, step - config.window) :]
        attended = chain_attention(attention.queries(q, cos, sin), context, seen, hidden, rows)
        normed, g = head.finish(g, attention.merge(attended))
        yield normed
