"""Rejection sampling of chains on a CPU: its law by exact enumeration, and its edges."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from sampling_laws import DRAWS, LIMIT, VOCAB, Path, Verdict, coins_of, links, p_value, read, target

from sglang_eagle31.server.cpu.sampling import chain_speculative_sampling


def verify_chain(
    probs: torch.Tensor, draft_probs: torch.Tensor, tokens: torch.Tensor, coins: torch.Tensor, final: torch.Tensor
) -> Verdict:
    """Call the op as SGLang does: ``probs`` ``[B, N, V]``, ``draft_probs`` ``[B, N-1, V]``, the others ``[B, N]``."""
    batch, nodes = tokens.shape
    predicts = torch.full((batch * nodes,), -7, dtype=torch.int32)
    accept_index = torch.full((batch, nodes), -1, dtype=torch.int32)
    count = torch.empty(batch, dtype=torch.int32)
    linked = links((None, *range(nodes - 1)), batch)
    index = torch.arange(batch * nodes).view(batch, nodes)
    before = probs.clone(), draft_probs.clone()
    chain_speculative_sampling(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=count,
        candidates=tokens,
        retrive_index=index,
        retrive_next_token=linked[0],
        retrive_next_sibling=linked[1],
        uniform_samples=coins,
        uniform_samples_for_final_sampling=final,
        target_probs=probs,
        draft_probs=draft_probs,
        threshold_single=1.0,
        threshold_acc=1.0,
        deterministic=True,
    )
    assert torch.equal(probs, before[0]) and torch.equal(draft_probs.nan_to_num(), before[1].nan_to_num())
    accepted = torch.arange(nodes) <= count[:, None]
    assert torch.equal(accept_index[accepted].long(), index[accepted]) and (accept_index[~accepted] == -1).all()
    assert (predicts.view(batch, nodes)[~accepted] == -7).all()
    return read(predicts, accept_index, count)


def markov_chain(seed: int, likeness: float, spoil: float = 0.0) -> tuple[Counter[Path], dict[Path, float], float]:
    """Three tokens after token 0 by rejection sampling of three drafts, their law, and the mean number accepted.

    Target and draft are tables ``[V, V]``: the next token's distribution by the last one. The draft's is the target's
    to the share ``likeness``; the op is told one that is off by the share ``spoil``. What a round leaves open is drawn
    from the target.
    """
    torch.manual_seed(seed)
    p = target(seed, VOCAB, sharp=1.5)
    q = likeness * p + (1 - likeness) * target(seed + 1, VOCAB, sharp=1.5)
    tokens = torch.zeros(DRAWS, 4, dtype=torch.long)
    for step in range(3):
        tokens[:, step + 1] = torch.multinomial(q[tokens[:, step]], 1)[:, 0]
    told = (1 - spoil) * q + spoil / VOCAB
    got = verify_chain(p[tokens], told[tokens[:, :3]], tokens, *coins_of(seed, DRAWS, 4))
    lengths = torch.tensor([len(path) for path in got.tokens])
    paths = torch.tensor([(0, *path, *[0] * (4 - len(path))) for path in got.tokens])
    for step in range(1, 4):
        short = lengths < step
        paths[short, step] = torch.multinomial(p[paths[short, step - 1]], 1)[:, 0]
    table = p.double().tolist()
    triples = itertools.product(range(VOCAB), repeat=3)
    law = {(a, b, c): table[0][a] * table[a][b] * table[b][c] for a, b, c in triples}
    return Counter(map(tuple, paths[:, 1:4].tolist())), law, float(lengths.float().mean()) - 1


@pytest.mark.parametrize(("likeness", "least"), [(0.0, 0.5), (0.5, 1.5), (0.95, 2.7)])
def test_rejection_sampling_s_law_is_the_target_s(likeness: float, least: float) -> None:
    seen, law, accepted = markov_chain(11, likeness)
    assert p_value(seen, law) > LIMIT
    assert accepted > least


def test_rejection_sampling_told_the_wrong_draft_is_found() -> None:
    seen, law, _ = markov_chain(11, 0.5, spoil=0.2)
    assert p_value(seen, law) < LIMIT


def test_a_chain_of_the_target_s_own_samples_is_accepted_whole() -> None:
    _, _, accepted = markov_chain(12, 1.0)
    assert accepted == 3.0


def chain_of_one(p: list[float], q: list[float], draft: int, coin: float, final: float) -> tuple[Path, int]:
    probs = torch.tensor([p, [0.0, 0.0, 1.0]])[None]
    got = verify_chain(
        probs, torch.tensor([[q]]), torch.tensor([[0, draft]]), torch.full((1, 2), coin), torch.tensor([final])
    )
    return got.tokens[0], len(got.slots[0]) - 1


def test_rejection_sampling_at_the_edges() -> None:
    largest = 1 - 2**-24
    assert chain_of_one([0.5, 0.5, 0.0], [1.0, 0.0, 0.0], 0, 0.49, 0.0) == ((0, 2), 1)  # p/q = 0.5, then the bonus
    assert chain_of_one([0.5, 0.5, 0.0], [1.0, 0.0, 0.0], 0, 0.51, largest) == ((1,), 0)
    assert chain_of_one([0.5, 0.5, 0.0], [1.0, 0.0, 0.0], 1, 0.0, largest) == ((1,), 0)  # not what q proposes
    assert chain_of_one([0.0, 0.3, 0.7], [0.9, 0.1, 0.0], 0, 0.0, 0.0) == ((1,), 0)  # excluded by the target
    assert chain_of_one([0.2, 0.8, 0.0], [float("nan"), 0.5, 0.5], 0, 0.0, 0.0) == ((0,), 0)
    assert chain_of_one([1.0, 0.0, 0.0], [0.4, 0.6, 0.0], 0, largest, 0.5) == ((0, 2), 1)  # a greedy request
    assert chain_of_one([1.0, 0.0, 0.0], [0.4, 0.6, 0.0], 1, 0.0, 0.5) == ((0,), 0)
    assert chain_of_one([0.5, 0.5, 0.0], [0.5, 0.5, 0.0], 2, 0.0, 0.7) == ((1,), 0)  # nothing left: from the target
    assert chain_of_one([5.0, 5.0, 0.0], [1.0, 0.0, 0.0], 0, 0.51, 0.0) == ((1,), 0)  # weights


def test_no_request() -> None:
    none = torch.empty(0, 3, dtype=torch.long)
    assert verify_chain(torch.empty(0, 3, 5), torch.empty(0, 2, 5), none, none.float(), torch.empty(0)).tokens == []
