"""Top-k, top-p, the spread of draft probabilities, and the hash behind seeded requests."""

from __future__ import annotations

import pytest
import torch

from sglang_eagle31.server.cpu.filters import keep_top_k, keep_top_p, spread_draft_probs
from sglang_eagle31.server.cpu.seeds import murmur_hash32_cpu


def rows(count: int, vocab: int, seed: int, sharp: float = 2.0) -> torch.Tensor:
    """``[count, vocab]`` probabilities."""
    return (sharp * torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed))).softmax(-1)


def plain(row: list[float], top_k: int, top_p: float) -> list[float]:
    """Both filters on one row, token by token in order of probability, lower ids first."""
    kept, before = [0.0] * len(row), 0.0
    for rank, token in enumerate(sorted(range(len(row)), key=lambda token: (-row[token], token))):
        if rank < top_k and (before <= top_p or top_p == 1):
            kept[token] = row[token]
        before += row[token]
    return kept


@pytest.mark.parametrize("vocab", [7, 300, 6000])
@pytest.mark.parametrize("seed", range(4))
def test_both_filters_together(vocab: int, seed: int) -> None:
    """``top_p`` is a share of the whole softmax, though ``top_k`` comes first."""
    probs = rows(6, vocab, seed, sharp=(0.1, 1.0, 2.0, 4.0)[seed])
    top_ks = torch.tensor([1, 3, vocab // 2, 1 << 30, vocab, 5], dtype=torch.int32)
    top_ps = torch.tensor([0.9, 0.5, 0.95, 0.99, 1.0, 1.0])
    wanted = torch.tensor([plain(*each) for each in zip(probs.tolist(), top_ks.tolist(), top_ps.tolist(), strict=True)])
    assert torch.equal(keep_top_p(keep_top_k(probs.clone(), top_ks), top_ps), wanted)


def test_of_equal_tokens_the_lowest_ids_are_kept() -> None:
    probs = torch.tensor([[0.125, 0.25, 0.125, 0.25, 0.125, 0.125]])
    assert keep_top_k(probs.clone(), torch.tensor([3])).tolist() == [[0.125, 0.25, 0, 0.25, 0, 0]]
    assert keep_top_k(probs.clone(), torch.tensor([1])).tolist() == [[0, 0.25, 0, 0, 0, 0]]
    assert keep_top_p(probs.clone(), torch.tensor([0.55])).tolist() == [[0.125, 0.25, 0, 0.25, 0, 0]]
    assert keep_top_p(probs.clone(), torch.tensor([0.1])).tolist() == [[0, 0.25, 0, 0, 0, 0]]


def test_rows_that_ask_for_nothing_stay() -> None:
    probs = rows(3, 50, 0)
    assert torch.equal(keep_top_k(probs.clone(), torch.full((3,), 1 << 30)), probs)
    assert torch.equal(keep_top_p(probs.clone(), torch.ones(3)), probs)
    some = keep_top_p(probs.clone(), torch.tensor([1.0, 0.5, 1.0]))
    assert torch.equal(some[::2], probs[::2]) and (some[1] == 0).any()
    assert keep_top_k(torch.empty(0, 5), torch.empty(0)).shape == keep_top_p(torch.empty(0, 5), torch.empty(0)).shape


def test_filters_write_in_place() -> None:
    probs = rows(2, 9, 1)
    assert keep_top_k(probs, torch.tensor([2, 2])) is probs
    assert keep_top_p(probs, torch.tensor([0.5, 1.0])) is probs
    assert ((probs > 0).sum(1) <= 2).all()


def test_draft_probabilities_over_the_target_s_vocabulary() -> None:
    draft = rows(6, 4, 2).view(2, 3, 4)
    spread = spread_draft_probs(draft, torch.tensor([5, 0, 6, 2]), 8)
    assert spread.shape == (2, 3, 8)
    assert torch.equal(spread[..., [5, 0, 6, 2]], draft)
    assert (spread[..., [1, 3, 4, 7]] == 0).all()


def test_draft_ids_of_one_target_id_add_up() -> None:
    spread = spread_draft_probs(torch.tensor([[0.25, 0.25, 0.5]]), torch.tensor([1, 1, 0]), 3)
    assert spread.tolist() == [[0.5, 0.5, 0.0]]


def murmur3(data: bytes) -> int:
    """MurmurHash3_x86_32 with seed 0 of whole 4-byte blocks, in Python integers."""
    mask, state = 0xFFFFFFFF, 0

    def rotate(value: int, by: int) -> int:
        return (value << by | value >> (32 - by)) & mask

    for at in range(0, len(data), 4):
        block = int.from_bytes(data[at : at + 4], "little")
        state ^= rotate(block * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask
        state = (rotate(state, 13) * 5 + 0xE6546B64) & mask
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & mask
    state = (state ^ state >> 13) * 0xC2B2AE35 & mask
    return state ^ state >> 16


def test_the_hash_is_murmur3() -> None:
    assert murmur3(b"test") == 0xBA6BD213  # a published vector
    seeds = torch.tensor([0, 1, 42, -1, -(2**63), 2**63 - 1])
    positions = torch.tensor([0, 1, 7, 2**31, 2**32 - 1, 123456])
    columns = torch.tensor([0, 1, 5, 151_935, 2**32 - 1])
    got = murmur_hash32_cpu(seeds.view(torch.uint64), positions.to(torch.uint64), columns)
    assert got.dtype == torch.uint32 and got.shape == (6, 5)
    for row, (seed, position) in enumerate(zip(seeds.tolist(), positions.tolist(), strict=True)):
        for column, index in enumerate(columns.tolist()):
            data = (
                seed.to_bytes(8, "little", signed=True) + position.to_bytes(4, "little") + index.to_bytes(4, "little")
            )
            assert int(got[row, column]) == murmur3(data)
