"""The check of a walk sees what it is there for: each of these bugs, put into SGLang or our ops, is found."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from rollback_model import Broken
from rollback_walk import Mix, Walk
from rollback_world import Shape, World, world

CHAIN = Shape(slots=200, rows=4, overlap=False)
TREE = Shape(topk=2, steps=3, nodes=8, slots=240, rows=4)
PAGED = Shape(page=4, slots=240, rows=4, cache="radix", overlap=False)
SPARSE = Shape(topk=4, steps=2, nodes=8, slots=1600, page=16, rows=6)
Break = Callable[[World, Any], None]


def leak(made: World, monkeypatch: Any) -> None:
    """The last slot of everything that is given back is not."""
    free = made.allocator.free
    monkeypatch.setattr(made.allocator, "free", lambda slots: free(slots[:-1] if slots.numel() > 2 else slots))


def leak_page(made: World, monkeypatch: Any) -> None:
    """One page of everything that is given back is not."""
    free = made.allocator.free_page_ids
    monkeypatch.setattr(made.allocator, "free_page_ids", lambda pages: free(pages[1:] if pages.numel() > 2 else pages))


def free_twice(made: World, monkeypatch: Any) -> None:
    """A slot is given back twice."""
    free = made.allocator.free

    def twice(slots: Any) -> None:
        free(slots)
        free(slots[:1])

    monkeypatch.setattr(made.allocator, "free", twice)


def rejected_to_cache(made: World, monkeypatch: Any) -> None:
    """A request that ends gives the cache two tokens more than were committed: a rejected draft's row is in there."""
    from sglang.srt.managers.schedule_batch import Req

    owned, refresh = Req.owned_kv_len, Req.refresh_fill_ids

    def more_tokens(self: Any) -> None:
        refresh(self)
        if self.finished():
            self.full_untruncated_fill_ids.extend([3, 4])

    def longer(self: Any) -> int:
        return min(owned(self) + 2, self.kv.kv_allocated_len)

    monkeypatch.setattr(Req, "refresh_fill_ids", more_tokens)
    monkeypatch.setattr(Req, "owned_kv_len", longer)


def one_too_many(made: World, monkeypatch: Any) -> None:
    """The scheduler counts one committed token too many."""
    processor = type(made.scheduler.batch_result_processor)
    resolve = processor._resolve_spec_v2_tokens

    def off_by_one(self: Any, result: Any, batch: Any) -> Any:
        for request in batch.reqs:
            request.kv.kv_committed_len += 1
        return resolve(self, result, batch)

    monkeypatch.setattr(processor, "_resolve_spec_v2_tokens", off_by_one)


def accepts_one_more(made: World, monkeypatch: Any) -> None:
    """Verification accepts the drafted token that it has to reject."""
    from sglang.srt.speculative import eagle_worker_common

    sample = eagle_worker_common.eagle_sample

    def greedy(verify: Any, *args: Any, **more: Any) -> Any:
        predict, lengths, index = sample(verify, *args, **more)
        for request, length in enumerate(lengths.tolist()):
            if length < index.shape[1]:
                node = int(index[request, length - 1])
                index[request, length] = node + 1
                predict[node] = verify.draft_token[node + 1]
                lengths[request] += 1
        return predict, lengths, index

    monkeypatch.setattr(eagle_worker_common, "eagle_sample", greedy)


def path_stays(made: World, monkeypatch: Any) -> None:
    """The KV of the accepted path of a tree stays where its nodes were."""
    monkeypatch.setattr(made.target_kv, "move_kv_cache", lambda target, source: None)


def draft_not_extended(made: World, monkeypatch: Any) -> None:
    """The draft keeps its own rows of accepted tokens."""
    write, forward = made.draft.write, made.draft.forward

    def run(batch: Any) -> Any:
        made.draft.write = (lambda *_: None) if batch.forward_mode.is_draft_extend_v2() else write  # type: ignore
        return forward(batch)

    monkeypatch.setattr(made.draft, "forward", run)


def slots_shifted(made: World, monkeypatch: Any) -> None:
    """Verification writes one slot behind the tokens' own."""
    from sglang.kernels.ops.speculative import cache_locs

    real = cache_locs.assign_extend_cache_locs_cpu

    def shifted(rows: Any, table: Any, start: Any, end: Any, out: Any, width: int) -> None:
        real(rows, table, start + 1, end + 1, out, width)

    monkeypatch.setattr(cache_locs, "assign_extend_cache_locs_cpu", shifted)


def retracted_to_cache(made: World, monkeypatch: Any) -> None:
    """A request that is sent back leaves its unfinished text in the cache."""
    from sglang.srt.managers import schedule_batch

    release = schedule_batch.release_kv_cache

    def keep(request: Any, cache: Any, *, checkpoint: bool) -> None:
        release(request, cache, checkpoint=True)

    monkeypatch.setattr(schedule_batch, "release_kv_cache", keep)


BUGS: dict[str, tuple[Break, Shape, str]] = {
    "a slot is not freed": (leak, CHAIN, "free slots|pages with an owner"),
    "a page is not freed": (leak_page, PAGED, "free slots|pages with an owner"),
    "a slot is freed twice": (free_twice, CHAIN, "belongs to the free list|belongs to|free slots"),
    "a rejected token in the cache": (rejected_to_cache, CHAIN, "tokens that no request committed"),
    "a rejected token in the cache, paged": (rejected_to_cache, PAGED, "tokens that no request committed"),
    "the committed length is off by one": (one_too_many, CHAIN, "'committed': "),
    "a rejected token is accepted": (accepts_one_more, CHAIN, "committed|output"),
    "the accepted path is not moved": (path_stays, TREE, "do not hold the committed tokens|output"),
    "the draft's rows are not rewritten": (
        draft_not_extended,
        TREE,
        "no request committed|do not hold the committed tokens",
    ),
    "verification writes elsewhere": (slots_shifted, CHAIN, "cache holds twice|committed"),
    "a retracted request in the cache": (retracted_to_cache, SPARSE, "no request committed"),
}


@pytest.mark.parametrize(("bug", "shape", "message"), BUGS.values(), ids=BUGS)
def test_a_bug_is_found(bug: Break, shape: Shape, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with world(shape, 1) as made:
        bug(made, monkeypatch)
        walk = Walk(made, Random(1), Mix(arrive=1.0, abort=0.1))
        with pytest.raises(Broken) as found:
            walk.run(100)
    assert re.search(message, str(found.value)), str(found.value)


@pytest.mark.parametrize("shape", dict.fromkeys(shape for _, shape, _ in BUGS.values()), ids=str)
def test_without_a_bug_nothing_is_found(shape: Shape) -> None:
    with world(shape, 1) as made:
        Walk(made, Random(1), Mix(arrive=1.0, abort=0.1)).run(100)


def test_a_wrong_accept_length_of_the_model_would_show() -> None:
    """The model's prediction of what is accepted is its own, and is compared."""
    with world(CHAIN, 1) as made, patch("rollback_model.accepted", lambda *args: 0):
        with pytest.raises(Broken, match="committed"):
            Walk(made, Random(1), Mix(arrive=1.0)).run(100)
