"""The unrolled computation against slow, obvious references."""

from __future__ import annotations

import math

import pytest
import torch

from sglang_eagle31.train.data import Sample
from sglang_eagle31.train.model import DraftConfig, DraftHead, rope_tables, rotate
from sglang_eagle31.train.ttt import STEP_DECAY, chain_attention, collate, ttt_loss, unroll

H, V, VD = 16, 30, 12


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


def make_head(variant: str = "eagle31", seed: int = 0) -> DraftHead:
    torch.manual_seed(seed)
    head = DraftHead(make_config(variant))
    for name, parameter in head.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return head


def make_sample(n: int, seed: int, start: int = 3) -> Sample:
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(V, (n,), generator=g, dtype=torch.int32)
    argmax = torch.cat([ids[1:], torch.tensor([-1], dtype=torch.int32)])
    states, final = torch.randn(n, 3 * H, generator=g), torch.randn(n, H, generator=g)
    return Sample(ids, torch.arange(n) >= start, states, final, argmax, {"id": str(seed)})


def slow_chain(head: DraftHead, states: torch.Tensor, tokens: torch.Tensor, row: int, steps: int) -> list[torch.Tensor]:
    """One chain from one row, computed as a server does: prefill rows 0..row, then one token at a time."""
    config, attention = head.config, head.midlayer.self_attn
    g = head.fuse(states[: row + 1])
    x = head.attention_input(tokens[1 : row + 2], g)
    keys, values, outputs = [], [], []
    for step in range(steps):
        positions = torch.arange(row + 1) if step == 0 else torch.tensor([row + step])
        cos, sin = rope_tables(positions, config.head_dim, config.rope_theta)
        n = len(positions)
        q = rotate(attention.q_proj(x).view(n, 4, 4).transpose(0, 1), cos, sin)
        k = rotate(attention.k_proj(x).view(n, 2, 4).transpose(0, 1), cos, sin)
        keys.append(k)
        values.append(attention.v_proj(x).view(n, 2, 4).transpose(0, 1))
        all_keys, all_values = torch.cat(keys, dim=1), torch.cat(values, dim=1)
        heads = []
        for h in range(4):
            scores = q[h, -1] @ all_keys[h // 2].T / math.sqrt(4)
            heads.append(torch.softmax(scores, dim=-1) @ all_values[h // 2])
        normed, g = head.finish(g[-1:], attention.o_proj(torch.cat(heads))[None])
        outputs.append(normed[0])
        if step + 1 < steps:
            x = head.attention_input(tokens[row + 2 + step][None], g)
    return outputs


@pytest.mark.parametrize("variant", ["eagle3", "eagle31"])
def test_every_row_of_the_unrolled_batch_is_the_chain_a_server_would_run(variant: str) -> None:
    head = make_head(variant)
    n, steps = 9, 3
    states, tokens = torch.randn(2, n, 3 * H), torch.randn(2, n + steps, H)
    embeds = [tokens[:, 1 + i : 1 + i + n] for i in range(steps)]
    fast = list(unroll(head, states, lambda i, _: embeds[i], steps))
    for b in range(2):
        for row in range(n):
            slow = slow_chain(head, states[b], tokens[b], row, steps)
            for step in range(steps):
                torch.testing.assert_close(fast[step][b, row], slow[step], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("later", [0, 1, 3])
def test_chain_attention_equals_softmax_under_an_explicit_mask(later: int) -> None:
    torch.manual_seed(later)
    b, kv, group, n, d = 2, 2, 3, 7, 4
    q = torch.randn(b, kv, group, n, d)
    keys = [torch.randn(b, kv, n, d) for _ in range(later + 1)]
    values = [torch.randn(b, kv, n, d) for _ in range(later + 1)]
    mask = torch.cat([torch.ones(n, n).tril()] + [torch.eye(n)] * later, dim=1).bool()
    scores = q @ torch.cat(keys, dim=2)[:, :, None].transpose(3, 4) / math.sqrt(d)
    weights = torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)
    torch.testing.assert_close(chain_attention(q, keys, values), weights @ torch.cat(values, dim=2)[:, :, None])


def test_the_loss_is_the_masked_cross_entropy_over_the_draft_vocabulary() -> None:
    head, samples, steps = make_head(), [make_sample(8, 1), make_sample(6, 2)], 2
    embedding, rows = torch.randn(V, H), torch.randn(VD, H)
    used = torch.arange(0, 2 * VD, 2)
    t2d = torch.zeros(V, dtype=torch.bool)
    t2d[used] = True
    batch = collate(samples, torch.device("cpu"))
    result = ttt_loss(head, batch, embedding, rows, t2d, steps)
    expected = 0.0
    forced = [torch.nn.functional.pad(embedding[batch.ids], (0, 0, 0, 4))[:, i + 1 : i + 9] for i in range(steps)]
    for b, s in enumerate(samples):  # embedding of padding is never under the loss, so zeros do
        states = list(unroll(head, batch.states[b : b + 1], lambda i, _, b=b: forced[i][b : b + 1], steps))
        for step, state in enumerate(states):
            for t in range(len(s.ids) - 2 - step):
                d = t + 1 + step
                if s.mask[d + 1] and t2d[s.argmax[d].long()]:
                    target = torch.softmax(s.final[d] @ rows.T, dim=-1)
                    logp = torch.log_softmax(head.lm_head(state[0, t]), dim=-1)
                    count = _positions(samples, t2d, step)
                    expected -= STEP_DECAY**step * float((target @ logp).detach()) / count
    assert float(result.loss.detach()) == pytest.approx(expected, rel=1e-4)


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
    torch.testing.assert_close(old.attention_input(embeds, feature), new.attention_input(embeds, feature))
    (old_normed, old_fed), (new_normed, new_fed) = old.finish(feature, feature), new.finish(feature, feature)
    torch.testing.assert_close(old_normed, new_normed)
    torch.testing.assert_close(new_fed, new_normed)
    torch.testing.assert_close(old.norm(old_fed), new_fed)
    assert not torch.allclose(old_fed, new_fed)
    with torch.no_grad():
        for norm in new.fc_norm:
            norm.weight.fill_(1.0)
    rms = states.view(1, 5, 3, H).square().mean(-1, keepdim=True).add(1e-5).rsqrt()
    torch.testing.assert_close(new.fuse(states), old.fuse((states.view(1, 5, 3, H) * rms).flatten(2)))
    assert not torch.allclose(new.fuse(states), old.fuse(states))


def test_an_unknown_variant_is_refused_by_flag_and_value() -> None:
    with pytest.raises(ValueError, match="--variant eagle4"):
        make_config("eagle4")
