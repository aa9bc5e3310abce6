"""SGLang's state against the model's, after every turn of the scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from rollback_model import Broken, Entry, Model, Row, Text, expect

if TYPE_CHECKING:
    from rollback_world import World


def cached_slots(world: World) -> torch.Tensor:
    """Slots that the prefix cache owns."""
    nothing = world.cache.evictable_size() + world.cache.protected_size() == 0
    return torch.empty(0, dtype=torch.int64) if nothing else world.cache.all_values_flatten().long()


def rows_of(world: World, slots: torch.Tensor) -> list[Row]:
    """What the pools of target and draft hold for these slots."""
    return list(zip(world.target.read(slots).tolist(), world.draft.read(slots).tolist(), strict=True))


def entries_of(world: World, slots: torch.Tensor) -> list[Entry]:
    """The cache's entries in these slots."""
    page = world.shape.page
    return list(zip(rows_of(world, slots), rows_of(world, slots // page * page + page - 1), strict=True))


def check(world: World, model: Model, free: int, wanted: int) -> None:
    """Everything, after a step before which ``free`` slots were free and in which at most ``wanted`` were wanted.

    Raises:
        Broken: SGLang's lengths, slots, rows, free list or cache are not the model's.
    """
    held = {name: request for name, request in world.requests.items() if request.kv.holds_kv}
    expect("requests that hold KV", sorted(held), sorted(model.held()))
    expect("rows of req_to_token that are free", world.rows.available_size(), world.shape.rows - len(held))
    slots = cached_slots(world)
    entries = entries_of(world, slots)
    model.check_cache(entries)
    model.evict(set(entries), free, wanted)
    for name, request in held.items():
        _check_request(world, name, request, model.texts[name])
    _check_slots(world, held, slots)
    expect("free slots", world.allocator.available_size(), model.free())
    expect("tokens in the cache", len(slots), world.cache.evictable_size() + world.cache.protected_size())


def _check_request(world: World, name: str, request: Any, text: Text) -> None:
    kv = request.kv
    lengths = {"committed": kv.kv_committed_len, "allocated": kv.kv_allocated_len, "protected": kv.cache_protected_len}
    expect(name, lengths, {key: getattr(text, key) for key in lengths})
    expect(f"{name}: output", list(request.output_ids), text.truth[text.prompt : text.prompt + text.out])
    row = world.rows.req_to_token[kv.req_pool_idx, : text.committed].long()
    found = rows_of(world, row)
    if found != text.rows[: text.committed]:
        wrong = [i for i, pair in enumerate(found) if pair != text.rows[i]]
        raise Broken(f"{name}: rows of positions {wrong} of {text.committed} do not hold the committed tokens")


def _check_slots(world: World, held: dict[str, Any], slots: torch.Tensor) -> None:
    """Every page has one owner: the free list, the cache, or one request."""
    page, owners = world.shape.page, {}
    pages = {"the cache": (slots // page).unique(), "the free list": world.allocator.get_all_free_pages()}
    for name, request in held.items():
        kv = request.kv
        row = world.rows.req_to_token[kv.req_pool_idx]
        pages[name] = (row[kv.cache_protected_len : kv.kv_allocated_len].long() // page).unique()
        shared = set(row[: kv.cache_protected_len].tolist()) - set(slots.tolist())
        expect(f"{name}: protected slots that the cache does not own", shared, set())
    for owner, numbers in pages.items():
        for number in numbers.tolist():
            if number in owners:
                raise Broken(f"page {number} belongs to {owners[number]} and to {owner}")
            owners[number] = owner
    expect("pages with an owner", sorted(owners), list(range(1, world.shape.slots // page + 1)))
