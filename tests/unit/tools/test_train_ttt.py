"""The unrolled computation against slow, obvious references, and against the reference of the whole repository.

In float64, where rounding is 1e-14 of a result at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F
from truth import reference
from truth.rounding import EXACT, FAULT, apart, assert_exact, in_float64

from sglang_eagle31.tools.train.data import Sample
from sglang_eagle31.tools.train.loss import soft_cross_entropy
from sglang_eagle31.tools.train.model import DraftConfig, DraftHead
from sglang_eagle31.tools.train.ttt import STEP_DECAY, collate, row_counts, ttt_loss
from sglang_eagle31.tools.train.unroll import Rows, chain_attention, hidden_keys, unroll

H, V, VD = 16, 30, 12


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    with in_float64():
        yield


def make_config(variant: str = "eagle31", **changes: object) -> DraftConfig:
    values: dict[str, object] = {
        "variant": variant,
        "boundaries": (1, 2, 3),
        "hidden_size": H,
        "target_hidden_size": H,
        "intermediate_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "vocab_size": V,
        "draft_vocab_size": VD,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
    }
    return DraftConfig(**{**values, **changes})  # type: ignore[arg-type]


def make_head(variant: str = "eagle31", seed: int = 0, **changes: object) -> DraftHead:
    torch.manual_seed(seed)
    head = DraftHead(make_config(variant, **changes))
    for name, parameter in head.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return head


def make_sample(n: int, seed: int, start: int = 3) -> Sample:
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(V, (n,), generator=g, dtype=torch.int32)
    argmax = torch.cat([ids[1:], torch.tensor([-1], dtype=torch.int32)])
    states, final = torch.randn(n, 3 * H, generator=g), torch.randn(n, H, generator=g)
    return Sample(ids, torch.arange(n) >= start, states, final, argmax, {"id": str(seed), "source": "own"})


def reference_head(head: DraftHead, embedding: torch.Tensor) -> reference.Head:
    """The same head, computed by the reference of this repository's tests."""
    c = head.config
    weights = {name.replace("midlayer.", "layers.0."): value.detach() for name, value in head.state_dict().items()}
    switches = reference.Switches(
        hidden_size=H,
        target_hidden_size=H,
        intermediate_size=c.intermediate_size,
        num_heads=c.num_attention_heads,
        num_kv_heads=c.num_key_value_heads,
        head_dim=c.head_dim,
        vocab_size=V,
        draft_vocab_size=VD,
        boundaries=c.boundaries,
        rms_norm_eps=c.rms_norm_eps,
        pre_fc_norm="fc_norm" if c.fc_norm else "none",
        feedback="post" if c.norm_output else "pre",
        vocab_map=False,
        rope_theta=c.rope_theta,
        sliding_window=c.window,
    )
    return reference.Head(switches, weights, target_embed=embedding)


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("variant", ["eagle3", "eagle31"])
def test_every_row_of_the_unrolled_batch_is_the_chain_that_the_reference_drafts(
    variant: str, window: int | None
) -> None:
    """Prefill of rows 0..t, then one teacher-forced token at a time: as a server would run it."""
    head, n, steps = make_head(variant, window=window), 9, 4
    states, ids, embedding = torch.randn(2, n, 3 * H), torch.randint(V, (2, n + steps)), torch.randn(V, H)
    rows = Rows.of(torch.ones(2, n, dtype=torch.bool))
    # Rows near the end embed tokens past the states, so those are given instead of being taken from the sequence.
    later = lambda i: embedding[ids[rows.sequence, rows.row + 1 + i]]  # noqa: E731
    unrolled = [head.lm_head(s) for s in unroll(head, rows, states, embedding[ids[:, 1 : n + 1]], steps, later)]
    judge = reference_head(head, embedding)
    for index, (b, row) in enumerate(zip(rows.sequence.tolist(), rows.row.tolist(), strict=True)):
        session = reference.Session(judge)
        logits, feedback = session.prefill(states[b, : row + 1], ids[b, 1 : row + 2])
        assert_exact(unrolled[0][index], logits[-1])
        state = feedback[-1]
        for step in range(1, steps):
            logits, state = session.step(int(ids[b, row + 1 + step]), state, row + step)
            assert_exact(unrolled[step][index], logits)


def test_teacher_forced_tokens_are_those_of_the_sequence() -> None:
    head, n, steps = make_head(), 9, 4
    states, ids, embedding = torch.randn(2, n, 3 * H), torch.randint(V, (2, n)), torch.randn(V, H)
    wanted = torch.zeros(2, n, dtype=torch.bool)
    wanted[:, : n - steps] = True
    rows, first = Rows.of(wanted), embedding[F.pad(ids[:, 1:], (0, 1))]
    given = unroll(head, rows, states, first, steps, lambda i: embedding[ids[rows.sequence, rows.row + 1 + i]])
    for forced, asked in zip(unroll(head, rows, states, first, steps), given, strict=True):
        assert_exact(forced, asked)


def test_rows_left_out_change_nothing_for_the_others() -> None:
    head, n, steps = make_head(), 8, 3
    states, embeds = torch.randn(3, n, 3 * H), torch.randn(3, n, H)
    wanted = torch.rand(3, n, generator=torch.Generator().manual_seed(1)) > 0.6
    wanted[1] = False
    whole = list(unroll(head, Rows.of(torch.ones(3, n, dtype=torch.bool)), states, embeds, steps))
    some = list(unroll(head, Rows.of(wanted), states, embeds, steps))
    for all_rows, kept in zip(whole, some, strict=True):
        assert_exact(kept, all_rows[wanted.flatten()])


@pytest.mark.parametrize("window", [None, 1, 2, 4])
@pytest.mark.parametrize("later", [0, 1, 3])
def test_chain_attention_equals_softmax_under_an_explicit_mask(later: int, window: int | None) -> None:
    torch.manual_seed(later)
    b, kv, group, n, d = 2, 2, 3, 7, 4
    q = torch.randn(b * n, kv, group, d)
    context = (torch.randn(b, n, kv, d), torch.randn(b, n, kv, d))
    chain = [(torch.randn(b * n, kv, d), torch.randn(b * n, kv, d)) for _ in range(later)]
    rows = Rows.of(torch.ones(b, n, dtype=torch.bool))
    hidden = hidden_keys(rows.padded, n, later, window)
    seen = chain if window is None else chain[max(0, later - window) :]
    out = chain_attention(q, context, seen, hidden, rows)
    for r in range(b * n):
        sequence, t = divmod(r, n)
        positions = [*range(t + 1), *range(t + 1, t + later + 1)]  # of the context, then of the row's own steps
        keys = torch.cat([context[0][sequence, : t + 1], *(k[r : r + 1] for k, _ in chain)])
        values = torch.cat([context[1][sequence, : t + 1], *(v[r : r + 1] for _, v in chain)])
        visible = torch.tensor([window is None or p > t + later - window for p in positions])
        for head in range(kv):
            scores = (q[r, head] @ keys[:, head].T / math.sqrt(d)).masked_fill(~visible, float("-inf"))
            assert_exact(out[r, head], torch.softmax(scores, -1) @ values[:, head])


def test_a_window_counts_the_own_key() -> None:
    """Window 3 at position 5 (row 4, step 1): keys at 3, 4 and its own at 5."""
    assert hidden_keys(torch.tensor([4]), 7, 1, 3)[0].tolist() == [True, True, True, False, False, True, True]
    assert hidden_keys(torch.tensor([4]), 7, 0, 1)[0].tolist() == [True] * 4 + [False, True, True]
    with pytest.raises(ValueError, match="--window 0"):
        make_config(window=0)


def test_rows_that_lead_to_a_position_are_those_up_to_the_depth_before_it() -> None:
    counted = torch.zeros(1, 9, dtype=torch.bool)
    counted[0, 6] = True
    assert Rows.leading_to(counted, 3).row.tolist() == [3, 4, 5]
    assert Rows.leading_to(counted, 9).row.tolist() == [0, 1, 2, 3, 4, 5]


def test_the_blockwise_cross_entropy_has_the_value_and_gradients_of_the_plain_one() -> None:
    torch.manual_seed(0)
    states, weight = torch.randn(300, H, requires_grad=True), torch.randn(VD, H, requires_grad=True)
    soft, rows = torch.softmax(torch.randn(310, VD), -1), torch.randperm(310)[:300]
    wanted = torch.randint(VD, (310,))
    total, right = soft_cross_entropy(states, weight, soft, wanted, rows)
    (0.3 * total).backward()
    got = states.grad, weight.grad
    states.grad = weight.grad = None
    logits = states @ weight.T
    plain = F.cross_entropy(logits, soft[rows], reduction="sum")
    (0.3 * plain).backward()
    assert_exact(total, plain)
    for gradient, expected in zip(got, (states.grad, weight.grad), strict=True):
        assert_exact(gradient, expected)
    assert torch.equal(right, logits.argmax(-1) == wanted[rows])


def test_soft_targets_of_a_hand_made_case() -> None:
    """Target logits (2, 0, 1, 5) over tokens 0..3 with a draft vocabulary of {0, 2}: softmax of (2, 1) alone."""
    rows = torch.tensor([[2.0, 0.0], [1.0, 0.0]])
    soft = torch.softmax(torch.tensor([[1.0, 0.0]]) @ rows.T, -1)
    assert soft[0].tolist() == pytest.approx([1 / (1 + math.exp(-1)), 1 / (1 + math.e)], rel=EXACT)
    logits = torch.tensor([[math.log(3.0), 0.0]])  # draft shares 0.75 and 0.25
    total, right = soft_cross_entropy(logits, torch.eye(2), soft, torch.tensor([0]), torch.tensor([0]))
    by_hand = -(soft[0, 0] * math.log(0.75) + soft[0, 1] * math.log(0.25))
    assert float(total) == pytest.approx(float(by_hand), rel=EXACT) and right.tolist() == [True]


def test_the_loss_is_the_masked_cross_entropy_over_the_draft_vocabulary() -> None:
    head, samples, steps = make_head(), [make_sample(8, 1), make_sample(6, 2)], 2
    embedding, rows = torch.randn(V, H), torch.randn(VD, H)
    used = torch.arange(0, 2 * VD, 2)
    t2d = torch.zeros(V, dtype=torch.bool)
    t2d[used] = True
    result = ttt_loss(head, collate(samples, torch.device("cpu"), torch.float64), embedding, rows, t2d, steps)
    expected, wins = 0.0, [0, 0]
    for s in samples:
        n, ids = len(s.ids), s.ids.long()
        whole = Rows.of(torch.ones(1, n, dtype=torch.bool))
        first = embedding[F.pad(ids[1:], (0, 1))][None]
        for step, state in enumerate(unroll(head, whole, s.states[None], first, steps)):
            for t in range(n - 2 - step):
                d = t + 1 + step
                if s.mask[d + 1] and t2d[s.argmax[d].long()]:
                    target = torch.softmax(s.final[d] @ rows.T, dim=-1)
                    logits = head.lm_head(state[t])
                    count = _positions(samples, t2d, step)
                    expected -= STEP_DECAY**step * float((target @ torch.log_softmax(logits, -1)).detach()) / count
                    wins[step] += int(used[logits.argmax()] == s.argmax[d])
    assert float(result.loss.detach()) == pytest.approx(expected, rel=EXACT)
    counts = [_positions(samples, t2d, step) for step in range(steps)]
    assert (
        result.rows.tolist()
        == counts
        == [sum(c) for c in zip(*(row_counts([s], t2d, 2) for s in samples), strict=True)]
    )
    assert result.hits.tolist() == wins
    assert result.full_hits[0] == result.hits[0] >= result.full_hits[1]


def _positions(samples: list[Sample], t2d: torch.Tensor, step: int) -> int:
    return sum(
        bool(s.mask[d + 1]) and bool(t2d[s.argmax[d].long()]) for s in samples for d in range(1 + step, len(s.ids) - 1)
    )


def test_the_variants_differ_in_fusion_norms_and_in_what_is_fed_back_only() -> None:
    old, new = make_head("eagle3"), make_head("eagle31")
    extra = {f"fc_norm.{i}.weight" for i in range(3)}
    assert set(new.state_dict()) - set(old.state_dict()) == extra
    assert set(old.state_dict()) <= set(new.state_dict())
    old.load_state_dict({k: v for k, v in new.state_dict().items() if k not in extra})
    states, embeds = torch.randn(1, 5, 3 * H), torch.randn(1, 5, H)
    feature = torch.randn(1, 5, H)
    assert_exact(old.embedding_input(embeds), new.embedding_input(embeds))
    assert_exact(old.state_input(feature), new.state_input(feature))
    (old_normed, old_fed), (new_normed, new_fed) = old.finish(feature, feature), new.finish(feature, feature)
    assert_exact(old_normed, new_normed)
    assert_exact(new_fed, new_normed)
    assert_exact(old.norm(old_fed), new_fed)
    assert apart(old_fed, new_fed) > FAULT
    with torch.no_grad():
        for norm in new.fc_norm:
            norm.weight.fill_(1.0)
    rms = states.view(1, 5, 3, H).square().mean(-1, keepdim=True).add(1e-5).rsqrt()
    assert_exact(new.fuse(states), old.fuse((states.view(1, 5, 3, H) * rms).flatten(2)))
    assert apart(new.fuse(states), old.fuse(states)) > FAULT


def test_an_unknown_variant_is_refused_by_flag_and_value() -> None:
    with pytest.raises(ValueError, match="--variant eagle4"):
        make_config("eagle4")
