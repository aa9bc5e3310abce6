"""The probe's attention weights and groups against plain loops, in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from truth.rounding import EXACT, in_float64

from sglang_eagle31.server.probe import attention, states

HEADS, KV, WIDTH = 6, 2, 5


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    with in_float64():
        yield


def drawn(rows: int, keys: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, HEADS, WIDTH, generator=generator), torch.randn(keys, KV, WIDTH, generator=generator)


@pytest.mark.parametrize(("cap", "sinks"), [(0.0, False), (3.0, False), (0.0, True)])
def test_weights_are_those_of_the_formula(cap: float, sinks: bool) -> None:
    query, keys = drawn(3, 7)
    visible = torch.tensor([[True] * 4 + [False] * 3, [True, False] * 3 + [True], [True] * 7])
    learned = torch.linspace(-1, 1, HEADS) if sinks else None
    found = attention.weights(query, keys, visible, 0.7, cap, learned)
    for row in range(3):
        for head in range(HEADS):
            scores = [float(query[row, head].double() @ keys[key, head // 3].double()) * 0.7 for key in range(7)]
            scores = [cap * math.tanh(score / cap) for score in scores] if cap else scores
            powers = [math.exp(score) * bool(seen) for score, seen in zip(scores, visible[row], strict=True)]
            total = sum(powers) + (math.exp(float(learned[head])) if learned is not None else 0.0)
            assert found[row, head].tolist() == pytest.approx([power / total for power in powers], abs=EXACT)


def test_groups_share_out_all_keys() -> None:
    query, keys = drawn(2, 9)
    columns = torch.tensor([0, 1, 2, 3, 4, 5, 6, 6, 7])  # two branches have a drafted token in place 6
    visible = torch.tensor([[True] * 7 + [False] * 2, [True] * 6 + [False, True, True]])
    kind = attention.kinds(columns, sink=1, prompt=4, committed=6)
    assert [attention.KINDS[index] for index in kind] == ["prompt", "sink", *["prompt"] * 2, *["answer"] * 2] + [
        "drafted"
    ] * 3
    own = torch.tensor([6, 8])
    weight = attention.weights(query, keys, visible, 1.0)
    found = attention.measure(weight, visible, kind, own)
    mean = weight.double().mean(1)
    keys_of = {"sink": [1], "prompt": [0, 2, 3], "answer": [4, 5], "drafted": [6, 7, 8]}
    for row, drafted in enumerate((1, 2)):
        for name, inside in keys_of.items():
            mass = sum(float(mean[row, key]) for key in inside)
            count = drafted if name == "drafted" else len(inside)
            assert float(found[f"mass_{name}"][row]) == pytest.approx(mass, abs=EXACT)
            assert float(found[f"key_{name}"][row]) == pytest.approx(mass / count, abs=EXACT)
        assert float(found["mass_self"][row]) == pytest.approx(float(mean[row, own[row]]), abs=EXACT)
    total = sum(found[f"mass_{name}"] for name in attention.KINDS)
    assert total.tolist() == pytest.approx([1.0, 1.0], abs=EXACT)


def test_a_group_without_keys_has_no_mass_per_key() -> None:
    query, keys = drawn(1, 3)
    visible = torch.ones(1, 3, dtype=torch.bool)
    kind = attention.kinds(torch.arange(3), sink=0, prompt=2, committed=3)
    found = attention.measure(attention.weights(query, keys, visible, 1.0), visible, kind, torch.tensor([2]))
    assert float(found["mass_drafted"]) == 0.0 and math.isnan(float(found["key_drafted"]))


def test_near_is_the_share_of_the_last_keys() -> None:
    query, keys = drawn(2, 20)
    own = torch.tensor([19, 17])
    visible = torch.arange(20) <= own.unsqueeze(1)
    weight = attention.weights(query, keys, visible, 1.0)
    found, mean = attention.near(weight, own), weight.mean(1)
    assert list(found) == [f"near_{d}" for d in range(1, 17)]
    for d in (1, 2, 16):
        expected = [float(mean[row, place - d + 1 : place + 1].sum()) for row, place in enumerate((19, 17))]
        assert found[f"near_{d}"].tolist() == pytest.approx(expected, abs=EXACT)
    short = attention.near(weight[:1, :, :2], torch.tensor([1]))
    assert list(short) == ["near_1", "near_2"]


def test_entropy_counts_positions() -> None:
    even = torch.full((1, 2, 8), 1 / 8)
    assert float(attention.entropy(even)) == pytest.approx(math.log(8), rel=EXACT)
    one = torch.zeros(1, 2, 8)
    one[..., 3] = 1.0
    assert float(attention.entropy(one)) == 0.0


@pytest.mark.parametrize("length", [1, 2, 5, 16, 33, 500])
def test_sink_rows_lie_in_the_second_half(length: int) -> None:
    rows = attention.sink_rows(length)
    assert rows == sorted(set(rows)) and rows[0] == length // 2 and rows[-1] < length and len(rows) <= 16


@pytest.mark.parametrize("sink", [0, 1, 6])
def test_the_sink_is_found_where_it_is(sink: int) -> None:
    rows = torch.tensor(attention.sink_rows(20))
    query, keys = torch.ones(len(rows), HEADS, WIDTH), torch.zeros(20, KV, WIDTH)
    keys[sink] = 0.5
    visible = torch.arange(20) <= rows.unsqueeze(1)
    means = attention.column_means(attention.weights(query, keys, visible, 1.0), rows)
    assert len(means) == 11 and int(means.argmax()) == sink


def test_sizes_of_states() -> None:
    state = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    assert states.rms(state).tolist() == pytest.approx([math.sqrt(12.5), math.sqrt(2.0)], rel=EXACT)
    assert states.cosine(state, torch.tensor([[6.0, 8.0], [1.0, 0.0]])).tolist() == pytest.approx([1.0, 0.0], abs=EXACT)
