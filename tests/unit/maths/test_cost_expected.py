"""Expected tokens of a round, against enumeration, simulation and the ops that build and verify the served tree."""

import itertools

import numpy as np
import pytest
import torch

from sglang_eagle31.maths import expected
from sglang_eagle31.maths.shape import NO_SPECULATION, Shape
from sglang_eagle31.server.cpu.tree import QLEN_ONLY, build_tree_kernel_efficient_cpu


def random_table(seed, depths, topk, total=0.95):
    """Ranks in falling order, as a draft has them, with some probability left for none."""
    random = np.random.default_rng(seed)
    rows = random.dirichlet(np.full(topk + 1, 0.6), depths)[:, :topk] * total
    return -np.sort(-rows, 1)


def joint(table, path):
    return float(np.prod([table[depth, rank] for depth, rank in enumerate(path)]))


def paths_of(tree):
    """Ranks from the root to each node."""
    paths = []
    for parent, rank in zip(tree.parent, tree.rank, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), int(rank)))
    return paths


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.9, 1.0])
def test_a_chain_is_the_sum_over_how_it_can_end(acceptance, steps):
    ends = [acceptance**a * (1 - acceptance) * (a + 1) for a in range(steps)] + [acceptance**steps * (steps + 1)]
    assert expected.constant(acceptance, steps) == pytest.approx(sum(ends))
    assert expected.chain([acceptance], steps) == pytest.approx(sum(ends))


def test_a_chain_by_depth():
    assert expected.chain([0.8, 0.5], 2) == pytest.approx(1 + 0.8 + 0.4)
    assert expected.chain([0.8, 0.5], 4) == pytest.approx(1 + 0.8 + 0.4 + 0.2 + 0.1)  # the last depth repeats
    assert expected.chain([0.8, 0.5], 0) == expected.tokens(NO_SPECULATION, [0.8]) == 1
    assert expected.tokens(Shape.chain(2), [0.8, 0.5]) == expected.chain([0.8, 0.5], 2)
    with pytest.raises(ValueError, match="at least one depth"):
        expected.chain([], 2)


def test_ranks_from_recovery():
    table = expected.ranks([0.6, 0.5], [0.5, 0.25])
    np.testing.assert_allclose(table, [[0.6, 0.2, 0.05], [0.5, 0.25, 0.0625]])
    np.testing.assert_allclose(expected.ranks([0.9, 1.0], [1.0, 1.0]).sum(1), 1)


@pytest.mark.parametrize("seed", range(5))
def test_a_tree_of_wide_beams_is_the_best_of_all_subtrees(seed):
    """Where beams leave nothing out, no subtree of as many nodes is accepted further."""
    table = random_table(seed, 2, 3)
    nodes = [path for depth in (1, 2) for path in itertools.product(range(3), repeat=depth)]
    for count in (2, 4, 6):
        trees = (
            chosen
            for chosen in itertools.combinations(nodes, count)
            if all(path[:-1] in chosen for path in chosen if len(path) > 1)
        )
        best = 1 + max(sum(joint(table, path) for path in chosen) for chosen in trees)
        assert expected.tokens(Shape(2, 3, count + 1), table) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("steps", "topk", "width"), [(3, 2, 6), (4, 3, 12), (5, 4, 16), (3, 2, 11), (1, 3, 4)])
def test_a_tree_is_the_one_that_the_search_describes(seed, steps, topk, width):
    """Against beams and reranking written over paths of ranks."""
    table = random_table(seed, steps, topk)
    beams, candidates = [()], []
    for _ in range(steps):
        grown = [(*path, rank) for path in beams for rank in range(topk)]
        candidates += grown
        beams = sorted(grown, key=lambda path: -joint(table, path))[:topk]
    kept = sorted(candidates, key=lambda path: -joint(table, path))[: width - 1]
    tree = expected.tree(Shape(steps, topk, width), table)
    assert sorted(paths_of(tree)) == sorted(kept)
    assert tree.expected == pytest.approx(1 + sum(joint(table, path) for path in kept))
    assert tree.reach.sum() == pytest.approx(tree.expected - 1)
    assert [len(path) for path in paths_of(tree)] == tree.depth.tolist()


@pytest.mark.parametrize("shape", [Shape(3, 2, 6), Shape(5, 4, 16), Shape.chain(4)], ids=str)
def test_expected_tokens_are_the_mean_of_simulated_rounds(shape):
    table = random_table(3, shape.steps, max(shape.topk, 2))
    tree = expected.tree(shape, table)
    children = set(paths_of(tree))
    random = np.random.default_rng(0)
    edges = np.cumsum(table[:, : shape.topk], 1)
    accepted = []
    for right in random.random((6000, shape.steps)):
        path = ()
        for depth in range(shape.steps):
            rank = int((right[depth] >= edges[depth]).sum())
            if (*path, rank) not in children:
                break
            path = (*path, rank)
        accepted.append(len(path))
    counts = np.array(accepted)
    error = counts.std() / len(counts) ** 0.5
    assert abs(counts.mean() + 1 - expected.tokens(shape, table)) < 4 * error
    for depth, reach in enumerate(tree.reach, 1):
        assert (counts >= depth).mean() == pytest.approx(reach, abs=4 * 0.5 / len(counts) ** 0.5)


def test_the_served_tree_has_the_same_nodes():
    """Scores handed to topk as SGLang does, and the op that the server builds its tree with."""
    steps, topk, width = 4, 3, 12
    table = random_table(1, steps, topk)
    score = torch.tensor(table[0])
    scores, parents, offset = [score], [torch.arange(-1, topk)], topk
    for depth in range(1, steps):
        grown = (score[:, None] * torch.tensor(table[depth])).flatten()
        scores.append(grown)
        kept = grown.topk(topk)
        parents.append(kept.indices + offset)
        score, offset = kept.values, offset + topk * topk
    chosen = torch.cat(scores).topk(width - 1).indices.sort().values
    mask = torch.zeros(width * width, dtype=torch.bool)
    positions, *links = (torch.zeros(size, dtype=torch.long) for size in (width, (1, width), (1, width), (1, width)))
    groups = torch.cat(parents[:-1])[None]
    build_tree_kernel_efficient_cpu(
        groups, chosen[None], torch.zeros(1, dtype=torch.long), mask, positions, *links, topk, steps, width, QLEN_ONLY
    )
    tree = expected.tree(Shape(steps, topk, width), table)
    assert positions.tolist() == [0, *tree.depth.tolist()]
    for node, parent in enumerate(tree.parent, 1):
        seen = mask.view(width, width)[node].clone()
        seen[node] = False
        assert (seen == mask.view(width, width)[parent + 1]).all()


def test_four_numbers_describe_the_measured_accept_lengths():
    """Of docs/performance.md, one head under five shapes."""
    measured = {
        Shape.chain(3): 1.64,
        Shape.chain(4): 1.65,
        Shape(3, 2, 6): 1.82,
        Shape(3, 4, 8): 1.96,
        Shape(5, 4, 16): 2.15,
    }
    table = expected.ranks([0.405], [0.22, 0.18, 0.15])
    for shape, length in measured.items():
        assert expected.tokens(shape, table) == pytest.approx(length, abs=0.06)


def test_a_draft_that_ranks_wrongly_gains_less():
    truth = np.array([[0.1, 0.6], [0.5, 0.2]])
    believed = truth[:, ::-1]
    shape = Shape(2, 2, 3)
    assert expected.tokens(shape, truth, believed) < expected.tokens(shape, truth)
    assert expected.tokens(shape, truth, believed) == pytest.approx(1 + 0.1 + 0.1 * 0.2)


def test_certain_and_impossible_candidates_keep_the_tree_whole():
    tree = expected.tree(Shape(4, 2, 6), [[1.0, 0.0]])
    assert tree.expected == 5
    assert all(parent < node for node, parent in enumerate(tree.parent))
    assert all(
        tree.depth[parent] == depth - 1 for depth, parent in zip(tree.depth, tree.parent, strict=True) if parent >= 0
    )


def test_more_nodes_and_more_depth_never_accept_less():
    table = random_table(2, 6, 4)
    by_width = [expected.tokens(Shape(4, 4, width), table) for width in range(2, 50)]
    assert by_width == sorted(by_width)
    by_depth = [expected.tokens(Shape(depth, 4, 13), table) for depth in range(2, 7)]
    assert all(later >= earlier - 1e-12 for earlier, later in itertools.pairwise(by_depth))


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((3, 1, 5), "has 4 tokens"),
        ((0, 2, 3), "nothing can branch"),
        ((1, 2, 4), "propose 2 candidates"),
        ((2, 2, 1), "expected 2 to 7"),
        ((-1, 1, 0), "steps >= 0"),
        ((1, 0, 2), "topk >= 1"),
    ],
)
def test_shapes_that_sglang_cannot_run(numbers, words):
    with pytest.raises(ValueError, match=words):
        Shape(*numbers)


def test_shapes_as_text_and_flags():
    assert Shape.parse("3") == Shape.chain(3) == Shape.parse("3,1,4") == Shape(3, 1, 4)
    assert Shape.parse(str(Shape(5, 4, 16))) == Shape(5, 4, 16)
    assert Shape.parse("0") == NO_SPECULATION and NO_SPECULATION.flags() == ""
    assert Shape(5, 4, 16).flags().split()[1::2] == ["5", "4", "16"]
    for wrong in ("3,1", "a", "", "3,1,4,1"):
        with pytest.raises(ValueError, match="expected steps,topk,draft_tokens"):
            Shape.parse(wrong)
