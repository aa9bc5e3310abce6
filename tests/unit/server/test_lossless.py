"""Paths, penalties, filters and rates of the repairs, against loops over every node."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from truth.rounding import assert_exact, in_float64

from sglang_eagle31.server.lossless import filters, paths, penalties, rates
from sglang_eagle31.server.lossless.asks import padded

VOCAB = 23


def random_trees(batch: int, nodes: int, seed: int) -> tuple[list[list[int]], torch.Tensor, torch.Tensor]:
    """Parents of each node (-1: root, -2: linked to nothing), and SGLang's links of these trees."""
    generator = torch.Generator().manual_seed(seed)
    child, sibling = torch.full((batch, nodes), -1), torch.full((batch, nodes), -1)
    parents: list[list[int]] = []
    for row in range(batch):
        parents.append([-1])
        last: dict[int, int] = {}
        for node in range(1, nodes):
            if float(torch.rand((), generator=generator)) < 0.1:
                parents[row].append(-2)
                continue
            linked = [n for n in range(node) if parents[row][n] != -2]
            parent = linked[int(torch.randint(len(linked), (), generator=generator))]
            parents[row].append(parent)
            (sibling if parent in last else child)[row, last.get(parent, parent)] = node
            last[parent] = node
    return parents, child, sibling


def path_of(parents: list[int], node: int) -> list[int]:
    """Nodes from ``node`` to the root."""
    out = [node]
    while parents[out[-1]] >= 0:
        out.append(parents[out[-1]])
    return out


@pytest.mark.parametrize("nodes", [1, 2, 5, 16, 33])
def test_paths_are_those_of_the_links(nodes: int) -> None:
    parents, child, sibling = random_trees(4, nodes, nodes)
    tokens = torch.randint(VOCAB, (4, nodes), generator=torch.Generator().manual_seed(1))
    found = paths.parents(child, sibling)
    assert found.tolist() == [[max(parent, -1) for parent in row] for row in parents]
    steps = paths.path_tokens(tokens, found, nodes)
    for row in range(4):
        for node in range(nodes):
            wanted = tokens[row, path_of(parents[row], node)].tolist()
            assert steps[row, node].tolist() == wanted + [-1] * (nodes - len(wanted))


def test_accepted_tokens_leave_the_bonus_token_out() -> None:
    tokens = torch.tensor([[5, 6, 7], [8, 9, 10]])
    index = torch.tensor([[0, 2], [3, -1]], dtype=torch.int32)
    assert paths.accepted_tokens(tokens, index).tolist() == [[5, 7], [8, -1]]


@pytest.mark.parametrize("asked", [(0.7, 0.0, 1.0), (0.0, -1.2, 1.0), (0.0, 0.0, 1.6), (0.4, 0.9, 0.8)])
def test_penalties_follow_each_node_s_own_path(asked: tuple[float, float, float]) -> None:
    parents, child, sibling = random_trees(3, 12, 5)
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(6, (3, 12), generator=generator)  # few, so that paths repeat them
    committed = [torch.randint(9, (n,), generator=generator).tolist() for n in (0, 4, 30)]
    counts = torch.stack([torch.bincount(torch.tensor(c, dtype=torch.long), minlength=VOCAB).int() for c in committed])
    logits = 4 * torch.randn(3, 12, VOCAB, generator=generator, dtype=torch.float64)
    got = logits.clone()
    with in_float64():
        given = penalties.Penalties.of([asked, (0.0, 0.0, 1.0), asked], "cpu")
        penalties.penalise(got, given, counts, paths.path_tokens(tokens, paths.parents(child, sibling), 12))
    for row in range(3):
        frequency, presence, repetition = asked if row != 1 else (0.0, 0.0, 1.0)
        for node in range(12):
            seen = Counter(committed[row]) + Counter(tokens[row, path_of(parents[row], node)].tolist())
            wanted = logits[row, node].clone()
            for token, times in seen.items():
                value = wanted[token] - frequency * times - presence
                wanted[token] = value * repetition if value < 0 else value / repetition
            assert_exact(got[row, node], wanted)
    assert torch.equal(got[1], logits[1])


def test_counts_grow_by_what_is_committed() -> None:
    counts = torch.zeros(2, 5, dtype=torch.int32)
    grown = penalties.add_counts(counts, torch.tensor([[1, 1, 4], [0, -1, -1]]))
    assert grown.tolist() == [[0, 2, 0, 0, 1], [1, 0, 0, 0, 0]] and counts.sum() == 0


def test_stops_are_forbidden_by_the_depth_of_the_node() -> None:
    logits = torch.zeros(3, 3, 6)
    stops = torch.tensor(padded([[2, 5], [1], []]))
    lengths = torch.tensor([[3, 4, 5], [9, 9, 9], [0, 0, 0]])
    penalties.forbid_stops(logits, stops, torch.tensor([5, 9, 4]), lengths)
    hit = [(row, node, token) for row, node, token in logits.isneginf().nonzero().tolist()]
    assert hit == [(0, 0, 2), (0, 0, 5), (0, 1, 2), (0, 1, 5)]
    assert (logits[~logits.isneginf()] == 0).all()


def test_no_stop_token_at_all_forbids_nothing() -> None:
    logits = torch.zeros(1, 2, 4)
    stops = torch.tensor(padded([[]]), dtype=torch.long).reshape(1, -1)
    penalties.forbid_stops(logits, stops, torch.tensor([9]), torch.zeros(1, 2))
    assert (logits == 0).all()


def top_k(probs: torch.Tensor, limits: torch.Tensor) -> torch.Tensor:
    rank = probs.argsort(-1, descending=True).argsort(-1)
    return probs.masked_fill(rank >= limits.unsqueeze(1), 0.0)


def top_p(probs: torch.Tensor, limits: torch.Tensor) -> torch.Tensor:
    order = probs.argsort(-1, descending=True)
    ordered = probs.gather(1, order)
    gone = ordered.cumsum(-1) - ordered > limits.unsqueeze(1)
    return probs.masked_fill(torch.zeros_like(gone).scatter(1, order, gone), 0.0)


PROBS = torch.tensor([0.4, 0.25, 0.15, 0.12, 0.08])


@pytest.mark.parametrize(
    ("k", "p", "least", "joint", "kept"),
    [
        (99, 1.0, 0.29, True, 4),  # 0.12 is the last that is at least 0.29 of 0.4; at 0.3, rounding would decide
        (99, 1.0, 0.6, False, 2),
        (99, 1.0, 0.0, True, 5),
        (3, 0.7, 0.0, True, 3),  # 0.65 is before the third
        (3, 0.7, 0.0, False, 2),  # of what top-k left it is 0.81
        (3, 0.7, 0.5, True, 2),
        (99, 1.0, 1.0, True, 1),
    ],
)
def test_filters_keep_what_the_sampler_keeps(k: int, p: float, least: float, joint: bool, kept: int) -> None:
    hot = torch.tensor([[1.0], [2.0]])
    logits = PROBS.log() * hot  # the temperature is taken out again
    limits = torch.tensor([k, k]), torch.tensor([p, p]), torch.tensor([least, least])
    found = filters.keep(logits, limits, hot, top_k, top_p, joint=joint)
    assert (found > float("-inf")).sum(-1).tolist() == [kept, kept]
    assert torch.equal(found[:, :kept], logits[:, :kept])


@pytest.mark.parametrize(
    ("accepted", "depth", "run", "outputs", "end", "wanted"),
    [
        (2, 5, 3, 40, None, (2, 5)),  # it goes on
        (5, 5, 6, 40, 40, (5, 5)),  # the end is the last token
        (5, 5, 6, 40, 38, (4, 4)),  # two are cut off: four drafts were used, and accepted
        (2, 5, 3, 40, 38, (1, 1)),
        (0, 5, 1, 40, 39, (0, 0)),  # a stop string before the round
        (3, 5, 2, 40, None, (2, 2)),  # a grammar ended
        (1, 5, 2, 40, 30, (0, 0)),
    ],
)
def test_what_a_round_counts(
    accepted: int, depth: int, run: int, outputs: int, end: int | None, wanted: tuple[int, int]
) -> None:
    assert rates.counted(accepted, depth, rates.emitted(run, outputs, end)) == wanted
