"""The probe's head against the independent reference: states, attention weights, chains and trees.

In float64, because chains of layers enlarge rounding; one test says how near the probe's own float32 is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from test_reference import BASE, LLAMA3, MLA, VARIANTS, YARN, H, head, inputs
from torch import Tensor
from truth import reference
from truth.reference import Session, Switches
from truth.rounding import EXACT, apart, assert_exact, in_float64, network

from sglang_eagle31.head.spec import DrafterSpec
from sglang_eagle31.server.probe import attention
from sglang_eagle31.tools.drift.draft import draft, prefill
from sglang_eagle31.tools.drift.head import Cache, Head
from sglang_eagle31.tools.drift.offline import Settings, probe_states
from sglang_eagle31.tools.drift.rope import Rope

PROMPT = 6
FULL_YARN = {**YARN, "mscale": 0.7, "mscale_all_dim": 1.0}
CASES: dict[str, Switches] = {
    "plain": BASE,
    **{name: dataclasses.replace(BASE, **changes) for name, changes in VARIANTS.items()},
    "two layers": dataclasses.replace(BASE, num_layers=2, later_norm="hidden_norm", residual="post"),
    "two wide layers": dataclasses.replace(BASE, num_layers=2, later_norm="both"),
    "mla": MLA,
    "mla, full query": dataclasses.replace(MLA, q_lora_rank=None),
    "mla, yarn": dataclasses.replace(MLA, rope_scaling=FULL_YARN),
    "mla, yarn without mscale": dataclasses.replace(MLA, rope_scaling=YARN),
    "mla, linear": dataclasses.replace(MLA, rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "llama3": dataclasses.replace(BASE, rope_scaling=LLAMA3),
    "yarn": dataclasses.replace(BASE, rope_scaling=YARN),
    "dynamic": dataclasses.replace(BASE, rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
    "half rotated": dataclasses.replace(BASE, partial_rotary_factor=0.5),
}


@pytest.fixture
def float64() -> Iterator[None]:
    with in_float64():
        yield


class Watched(Session):
    """A reference session that keeps the weights of every call, ``[heads, T, S]`` a layer."""

    def __init__(self, known: reference.Head) -> None:
        super().__init__(known)
        self.weights: dict[int, Tensor] = {}

    def _attend(self, i: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        before = self.kv[i][0] if i < len(self.kv) else k[:0]
        every = torch.cat([before, k])
        query, window = self.positions[len(self.positions) - len(q) :, None], self.head.switches.sliding_window
        hidden = self.positions[None] > query
        if window is not None:
            hidden |= self.positions[None] <= query - window
        scores = torch.einsum("thd,shd->hts", q, every) * scale
        self.weights[i] = scores.masked_fill(hidden, -math.inf).softmax(-1)
        return super()._attend(i, q, k, v, scale)


def spec_of(s: Switches) -> DrafterSpec:
    fields = {field.name for field in dataclasses.fields(DrafterSpec)}
    facts = {name: value for name, value in dataclasses.asdict(s).items() if name in fields}
    scale = reference.mla_scale(s) if s.attention == "mla" else None
    return DrafterSpec(**facts, softmax_scale=scale)


def ours_of(known: reference.Head) -> Head:
    """The reference's head as ours."""
    s, tensors = known.switches, dict(known.weights)
    if s.vocab_map:
        tensors["d2t"] = known.hot - torch.arange(s.draft_vocab_size)
    return Head(spec_of(s), tensors, known.embed, known.lm_head)


def pair(s: Switches) -> tuple[Head, reference.Head]:
    """The same head as ours and as the reference's."""
    known = head(s)
    return ours_of(known), known


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", CASES)
def test_states_and_weights_are_the_references(name: str) -> None:
    ours, known = pair(CASES[name])
    captured, ids = inputs(CASES[name])
    cache, rows = prefill(ours, captured[:PROMPT], ids[:PROMPT], list(range(PROMPT)))
    session = Watched(known)
    logits, feedback = session.prefill(captured[:PROMPT], ids[:PROMPT])
    for place, row in rows.items():
        assert_exact(row.logits, logits[place])
        assert_exact(row.feedback, feedback[place])
        assert_exact(row.g, known.fuse(captured)[place])
        for layer, weight in enumerate(row.weights):
            assert_exact(weight[0], session.weights[layer][:, place, : place + 1])
    state, token = feedback[-1], int(known.hot[logits[-1].argmax()])
    for step in draft(ours, cache, rows[PROMPT - 1], steps=4):
        assert int(step.ids) == token
        assert_exact(step.fed[0], state)
        out, state = session.step(token, state, PROMPT + step.depth - 1)
        assert_exact(step.out.logits[0], out)
        assert_exact(step.out.feedback[0], state)
        for layer, weight in enumerate(step.out.weights):
            assert_exact(weight[0], session.weights[layer][:, 0])
        token = int(known.hot[out.argmax()])
    assert len(cache.positions) == PROMPT


WRONG: dict[str, Any] = {"residual": "post", "feedback": "post", "logits": "raw", "hidden_act": "gelu_pytorch_tanh"}
WRONG |= {"rms_norm_eps": 1e-5, "rope_theta": 10_100.0, "softmax_scale": 0.36, "sliding_window": 5, "double_norm": True}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", WRONG)
def test_one_wrong_switch_is_far_from_rounding(name: str) -> None:
    known, (captured, ids) = head(BASE), inputs(BASE)
    wrong = ours_of(known)
    wrong.spec = dataclasses.replace(wrong.spec, **{name: WRONG[name]})
    wrong.rope = Rope(wrong.spec)
    _, rows = prefill(wrong, captured, ids, [PROMPT])
    logits, feedback = Session(known).prefill(captured, ids)
    found = apart(rows[PROMPT].logits, logits[PROMPT]), apart(rows[PROMPT].feedback, feedback[PROMPT])
    assert max(found) > 1000 * EXACT


@pytest.mark.parametrize("name", CASES)
def test_one_pass_in_float32_is_off_by_its_sums(name: str) -> None:
    """As the probe runs; the longest sums are over [embedding; hidden]."""
    s = CASES[name]
    known, (captured, ids) = head(s), inputs(s)
    _, rows = prefill(ours_of(known), captured, ids, range(len(ids)))
    with in_float64():
        _, exact = prefill(ours_of(known), captured, ids, range(len(ids)))
    bound = network(s.num_layers, max(2 * H, captured.shape[1]))
    for place, row in rows.items():
        assert row.logits.dtype == torch.float32
        for field in ("g", "logits", "feedback"):
            assert apart(getattr(row, field).double(), getattr(exact[place], field)) < bound
        for found, expected in zip(row.weights, exact[place].weights, strict=True):
            assert apart(found.double(), expected) < bound


@pytest.mark.usefixtures("float64")
def test_a_prefill_in_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _ = pair(BASE)
    captured, ids = inputs(BASE)
    whole, rows = prefill(ours, captured, ids, [1, 5, 8])
    monkeypatch.setattr("sglang_eagle31.tools.drift.draft.CHUNK", 4)
    pieces, again = prefill(ours, captured, ids, [1, 5, 8])
    assert_exact(pieces.keys[0], whole.keys[0])
    for place, row in rows.items():
        assert_exact(again[place].logits, row.logits)
        assert_exact(again[place].weights[0], row.weights[0])


def branch(known: reference.Head, captured: Tensor, ids: Tensor, path: list[tuple[int, Tensor]]) -> Any:
    """The last row of a branch's slots: tokens and fed states of each step, one session of its own."""
    session = Watched(known)
    session.prefill(captured[:PROMPT], ids[:PROMPT])
    for depth, (token, state) in enumerate(path):
        out = session.step(token, state, PROMPT + depth)
    return *out, session.weights[0][:, 0]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ["plain", "mla", "feedback"])
def test_a_tree_is_what_its_branches_are_one_by_one(name: str) -> None:
    """Row t of a step attends to the earlier slots of branch t, whatever continues what."""
    s = dataclasses.replace(BASE, feedback="post") if name == "feedback" else CASES[name]
    ours, known = pair(s)
    captured, ids = inputs(s)
    cache, rows = prefill(ours, captured[:PROMPT], ids[:PROMPT], [PROMPT - 1])
    topk, paths = 3, [[] for _ in range(3)]  # type: ignore[var-annotated]
    handed, scores = rows[PROMPT - 1].feedback[None], torch.ones(1)
    logits, crossed = rows[PROMPT - 1].logits[None], 0
    for step in draft(ours, cache, rows[PROMPT - 1], 4, topk):
        found = [
            (float(scores[p] * chance), int(known.hot[i]), p)
            for p in range(len(scores))
            for i, chance in enumerate(logits[p].softmax(-1))
        ]
        best = sorted(found, key=lambda item: -item[0])[:topk]
        assert step.ids.tolist() == [token for _, token, _ in best]
        crossed += sum(parent != t for t, (_, _, parent) in enumerate(best) if step.depth > 1)
        for t, (_, token, parent) in enumerate(best):
            assert_exact(step.fed[t], handed[parent])
            paths[t].append((token, step.fed[t]))
            out, state, weight = branch(known, captured, ids, paths[t])
            assert_exact(step.out.logits[t], out)
            assert_exact(step.out.feedback[t], state)
            own = torch.tensor([*range(PROMPT), *(PROMPT + d * topk + t for d in range(step.depth))])
            assert_exact(step.out.weights[0][t][:, own], weight)
            assert step.out.visible[t].nonzero().flatten().tolist() == own.tolist()
        logits, handed, scores = step.out.logits, step.out.feedback, torch.tensor([score for score, _, _ in best])
    assert crossed > 0  # some branch continued another one


@pytest.mark.usefixtures("float64")
def test_the_record_holds_what_the_rows_measure() -> None:
    ours, known = pair(BASE)
    captured, ids = inputs(BASE)
    record = probe_states(ours, captured[:-1], ids.tolist(), 4, [5, 6], Settings(steps=2))
    sink = next(iter(record.sinks))
    assert record.sinks == {sink: 1} and record.rows(0) == 2 and record.rows(2) == 2 and record.steps == [1, 2]
    session = Watched(known)
    logits, feedback = session.prefill(captured[:-1], ids[1:])
    located = session.weights[0][:, attention.sink_rows(4), :3].mean((0, 1))
    assert sink == int(located.argmax())
    groups: dict[str, list[float]] = {"sink": [], "prompt": [], "answer": []}
    for length in (5, 6):
        weight = session.weights[0][:, length - 1, :length].mean(0)
        groups["sink"].append(float(weight[sink]))
        groups["prompt"].append(float(weight[:4].sum() - weight[sink]))
        groups["answer"].append(float(weight[4:].sum()))
    for name, masses in groups.items():
        assert record.mean(0, f"mass_{name}") == pytest.approx(sum(masses) / 2, abs=EXACT)
    fused = known.fuse(captured)[[4, 5]]
    assert record.mean(0, "rms_fed") == pytest.approx(float((fused.norm(dim=-1) / math.sqrt(H)).mean()), rel=EXACT)
    fed = feedback[[4, 5]]
    assert record.mean(1, "rms_fed") == pytest.approx(float((fed.norm(dim=-1) / math.sqrt(H)).mean()), rel=EXACT)
    assert record.mean(0, "rms_handed") == record.mean(1, "rms_fed")
    middle = captured[[4, 5], 20:40]
    assert record.mean(0, "rms_captured_4") == pytest.approx(float(middle.pow(2).mean(-1).sqrt().mean()), rel=EXACT)


def test_a_cache_is_not_written_by_what_drafts_from_it() -> None:
    cache = Cache(torch.arange(3), [torch.zeros(3, 1, 2)], [torch.zeros(3, 1, 2)])
    part = cache.first(2)
    part.keys[0] = torch.cat([part.keys[0], torch.ones(1, 1, 2)])
    assert len(cache.keys[0]) == 3 and len(part.keys[0]) == 3 and float(cache.keys[0].sum()) == 0.0


def test_tensors_that_are_not_the_specs_are_refused() -> None:
    ours, known = pair(BASE)
    with pytest.raises(ValueError, match=r"norm.weight.*fix:"):
        Head(ours.spec, {name: w for name, w in known.weights.items() if name != "norm.weight"})
