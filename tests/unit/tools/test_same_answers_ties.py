"""The rule for ties: two roundings of 16-bit logits, and what sums in another order do to float32 ones."""

from __future__ import annotations

import pytest
import torch

from sglang_eagle31.tools.shared.same_answers import logits
from sglang_eagle31.tools.shared.same_answers.ties import rounding, tie_rule


@pytest.mark.parametrize(
    ("dtype", "magnitude", "bound"),
    [
        ("bfloat16", 16.0, 0.25),
        ("bfloat16", 31.9, 0.25),
        ("bfloat16", 8.0, 0.125),
        ("bfloat16", 1.0, 2 * 2.0**-7),
        ("float16", 16.0, 2 * 2.0**-6),
        ("float32", 16.0, 2.0**-8),
        ("float32", 24.0, 1.5 * 2.0**-8),
    ],
)
def test_the_bound_by_dtype_and_magnitude(dtype, magnitude, bound):
    assert rounding(dtype, magnitude) == bound
    assert tie_rule(dtype, magnitude).bound == bound


@pytest.mark.parametrize("magnitude", [1.0, 11.3, 17.0, 40.0])
def test_the_bound_is_two_spacings_of_torch_s_numbers(magnitude):
    value = torch.tensor(magnitude, dtype=torch.bfloat16)
    upper = torch.nextafter(value, torch.tensor(float("inf"), dtype=torch.bfloat16))
    assert rounding("bfloat16", magnitude) == 2 * (upper.float() - value.float()).item()


@pytest.mark.parametrize("magnitude", [0.3, 1.0, 15.9, 16.0, 34.0, 100.0])
def test_float32_s_bound_is_far_below_the_others(magnitude):
    assert 30 * rounding("float32", magnitude) <= rounding("bfloat16", magnitude)
    assert 3 * rounding("float32", magnitude) <= rounding("float16", magnitude)


def network(weights, state, product):
    """Logits of a deep network of residual layers."""
    for weight in weights[:-1]:
        state = state + product(torch.nn.functional.rms_norm(state, state.shape[-1:]), weight)
    return product(torch.nn.functional.rms_norm(state, state.shape[-1:]), weights[-1])


def reordered(state, weight):
    """The same product, its terms summed in another order."""
    order = torch.randperm(len(weight), generator=torch.Generator().manual_seed(1))
    return sum(a @ b for a, b in zip(state[:, order].split(37, 1), weight[order].split(37), strict=True))


def test_sums_in_another_order_stay_within_float32_s_bound_and_bfloat16_does_not():
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(512, 512, generator=draw) / 512**0.5 for _ in range(48)]
    weights.append(16 * torch.randn(512, 512, generator=draw) / 512**0.5)
    state = torch.randn(32, 512, generator=draw)
    one, other = network(weights, state, torch.matmul), network(weights, state, reordered)
    coarse = network([weight.bfloat16() for weight in weights], state.bfloat16(), torch.matmul).float()
    bound = rounding("float32", 16.0)
    assert 0 < (one - other).abs().max() < bound / 10
    assert (one - coarse).abs().max() > bound


def test_an_unknown_dtype_is_refused_and_one_that_is_not_told_is_the_coarsest():
    with pytest.raises(ValueError, match="--dtype float8: no rule for ties; use float32, bfloat16 or float16"):
        tie_rule("float8")
    unknown = tie_rule(None)
    assert (unknown.bound, unknown.answers_bound) == (0.25, 0.0)


def test_float32_answers_may_not_part_at_all():
    assert tie_rule("float32").answers_bound == 0.0 and tie_rule("float32").exact
    assert tie_rule("bfloat16").answers_bound == 0.25 and not tie_rule("bfloat16").exact


@pytest.mark.parametrize(
    ("gap", "best", "tie"),
    [
        (0.5, 38.75, True),  # spaced 0.25 apart, from 32 on
        (0.75, 38.75, False),
        (0.5, 32.25, False),  # the lower candidate is below 32
        (0.5, 30.0, False),
        (0.5, 9.0, False),
    ],
)
def test_a_larger_logit_has_a_larger_spacing(gap, best, tie):
    asked = []
    rule = tie_rule("bfloat16", best_logit=lambda prefix: asked.append(prefix) or best)
    assert rule.explains(gap, [7, 1]) is tie
    assert asked == [[7, 1]]
    assert not tie_rule("bfloat16").explains(gap, [7, 1])


def test_the_target_is_asked_only_where_nothing_else_explains_the_gap():
    def asked(prefix):
        pytest.fail("the target was loaded for nothing")

    assert tie_rule("bfloat16", best_logit=asked).explains(0.25, [1])
    assert tie_rule("bfloat16", best_logit=asked).explains(0.25005, [1])  # float32 rounding of a log-probability


def test_only_a_small_target_is_loaded(tmp_path, monkeypatch):
    assert logits.of_target(tmp_path, "bfloat16") is None
    (tmp_path / "model.safetensors").write_bytes(b"12")
    monkeypatch.setattr(logits, "best_logit", lambda model, dtype, prefix: (model, dtype, prefix))
    best = logits.of_target(tmp_path, "bfloat16")
    assert best([1, 2]) == (tmp_path, "bfloat16", [1, 2])
    monkeypatch.setattr(logits, "SMALL", 1)
    assert logits.of_target(tmp_path, "bfloat16") is None
