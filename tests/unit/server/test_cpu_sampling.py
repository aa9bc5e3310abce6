"""Sampled verification of trees on a CPU: its law by exact enumeration, and each outcome against a plain walk."""

from __future__ import annotations

import random
from collections import Counter

import cpu_reference as ref
import pytest
import torch
from sampling_laws import DRAWS, LIMIT, PARENTS, TOKENS, VOCAB, Path, Verdict, coins_of, links, p_value, read, target
from truth.rounding import EXACT

from sglang_eagle31.server.cpu.sampling import tree_speculative_sampling_target_only


def verify_tree(
    probs: torch.Tensor,
    tokens: torch.Tensor,
    linked: tuple[torch.Tensor, torch.Tensor],
    coins: torch.Tensor,
    final: torch.Tensor,
    longest: int,
    **more: float,
) -> Verdict:
    """Call the op as SGLang does. ``probs`` ``[B, N, V]``, ``tokens`` and ``coins`` ``[B, N]``, ``final`` ``[B]``."""
    batch, nodes = tokens.shape
    predicts = torch.full((batch * nodes,), -7, dtype=torch.int32)
    accept_index = torch.full((batch, longest), -1, dtype=torch.int32)
    count = torch.empty(batch, dtype=torch.int32)
    before = probs.clone()
    tree_speculative_sampling_target_only(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=count,
        candidates=tokens,
        retrive_index=torch.arange(batch * nodes).view(batch, nodes),
        retrive_next_token=linked[0],
        retrive_next_sibling=linked[1],
        uniform_samples=coins,
        uniform_samples_for_final_sampling=final,
        target_probs=probs,
        draft_probs=torch.zeros(0),
        deterministic=True,
        **more,
    )
    assert torch.equal(probs, before)
    return read(predicts, accept_index, count)


def tree_law(probs: torch.Tensor) -> dict[Path, float]:
    """Every outcome on `PARENTS` and its probability, by walking along one sample of the target a node."""
    law: dict[Path, float] = {}
    rows = probs.double() / probs.double().sum(-1, keepdim=True)

    def follow(node: int, path: Path, chance: float) -> None:
        children = {TOKENS[c]: c for c, parent in reversed(list(enumerate(PARENTS))) if parent == node}
        for token in range(VOCAB):
            after = chance * float(rows[node, token])
            if token in children:
                follow(children[token], (*path, token), after)
            else:
                law[(*path, token)] = law.get((*path, token), 0.0) + after

    follow(0, (), 1.0)
    return law


def tree_draws(probs: torch.Tensor, seed: int, **more: float) -> Counter[Path]:
    coins, final = coins_of(seed, DRAWS, len(PARENTS))
    spread = probs.expand(DRAWS, -1, -1)
    tokens = torch.tensor(TOKENS).repeat(DRAWS, 1)
    return Counter(verify_tree(spread, tokens, links(PARENTS, DRAWS), coins, final, 4, **more).tokens)


@pytest.mark.parametrize("sharp", [0.3, 1.0, 3.0])
def test_a_tree_s_law_is_the_target_s(sharp: float) -> None:
    probs = target(1, sharp=sharp)
    law = tree_law(probs)
    assert sum(law.values()) == pytest.approx(1.0, abs=EXACT)
    assert p_value(tree_draws(probs, 2), law) > LIMIT


def test_a_law_that_is_a_few_percent_off_is_found() -> None:
    probs = target(1)
    assert p_value(tree_draws(probs, 2, threshold_acc=0.95), tree_law(probs)) < LIMIT
    assert p_value(tree_draws(target(1, sharp=1.05), 2), tree_law(probs)) < LIMIT


def test_weights_need_not_sum_to_one() -> None:
    """Powers of two scale without rounding, so that no coin falls on the other side of a border."""
    probs = target(1)
    scale = 2.0 ** torch.randint(-3, 4, (len(PARENTS), 1), generator=torch.Generator().manual_seed(0))
    assert len(scale.unique()) > 3
    assert tree_draws(probs * scale, 2) == tree_draws(probs, 2)


def test_tokens_that_the_target_excludes_are_never_given() -> None:
    probs = target(4)
    probs[:, 2] = 0.0  # the token of nodes 1 and 6
    probs[0, 1] = 0.0
    law = tree_law(probs)
    assert p_value(tree_draws(probs, 5), law) > LIMIT


def plain_walk(
    rows: list[list[float]],
    tokens: list[int],
    first: list[int],
    sibling: list[int],
    coins: list[float],
    final: float,
    longest: int,
    single: float = 1.0,
    acc: float = 1.0,
) -> tuple[list[int], int]:
    """The accepted nodes and the token after them, by the rule of SGLang's op, one request at a time."""
    path, seen = [0], set[int]()
    while len(path) < longest:
        here, reach, seen = path[-1], 0.0, set[int]()
        child = first[here]
        while child != -1:
            mass = 0.0 if tokens[child] in seen else rows[here][tokens[child]]
            seen.add(tokens[child])
            reach += mass
            if mass > 0 and (coins[here] < reach / acc or mass >= single):
                break
            child = sibling[child]
        if child == -1:
            break
        path.append(child)
        seen = set()
    left = [0.0 if token in seen else weight for token, weight in enumerate(rows[path[-1]])]
    if sum(left) == 0:
        left = rows[path[-1]]
    goal, passed, token = final * sum(left), 0.0, -1
    for at, weight in enumerate(left):
        passed += weight
        token = at if weight > 0 else token
        if weight > 0 and passed > goal:
            break
    return path, token


@pytest.mark.parametrize(("single", "acc"), [(1.0, 1.0), (0.3, 1.0), (1.0, 0.6), (0.4, 0.5), (0.0, 1.0), (1.0, 0.0)])
@pytest.mark.parametrize("seed", range(12))
def test_every_outcome_is_the_plain_walk_s(seed: int, single: float, acc: float) -> None:
    """Random trees with orphans, siblings of the same token, tokens of probability 0, and paths cut short."""
    rng = random.Random(seed)
    depth, topk, batch, vocab = rng.randint(1, 5), rng.randint(1, 5), rng.randint(1, 8), rng.choice((3, 6, 20))
    nodes = rng.randint(2, min(24, 1 + ref.candidate_count(topk, depth)))
    linked = [ref.links(ref.draft_tree(rng, topk, depth, nodes, certain=0.3))[1:] for _ in range(batch)]
    tokens = torch.tensor([[rng.randrange(vocab) for _ in range(nodes)] for _ in range(batch)])
    probs = target(seed, batch * nodes, vocab, 2.0).view(batch, nodes, vocab)
    probs = probs * (torch.rand(probs.shape, generator=torch.Generator().manual_seed(seed)) < 0.7)
    probs[..., 0] += 0.01
    probs = (probs / probs.sum(-1, keepdim=True)).double().float()
    coins, final = coins_of(seed, batch, nodes)
    both = (torch.tensor([pair[0] for pair in linked]), torch.tensor([pair[1] for pair in linked]))
    longest = rng.randint(2, depth + 1)
    got = verify_tree(probs, tokens, both, coins, final, longest, threshold_single=single, threshold_acc=acc)
    for request in range(batch):
        rows = probs[request].double()
        rows = (rows / rows.sum(-1, keepdim=True)).tolist()
        path, token = plain_walk(
            rows,
            tokens[request].tolist(),
            *linked[request],
            coins[request].tolist(),
            float(final[request]),
            longest,
            single,
            max(acc, 1e-9),
        )
        assert got.slots[request] == tuple(request * nodes + node for node in path)
        assert got.tokens[request] == (*tokens[request][path[1:]].tolist(), token)


def test_siblings_in_any_order_of_their_numbers() -> None:
    probs = torch.tensor([[0.2, 0.3, 0.5]]).expand(1, 4, 3)
    tokens = torch.tensor([[0, 0, 1, 2]])
    linked = (torch.tensor([[3, -1, -1, -1]]), torch.tensor([[-1, -1, 1, 2]]))  # 3, then 2, then 1
    for coin, node in ((0.49, 3), (0.51, 2), (0.79, 2), (0.81, 1)):
        got = verify_tree(probs, tokens, linked, torch.full((1, 4), coin), torch.zeros(1), 2)
        assert got.slots == [(0, node)]


def test_siblings_of_one_token_count_once() -> None:
    probs = torch.tensor([[0.3, 0.7, 0.0]]).expand(DRAWS, 3, 3)
    coins, final = coins_of(1, DRAWS, 3)
    tokens = torch.tensor([[2, 0, 0]]).repeat(DRAWS, 1)
    got = verify_tree(probs, tokens, links((None, 0, 0), DRAWS), coins, final, 2)
    first = Counter((path[0],) for path in got.tokens)
    assert p_value(first, {(0,): 0.3, (1,): 0.7}) > LIMIT
    assert {slots[1] % 3 for slots in got.slots if len(slots) > 1} == {1}


def test_the_largest_coin_gives_a_token_of_the_target() -> None:
    vocab, largest = 50_000, 1 - 2**-24
    probs = torch.rand(1, 2, vocab, generator=torch.Generator().manual_seed(0)).softmax(-1)
    probs[..., 40_000:] = 0.0
    coins = torch.full((1, 2), largest)
    for draft in (7, 45_000):
        got = verify_tree(probs, torch.tensor([[0, draft]]), links((None, 0), 1), coins, coins[:, 0], 2)
        assert got.tokens[0][-1] < 40_000 and len(got.tokens[0]) == 1
    sure = torch.zeros(1, 2, 3)
    sure[..., 1] = 0.999  # rounding left it below 1
    got = verify_tree(sure, torch.tensor([[0, 1]]), links((None, 0), 1), coins, coins[:, 0], 2)
    assert got.tokens == [(1, 1)]


def test_no_request() -> None:
    none = torch.empty(0, 3, dtype=torch.long)
    assert verify_tree(torch.empty(0, 3, 5), none, (none, none), none.float(), torch.empty(0), 2).tokens == []
