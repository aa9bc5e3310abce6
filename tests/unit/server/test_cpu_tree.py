"""Tree ops against the plain Python reference, on random draft trees."""

from __future__ import annotations

import random

import cpu_reference as ref
import pytest
import torch

from sglang_eagle31.server.cpu.tree import FULL_MASK, QLEN_ONLY, build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

CASES = 60
MAX_NODES = 48


def random_case(seed: int, certain: float = 0.0) -> tuple[random.Random, int, int, int, list[ref.DraftTree]]:
    """Depth 1-8, topk 1-8, batch 1-16, nodes from 2 to what the candidates allow."""
    rng = random.Random(seed)
    depth, topk, batch = rng.randint(1, 8), rng.randint(1, 8), rng.randint(1, 16)
    nodes = rng.randint(2, min(MAX_NODES, 1 + ref.candidate_count(topk, depth)))
    return rng, topk, depth, nodes, [ref.draft_tree(rng, topk, depth, nodes, certain) for _ in range(batch)]


def build(
    trees: list[ref.DraftTree], seq_lens: list[int], topk: int, depth: int, nodes: int, mode: int, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Call the op with outputs prepared as SGLang prepares them."""
    batch = len(trees)
    cells = batch * nodes * nodes + (sum(seq_lens) * nodes if mode == FULL_MASK else 0)
    out = {
        "mask": torch.full((cells,), True),
        "positions": torch.full((batch * nodes,), -99, dtype=dtype),
        "index": torch.full((batch, nodes), -1, dtype=dtype),
        "next_token": torch.full((batch, nodes), -1, dtype=dtype),
        "next_sibling": torch.full((batch, nodes), -1, dtype=dtype),
    }
    build_tree_kernel_efficient_cpu(
        torch.tensor([tree.parent_list for tree in trees], dtype=dtype).reshape(batch, -1),
        torch.tensor([tree.selected for tree in trees], dtype=dtype),
        torch.tensor(seq_lens, dtype=dtype),
        *out.values(),
        topk,
        depth,
        nodes,
        mode,
    )
    return out


def expect(trees: list[ref.DraftTree], seq_lens: list[int], nodes: int, mode: int) -> dict[str, list[object]]:
    """The same outputs from the reference."""
    mask: list[object] = []
    positions: list[object] = []
    first_children: list[object] = []
    siblings: list[object] = []
    for tree, seq_len in zip(trees, seq_lens, strict=True):
        parents, first_child, next_sibling = ref.links(tree)
        first_children.append(first_child)
        siblings.append(next_sibling)
        positions += [seq_len + len(ref.ancestry(parents, node)) for node in range(nodes)]
        for row in ref.tree_mask_rows(parents):
            mask += [True] * (seq_len if mode == FULL_MASK else 0) + row
    index: list[object] = [[request * nodes + node for node in range(nodes)] for request in range(len(trees))]
    return {
        "mask": mask,
        "positions": positions,
        "index": index,
        "next_token": first_children,
        "next_sibling": siblings,
    }


def assert_same_trees(trees: list[ref.DraftTree], rng: random.Random, topk: int, depth: int, nodes: int) -> None:
    mode = rng.choice((FULL_MASK, QLEN_ONLY))
    seq_lens = [rng.randint(1, 40) for _ in trees]
    got = build(trees, seq_lens, topk, depth, nodes, mode, rng.choice((torch.int32, torch.int64)))
    for name, value in expect(trees, seq_lens, nodes, mode).items():
        assert got[name].tolist() == value, name


@pytest.mark.parametrize("seed", range(CASES))
def test_build_tree_matches_reference(seed: int) -> None:
    rng, topk, depth, nodes, trees = random_case(seed)
    assert_same_trees(trees, rng, topk, depth, nodes)


@pytest.mark.parametrize(("topk", "depth"), [(1, 1), (1, 8), (2, 3), (4, 3), (8, 2), (8, 1)])
def test_build_tree_of_every_candidate(topk: int, depth: int) -> None:
    rng = random.Random(topk * 10 + depth)
    nodes = 1 + ref.candidate_count(topk, depth)
    assert_same_trees([ref.draft_tree(rng, topk, depth, nodes) for _ in range(2)], rng, topk, depth, nodes)


@pytest.mark.parametrize(("topk", "depth", "nodes"), [(3, 4, 6), (1, 5, 3), (2, 8, 9)])
@pytest.mark.parametrize("seed", range(10))
def test_build_tree_leaves_a_node_without_its_parent_unlinked(seed: int, topk: int, depth: int, nodes: int) -> None:
    rng, orphans = random.Random(seed), 0
    for _ in range(20):
        trees = [ref.draft_tree(rng, topk, depth, nodes, certain=0.7) for _ in range(3)]
        orphans += sum(parent is None for tree in trees for parent in ref.links(tree)[0][1:])
        assert_same_trees(trees, rng, topk, depth, nodes)
    assert orphans > 0


def test_build_tree_hangs_the_first_group_on_the_root_whatever_parent_list_holds() -> None:
    tree = ref.draft_tree(random.Random(0), 3, 3, 8)
    odd = ref.DraftTree([2, *tree.parent_list[1:]], tree.selected, tree.parent_of)
    assert_same_trees([odd, tree], random.Random(0), 3, 3, 8)


def test_build_tree_writes_nothing_outside_the_tree_cells() -> None:
    tree = ref.draft_tree(random.Random(0), 2, 2, 4)
    for mode, cells in ((QLEN_ONLY, 16), (FULL_MASK, 4 * (5 + 4))):
        mask = torch.full((cells + 7,), True)
        mask[cells:] = torch.tensor([True, False, True, False, True, False, True])
        linkage = torch.full((3, 1, 4), -1)
        build_tree_kernel_efficient_cpu(
            torch.tensor([tree.parent_list]),
            torch.tensor([tree.selected]),
            torch.tensor([5]),
            mask,
            torch.empty(4, dtype=torch.long),
            *linkage,
            2,
            2,
            4,
            mode,
        )
        assert mask[cells:].tolist() == [True, False, True, False, True, False, True]
        if mode == FULL_MASK:
            assert mask[:cells].view(4, 9)[:, :5].all()


def test_build_tree_of_no_request() -> None:
    empty = torch.empty((0, 3), dtype=torch.long)
    flat = torch.empty(0, dtype=torch.long)
    build_tree_kernel_efficient_cpu(
        empty, empty, flat, torch.empty(0, dtype=torch.bool), flat, empty, empty, empty, 2, 2, 4, QLEN_ONLY
    )


def test_build_tree_refuses_the_bit_packed_mask() -> None:
    tree = ref.draft_tree(random.Random(0), 2, 2, 4)
    with pytest.raises(ValueError, match=r"tree_mask_mode=2: .*bit-packed.*not supported"):
        build([tree], [5], 2, 2, 4, 2, torch.long)


def test_build_tree_refuses_candidates_out_of_order() -> None:
    tree = ref.draft_tree(random.Random(0), 2, 3, 5)
    shuffled = ref.DraftTree(tree.parent_list, tree.selected[::-1], tree.parent_of)
    with pytest.raises(ValueError, match="selected_index must ascend"):
        build([shuffled], [5], 2, 3, 5, QLEN_ONLY, torch.long)


def assert_same_verdict(
    trees: list[ref.DraftTree], rng: random.Random, nodes: int, longest: int, vocabulary: int
) -> list[int]:
    """Compare on random tokens of a small vocabulary (so siblings share tokens); returns the accepted lengths."""
    batch, untouched = len(trees), -7
    dtype = rng.choice((torch.int32, torch.int64))
    linked = [ref.links(tree)[1:] for tree in trees]
    tokens = [[rng.randrange(vocabulary) for _ in range(nodes)] for _ in trees]
    choice = [[rng.randrange(vocabulary) for _ in range(nodes)] for _ in trees]
    predicts = torch.full((batch * nodes,), untouched, dtype=torch.int32)
    accept_index = torch.full((batch, longest), -1, dtype=torch.int32)
    accept_num = torch.full((batch,), untouched, dtype=torch.int32)
    verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=accept_num,
        candidates=torch.tensor(tokens, dtype=dtype),
        retrive_index=torch.arange(batch * nodes, dtype=dtype).view(batch, nodes),
        retrive_next_token=torch.tensor([first for first, _ in linked], dtype=dtype),
        retrive_next_sibling=torch.tensor([sibling for _, sibling in linked], dtype=dtype),
        target_predict=torch.tensor(choice, dtype=dtype),
    )
    expected_predicts = [untouched] * (batch * nodes)
    for request, (first_child, next_sibling) in enumerate(linked):
        path = ref.verify_walk(tokens[request], first_child, next_sibling, choice[request], longest)
        slots = [request * nodes + node for node in path]
        assert accept_index[request].tolist() == slots + [-1] * (longest - len(path))
        assert accept_num[request] == len(path) - 1
        for node, slot in zip(path, slots, strict=True):
            expected_predicts[slot] = choice[request][node]
    assert predicts.tolist() == expected_predicts
    return (accept_num + 1).tolist()


@pytest.mark.parametrize("seed", range(CASES))
def test_verify_greedy_matches_reference(seed: int) -> None:
    rng, topk, depth, nodes, trees = random_case(seed + 1000, certain=0.2)
    for vocabulary in (1, 2, 4, 50):
        assert_same_verdict(trees, rng, nodes, depth + 1, vocabulary)


def test_verify_greedy_sees_long_and_short_paths() -> None:
    rng = random.Random(5)
    lengths: set[int] = set()
    for _ in range(30):
        trees = [ref.draft_tree(rng, 2, 4, 14) for _ in range(8)]
        lengths |= set(assert_same_verdict(trees, rng, 14, 5, 2))
    assert lengths == {1, 2, 3, 4, 5}


def test_verify_greedy_stops_at_the_width_of_accept_index() -> None:
    rng = random.Random(6)
    lengths = assert_same_verdict([ref.draft_tree(rng, 1, 6, 7) for _ in range(4)], rng, 7, 3, 1)
    assert lengths == [3, 3, 3, 3]


def test_verify_greedy_takes_the_first_of_equal_siblings() -> None:
    """Root 0 with children 1, 2, 3; 2 and 3 hold the same token, and each has a child that fits."""
    predicts = torch.zeros(6, dtype=torch.int32)
    accept_index = torch.full((1, 3), -1, dtype=torch.int32)
    accept_num = torch.empty(1, dtype=torch.int32)
    verify_tree_greedy_cpu(
        predicts,
        accept_index,
        accept_num,
        torch.tensor([[10, 20, 30, 30, 40, 40]]),
        torch.arange(6)[None],
        torch.tensor([[1, -1, 4, 5, -1, -1]]),
        torch.tensor([[-1, 2, 3, -1, -1, -1]]),
        torch.tensor([[30, 0, 40, 40, 77, 88]]),
    )
    assert accept_index.tolist() == [[0, 2, 4]]
    assert accept_num.tolist() == [2]
    assert predicts.tolist() == [30, 0, 40, 0, 77, 0]


def test_verify_greedy_reads_and_writes_at_the_slots() -> None:
    """A chain of three whose nodes lie at the slots 2, 0, 1."""
    predicts = torch.zeros(3, dtype=torch.int32)
    accept_index = torch.full((1, 3), -1, dtype=torch.int32)
    accept_num = torch.empty(1, dtype=torch.int32)
    verify_tree_greedy_cpu(
        predicts,
        accept_index,
        accept_num,
        torch.tensor([[10, 20, 30]]),
        torch.tensor([[2, 0, 1]]),
        torch.tensor([[1, 2, -1]]),
        torch.tensor([[-1, -1, -1]]),
        torch.tensor([[30, 40, 20]]),
    )
    assert accept_index.tolist() == [[2, 0, 1]]
    assert accept_num.tolist() == [2]
    assert predicts.tolist() == [30, 40, 20]


def test_verify_greedy_of_no_request() -> None:
    none = torch.empty((0, 4), dtype=torch.long)
    flat = torch.empty(0, dtype=torch.int32)
    verify_tree_greedy_cpu(flat, torch.empty((0, 3), dtype=torch.int32), flat, none, none, none, none, none)
