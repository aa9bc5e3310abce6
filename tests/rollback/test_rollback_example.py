"""One round on paper: of two requests with a chain of three, A accepts all and B rejects at the second."""

from __future__ import annotations

from random import Random

import torch
from rollback_check import cached_slots, rows_of
from rollback_language import continuation
from rollback_walk import Walk
from rollback_world import Shape, world

PROMPT = {"A": [10, 11, 12, 13, 14], "B": [20, 21, 22, 23, 24]}


def test_a_accepts_all_and_b_rejects_at_the_second() -> None:
    """Chain of three drafts, page size 1. b is the bonus token, d1 to d3 are drafted, . is reserved.

    ::

        before the round          A  p p p p p | b        B  p p p p p | b
                                  5 committed             5 committed
        reserved: two rounds      A  p p p p p . . . . . . . .   13 slots each
        verified                  A  p p p p p b  d1 d2 d3 . . . .
                                  B  p p p p p b  d1 x2 x3 . . . .
        the target agrees         A  with d1 d2 d3: the new bonus token is its own fourth
                                  B  with d1 only: the new bonus token takes the place of x2
        committed                 A  p p p p p b  d1 d2 d3      5 + 4 = 9
                                  B  p p p p p b  d1            5 + 2 = 7; the slots of x2, x3 stay reserved
        next round, B             B  p p p p p b  d1 b' ...     b' overwrites x2

    When B ends, the slots behind its 7 committed tokens are free again, and the cache holds the first 6: a key of the
    cache is a token and the one after it.
    """
    shape = Shape(slots=100, overlap=False, cache="radix")
    with world(shape, 0) as made:
        made.drafts.forced = {"A": [3, 0], "B": [1, 0]}
        walk = Walk(made, Random(0))
        walk.ask("A", PROMPT["A"], 20)
        walk.ask("B", PROMPT["B"], 4)
        a, b = made.requests["A"], made.requests["B"]

        walk.turn()  # both prompts, and a first token each
        assert [(r.kv.kv_committed_len, len(r.output_ids)) for r in (a, b)] == [(5, 1), (5, 1)]
        assert made.allocator.available_size() == 100 - 5 - 5

        walk.turn()  # the round of the drawing
        assert [r.kv.kv_allocated_len for r in (a, b)] == [13, 13]
        assert made.allocator.available_size() == 100 - 13 - 13
        assert [r.kv.kv_committed_len for r in (a, b)] == [9, 7]
        assert list(a.output_ids) == continuation(PROMPT["A"], 5)
        assert list(b.output_ids) == continuation(PROMPT["B"], 3)

        row = made.rows.req_to_token[b.kv.req_pool_idx].long().clone()
        truth = walk.model.texts["B"].rows
        assert rows_of(made, row[:7]) == truth[:7]
        assert rows_of(made, row[7:8]) != truth[7:8], "x2 was the target's choice after all"
        assert not set(row[5:].tolist()) & set(cached_slots(made).tolist()), "only the prompt is cached yet"

        walk.turn()  # B's fourth token: it ends
        assert b.finished() and list(b.output_ids) == continuation(PROMPT["B"], 4)
        assert not b.kv.holds_kv
        cached = set(cached_slots(made).tolist())
        assert cached & set(row.tolist()) == set(row[:7].tolist()), (
            "8 committed tokens, 7 of them with a known next one"
        )
        assert rows_of(made, row[:7]) == truth[:7]
        free = set(made.allocator.get_all_free_pages().tolist())
        assert set(row[7:13].tolist()) <= free, "b' has no known next token, x3 and the reserve were never kept"
        assert torch.equal(row, made.rows.req_to_token[b.kv.req_pool_idx or 0].long()) or b.kv.req_pool_idx is None
        walk.drain()
