"""KV-slot ops against the plain Python reference."""

from __future__ import annotations

import random

import cpu_reference as ref
import pytest
import torch

from sglang_eagle31.server.cpu import cache_locs as ops
from sglang_eagle31.server.cpu.ops import OPS

SEEDS = range(40)
WIDTH = 64
UNTOUCHED = -7


def request_table(rng: random.Random, requests: int) -> tuple[torch.Tensor, list[list[int]]]:
    """`req_to_token` with distinct slots, and the same as lists."""
    slots = rng.sample(range(10 * requests * WIDTH), requests * WIDTH)
    table = torch.tensor(slots, dtype=torch.int32).view(requests, WIDTH)
    return table, table.tolist()


def random_ranges(rng: random.Random, batch: int) -> tuple[list[int], list[int], list[int]]:
    """Distinct table rows of a larger pool with ragged ranges, some of them empty."""
    rows = rng.sample(range(batch + 4), batch)
    starts = [rng.randint(0, WIDTH) for _ in range(batch)]
    return rows, starts, [rng.randint(start, min(WIDTH, start + rng.choice((0, 1, 5, WIDTH)))) for start in starts]


def ints(values: list[int], rng: random.Random) -> torch.Tensor:
    """SGLang mixes int32 and int64."""
    return torch.tensor(values, dtype=rng.choice((torch.int32, torch.int64)))


@pytest.mark.parametrize("seed", SEEDS)
def test_extend_slots_are_read_and_written(seed: int) -> None:
    rng = random.Random(seed)
    batch = rng.randint(1, 16)
    table, rows_of_table = request_table(rng, batch + 4)
    rows, starts, ends = random_ranges(rng, batch)
    offsets = rng.choice((torch.int32, torch.int64))
    indices, begin, end = ints(rows, rng), torch.tensor(starts, dtype=offsets), torch.tensor(ends, dtype=offsets)
    expected = ref.read_slots(rows_of_table, rows, starts, ends)

    out = torch.full((len(expected) + 3,), UNTOUCHED)
    ops.assign_extend_cache_locs_cpu(indices, table, begin, end, out, WIDTH)
    assert out.tolist() == expected + [UNTOUCHED] * 3

    fresh = torch.arange(len(expected) + 3) + 1_000_000
    ops.assign_req_to_token_pool_cpu(indices, table, begin, end, fresh, WIDTH)
    for row, start, stop in zip(rows, starts, ends, strict=True):
        rows_of_table[row][start:stop] = fresh[: stop - start].tolist()
        fresh = fresh[stop - start :]
    assert table.tolist() == rows_of_table


def test_req_to_token_pool_refuses_a_table_it_could_not_write() -> None:
    table = torch.zeros((4, 2 * WIDTH), dtype=torch.int32)[:, :WIDTH]
    one = torch.tensor([1])
    with pytest.raises(RuntimeError, match="view"):
        ops.assign_req_to_token_pool_cpu(one, table, one, one + 1, one, WIDTH)


@pytest.mark.parametrize("seed", SEEDS)
def test_draft_slots_and_branch_table(seed: int) -> None:
    rng = random.Random(seed)
    batch, topk, steps = rng.randint(1, 16), rng.randint(1, 8), rng.randint(1, 5)
    table, rows_of_table = request_table(rng, batch + 4)
    rows = rng.sample(range(batch + 4), batch)
    lens = [rng.randint(1, WIDTH - topk * steps) for _ in rows]
    indices, seq_lens = ints(rows, rng), ints(lens, rng)

    out = torch.full((batch * topk * steps,), UNTOUCHED)
    ops.assign_draft_cache_locs_contiguous_cpu(indices, table, seq_lens, out, WIDTH, topk, steps)
    assert out.tolist() == ref.read_slots(rows_of_table, rows, lens, [length + topk * steps for length in lens])

    branches = ops.build_draft_decode_metadata_cpu(table, indices, seq_lens, topk, steps, WIDTH)
    assert branches.dtype == torch.int32 and branches.shape == (batch * topk, WIDTH)
    for request, (row, length) in enumerate(zip(rows, lens, strict=True)):
        for branch in range(topk):
            begin = length + branch * steps
            expected = rows_of_table[row][:length] + rows_of_table[row][begin : begin + steps]
            assert branches[request * topk + branch, : length + steps].tolist() == expected
    assert table.tolist() == rows_of_table


@pytest.mark.parametrize("seed", SEEDS)
def test_accepted_slots_and_bonus_tokens(seed: int) -> None:
    rng = random.Random(seed)
    batch, longest, nodes = rng.randint(1, 16), rng.randint(1, 9), rng.randint(9, 20)
    paths = [sorted(rng.sample(range(nodes), rng.randint(1, longest))) for _ in range(batch)]
    index = [
        [request * nodes + node for node in path] + [-1] * (longest - len(path)) for request, path in enumerate(paths)
    ]
    slots = [rng.randrange(10_000) for _ in range(batch * nodes)]
    accept_index = torch.tensor(index, dtype=rng.choice((torch.int32, torch.int64)))

    out = torch.full((batch * longest,), UNTOUCHED)
    shaped = accept_index if rng.random() < 0.5 else accept_index.flatten()
    ops.fill_accept_out_cache_loc_cpu(shaped, torch.tensor(slots), out)
    expected = [slots[flat] for row in index for flat in row if flat != -1]
    assert out.tolist() == expected + [UNTOUCHED] * (batch * longest - len(expected))

    tokens = torch.randint(0, 50_000, (batch, longest), generator=torch.Generator().manual_seed(seed)).int()
    bonus = torch.full((batch,), UNTOUCHED, dtype=torch.int32)
    ops.fill_bonus_tokens_cpu(tokens, ints([len(path) for path in paths], rng), bonus, longest)
    assert bonus.tolist() == [int(tokens[request, len(path) - 1]) for request, path in enumerate(paths)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("selected", [False, True])
def test_rotate_input_ids(seed: int, selected: bool) -> None:
    rng = random.Random(seed)
    lens = [rng.choice((0, 1, 2, rng.randint(3, 30))) for _ in range(rng.randint(1, 16))]
    starts = [sum(lens[:request]) for request in range(len(lens))]
    ids = [rng.randrange(50_000) for _ in range(sum(lens) + 2)]
    tokens = [rng.randrange(50_000) for _ in lens]
    places = [start + rng.randrange(max(length, 1)) for start, length in zip(starts, lens, strict=True)]
    got = torch.tensor(ids)
    new = torch.tensor(tokens) if rng.random() < 0.5 else torch.tensor(tokens)[:, None]
    where = torch.tensor(places) if selected else None
    ops.rotate_input_ids_cpu(got, ints(starts, rng), ints(lens, rng), new, where)
    assert got.tolist() == ref.rotate(ids, starts, lens, tokens, places if selected else None)


@pytest.mark.parametrize("seed", SEEDS)
def test_kv_rows_move_in_every_buffer(seed: int) -> None:
    """Sources and targets overlap, row sizes differ by buffer, and the tail holds moves of row 0 onto itself."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rows = rng.randint(2, 40)
    shapes = [((2, 8), torch.bfloat16), ((3, 4), torch.float32), ((5,), torch.uint8), ((1, 3), torch.float16)]
    buffers = [torch.randint(0, 200, (rows, *shape), generator=generator).to(dtype) for shape, dtype in shapes * 2]
    count = rng.randint(0, rows - 1)
    targets = rng.sample(range(1, rows), count) + [0, 0]
    sources = rng.choices(range(1, rows), k=count) + [0, 0]
    expected = [ref.move_rows(buffer, targets, sources) for buffer in buffers]
    dtype = rng.choice((torch.int32, torch.int64))
    for _ in range(2):  # the second time through the cached views, and back to where it was
        before = [buffer.clone() for buffer in buffers]
        ops.copy_all_layer_kv_cache_cpu(
            torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64),
            torch.tensor([buffer.stride(0) * buffer.element_size() for buffer in buffers]),
            torch.tensor(targets, dtype=dtype),
            torch.tensor(sources, dtype=dtype),
        )
        for got, want in zip(buffers, expected, strict=True):
            assert torch.equal(got, want)
        for buffer, old in zip(buffers, before, strict=True):
            buffer.copy_(old)


def test_kv_rows_must_not_be_negative() -> None:
    buffer = torch.zeros((4, 2))
    with pytest.raises(ValueError, match="must not be negative"):
        ops.copy_all_layer_kv_cache_cpu(
            torch.tensor([buffer.data_ptr()], dtype=torch.uint64),
            torch.tensor([8]),
            torch.tensor([1, 2]),
            torch.tensor([3, -1]),
        )


def test_no_request_is_no_work() -> None:
    none, table = torch.empty(0, dtype=torch.long), torch.zeros((4, WIDTH), dtype=torch.int32)
    ops.assign_extend_cache_locs_cpu(none, table, none, none, none, WIDTH)
    ops.assign_req_to_token_pool_cpu(none, table, none, none, none, WIDTH)
    ops.assign_draft_cache_locs_contiguous_cpu(none, table, none, none, WIDTH, 2, 3)
    ops.fill_accept_out_cache_loc_cpu(none, none, none)
    ops.fill_bonus_tokens_cpu(none.int(), none.int(), none.int(), 4)
    ops.rotate_input_ids_cpu(none, none, none, none)
    ops.copy_all_layer_kv_cache_cpu(none.to(torch.uint64), none, none, none)
    assert ops.build_draft_decode_metadata_cpu(table, none, none, 2, 3, WIDTH).shape == (0, WIDTH)
    assert not table.any()


def test_ops_are_named_as_sglang_imports_them() -> None:
    assert set(OPS) == {
        "assign_draft_cache_locs_contiguous_cpu",
        "assign_extend_cache_locs_cpu",
        "assign_req_to_token_pool_cpu",
        "build_draft_decode_metadata_cpu",
        "build_tree_kernel_efficient_cpu",
        "copy_all_layer_kv_cache_cpu",
        "fill_accept_out_cache_loc_cpu",
        "fill_bonus_tokens_cpu",
        "rotate_input_ids_cpu",
        "verify_tree_greedy_cpu",
    }
    assert all(callable(op) for op in OPS.values())
