"""The committed output of each request as the device knows it, which with SGLang's overlap schedule is ahead of the
host: when a round is verified, the host has not yet read the tokens of the round before.

Dimensions: B requests; D nodes of the longest path; V vocabulary. "Committed" leaves out the last token, which is the
root of the next tree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch

from sglang_eagle31.server.lossless.copies import on
from sglang_eagle31.server.lossless.penalties import add_counts


class Round:
    """Tokens that one round committed, on the device until somebody asks for them."""

    def __init__(self, tokens: torch.Tensor) -> None:
        """``tokens`` int64 [B, D], -1 past the end of a row."""
        self.tokens = tokens
        self._lists: list[list[int]] | None = None

    def row(self, index: int) -> list[int]:
        """The tokens of one request on the host; waits for the device at the first call."""
        if self._lists is None:
            self._lists = [[token for token in row if token >= 0] for row in self.tokens.tolist()]
        return self._lists[index]


@dataclass
class Ledger:
    """One request since it was last prefilled.

    Attributes:
        epoch: how often the request had been retracted.
        tokens: committed output as far as it was read from the device.
        heard: whether the tokens are read at every round.
        counts: int32 [V] occurrences in the committed output, None until somebody needs them.
    """

    epoch: int
    tokens: list[int]
    heard: bool
    counts: torch.Tensor | None = None
    _pending: list[tuple[Round, int]] = field(default_factory=list)

    def read(self) -> list[int]:
        """The committed output."""
        for done, row in self._pending:
            self.tokens += done.row(row)
        self._pending.clear()
        return self.tokens

    def commit(self, done: Round, row: int, counts: torch.Tensor | None) -> None:
        """Add a row of a round; ``counts`` [V] has it counted in."""
        if self.heard:
            self._pending.append((done, row))
        self.counts = counts


class Ledgers:
    """The ledgers of the requests that need one; a request's goes with it."""

    def __init__(self) -> None:
        self._by_request: WeakKeyDictionary[Any, Ledger] = WeakKeyDictionary()

    def __len__(self) -> int:
        """How many are open."""
        return len(self._by_request)

    def find(self, req: Any) -> Ledger:
        """The ledger of a request, opened if there is none since its last prefill."""
        ledger = self._by_request.get(req)
        if ledger is None or ledger.epoch != req.retraction_count:
            # What is in the KV cache is prompt and committed output; the result of the prefill may be unread.
            length = max(0, req.kv.kv_committed_len - len(req.origin_input_ids))
            heard = req.custom_logit_processor is not None
            ledger = self._by_request[req] = Ledger(req.retraction_count, list(req.output_ids[:length]), heard)
        return ledger

    def counts(self, reqs: list[Any], vocab_size: int, device: torch.device) -> torch.Tensor:
        """int32 [R, V] occurrences in the committed output of some requests."""
        rows = []
        for ledger in map(self.find, reqs):
            if ledger.counts is None:
                ledger.counts = count(ledger.read(), vocab_size).to(device)
            rows.append(ledger.counts)
        return torch.stack(rows)

    def commit(self, reqs: list[Any], rows: list[int], tokens: torch.Tensor) -> None:
        """Enter what a round committed.

        Args:
            reqs: requests that need a ledger.
            rows: the row of each in ``tokens``.
            tokens: int64 [B, D], -1 past the end of a row.
        """
        done = Round(tokens)
        ledgers = [self.find(req) for req in reqs]
        new: dict[int, torch.Tensor] = {}
        counting = [i for i, ledger in enumerate(ledgers) if ledger.counts is not None]
        if counting:
            table = torch.stack([counts for ledger in ledgers if (counts := ledger.counts) is not None])
            where = on(tokens.device, [rows[i] for i in counting])
            new = dict(zip(counting, add_counts(table, tokens[where]).unbind(), strict=True))
        for i, (ledger, row) in enumerate(zip(ledgers, rows, strict=True)):
            ledger.commit(done, row, new.get(i))


def count(tokens: list[int], vocab_size: int) -> torch.Tensor:
    """int32 [V] occurrences of each token."""
    return torch.bincount(torch.tensor(tokens, dtype=torch.long), minlength=vocab_size).to(torch.int32)
