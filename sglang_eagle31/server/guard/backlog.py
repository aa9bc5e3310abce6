"""What the draft has not read while speculation was off, and reading it before the next draft.

A plain round leaves the draft's layer out, which costs about as much as one of the target's. Its keys of the tokens
since are then missing. Before the next draft the last ones are made up for, in one pass over all requests: at most
`ROWS` tokens, so that coming back costs about the same whatever the batch. Older ones stay missing, which a draft can
only pay for with acceptance: verification never reads the draft's cache.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

ROWS = 512
"""Tokens that are made up for at most, of all requests together."""
LEAST = 8
"""Tokens of a request that are kept at least."""


class Unread(NamedTuple):
    """One token: where its key belongs, row ``row`` of the round's ``tokens`` [B] and ``states`` [B, captured]."""

    position: int
    tokens: torch.Tensor
    states: torch.Tensor
    row: int


class Backlog:
    """Unread tokens by request."""

    def __init__(self) -> None:
        self.unread: dict[str, deque[Unread]] = {}

    def add(self, rids: Sequence[str], positions: Sequence[int], tokens: torch.Tensor, states: torch.Tensor) -> None:
        """One plain round: of each request the token that it gave and the target's states at its root."""
        most = max(LEAST, ROWS // len(rids))
        before = self.unread
        self.unread = {rid: before.get(rid) or deque() for rid in rids}  # those who left are forgotten
        for row, (rid, position) in enumerate(zip(rids, positions, strict=True)):
            kept = self.unread[rid]
            if kept and kept[-1].position != position - 1:
                kept.clear()  # it was prefilled again since, which the draft read
            kept.append(Unread(position, tokens, states, row))
            while len(kept) > most:
                kept.popleft()

    def take(self, rids: Sequence[str], lengths: Sequence[int]) -> dict[int, list[Unread]]:
        """By row, the unread tokens up to the length of each request; nothing is kept."""
        taken: dict[int, list[Unread]] = {}
        for row, (rid, length) in enumerate(zip(rids, lengths, strict=True)):
            found = list(self.unread.get(rid, ()))
            # A request that was prefilled again has been read since.
            if found and found[-1].position == length - 1:
                taken[row] = found
        self.unread = {}
        return taken


def read(worker: Any, batch: Any, unread: dict[int, list[Unread]]) -> None:
    """One pass of the draft over the unread tokens; what it then proposes goes into ``batch.spec_info``."""
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch
    from sglang.srt.utils.common import fast_topk

    draft = worker.draft_worker
    output = draft.draft_runner.forward(
        ForwardBatch.init_new(
            as_prefill(batch, unread),
            draft.draft_runner,
            capture_hidden_mode=CaptureHiddenMode.LAST,
            return_hidden_states_before_norm=False,
        )
    ).logits_output
    if draft.topk == 1:
        index = output.next_token_logits.argmax(-1, keepdim=True)
        probability = torch.ones_like(index, dtype=torch.float32)
    else:
        probability, index = fast_topk(torch.softmax(output.next_token_logits, -1), draft.topk, dim=-1)
    rows = torch.tensor(list(unread))
    known = batch.spec_info
    for name, new in (("topk_p", probability), ("topk_index", index), ("hidden_states", output.hidden_states)):
        old = getattr(known, name)
        old[rows] = new.to(old.dtype)


def as_prefill(batch: Any, unread: dict[int, list[Unread]]) -> Any:
    """SGLang's batch, seen as a prefill of the unread tokens of the requests that have some."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.speculative.eagle_info import EagleDraftExtendInput

    rows = torch.tensor(list(unread))
    tokens = [one for found in unread.values() for one in found]
    counts = [len(found) for found in unread.values()]
    view = copy.copy(batch)
    view.reqs = [batch.reqs[row] for row in unread]
    view.forward_mode = ForwardMode.EXTEND
    view.req_pool_indices, view.seq_lens = batch.req_pool_indices[rows], batch.seq_lens[rows]
    view.seq_lens_cpu = batch.seq_lens_cpu[rows]
    view.seq_lens_sum = int(view.seq_lens_cpu.sum())
    view.orig_seq_lens = view.seq_lens.to(torch.int32)
    view.extend_lens, view.extend_num_tokens = counts, len(tokens)
    view.prefix_lens = [length - count for length, count in zip(view.seq_lens_cpu.tolist(), counts, strict=True)]
    view.extend_logprob_start_lens = [0] * len(counts)
    view.return_logprob, view.has_grammar, view.sampling_info = False, False, None
    view.multimodal_inputs = None
    view.input_ids = torch.stack([one.tokens[one.row] for one in tokens]).long()
    where = torch.tensor([one.position for one in tokens])
    owner = view.req_pool_indices.repeat_interleave(torch.tensor(counts))
    view.out_cache_loc = batch.req_to_token_pool.req_to_token[owner, where].long()
    states = torch.stack([one.states[one.row] for one in tokens])
    view.spec_info = EagleDraftExtendInput(hidden_states=states, num_tokens_per_req=1, num_tokens_for_logprob_per_req=1)
    return view
