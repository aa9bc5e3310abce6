"""Sampled tokens follow the target's distribution: EAGLE31 against a server without speculation, and stock EAGLE3."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import requests
import torch
from conftest import COMMON, Models, prompt, speculate
from scipy.stats import chi2_contingency
from selection import core

from sglang_eagle31.server.cpu.filters import keep_top_k, keep_top_p
from sglang_eagle31.tools.shared.server_process import Server

REQUESTS = 400
LIMIT = 1e-5
"""p-value below which two servers differ. The draws depend on how requests are batched, so they are not quite fixed."""
TOKENS = 4
RUNNING = ["64" if before == "--max-running-requests" else flag for before, flag in itertools.pairwise(["", *COMMON])]
PROMPT = prompt(1, 65) * 12
"""One token again and again: after it several tokens are likely at each of the first positions."""
SETTINGS: dict[str, dict[str, float]] = {
    "temperature": {"temperature": 3.0},
    "top-k": {"temperature": 4.0, "top_k": 6},
    "top-k and top-p": {"temperature": 4.0, "top_k": 12, "top_p": 0.6},
}
GREEDY = {"temperature": 0.0}
OFF = {"temperature": 3.75}
"""A negative control: a quarter hotter than the first setting."""


@dataclass(frozen=True)
class Drawn:
    """Answers of one server."""

    paths: dict[str, list[tuple[int, ...]]]
    accept_length: float


def draw(server: Server, asked: list[dict[str, float]]) -> list[dict[str, Any]]:
    """An answer of ``TOKENS`` tokens to the one prompt for each of the sampling parameters, in one batched request."""
    params = [{**one, "max_new_tokens": TOKENS, "ignore_eos": True} for one in asked]
    body = {"input_ids": [PROMPT] * len(asked), "sampling_params": params}
    response = requests.post(f"{server.url}/generate", json=body, timeout=200)
    response.raise_for_status()
    answers: list[dict[str, Any]] = response.json()
    return answers


def draw_all(server: Server, settings: dict[str, dict[str, float]]) -> Drawn:
    """Every setting and a few greedy requests, mixed in the same batches."""
    mixed = [name for _ in range(REQUESTS) for name in settings] + ["greedy"] * 30
    answers = draw(server, [GREEDY if name == "greedy" else settings[name] for name in mixed])
    paths: dict[str, list[tuple[int, ...]]] = {}
    for name, answer in zip(mixed, answers, strict=True):
        paths.setdefault(name, []).append(tuple(answer["output_ids"]))
    meta = [answer["meta_info"] for answer in answers]
    rounds = sum(one.get("spec_verify_ct", 0) for one in meta)
    return Drawn(paths, sum(one["completion_tokens"] - 1 for one in meta) / rounds if rounds else 1.0)


def same_law(first: Iterable[Any], second: Iterable[Any]) -> float:
    """p-value of a chi-square test that two samples have one distribution; rare values are one cell."""
    counts = Counter(first), Counter(second)
    often = [value for value in counts[0] | counts[1] if counts[0][value] + counts[1][value] >= 16]
    assert len(often) > 2, "too few outcomes to tell a distribution"
    table = [[count[value] for value in often] for count in counts]
    rest = [count.total() - sum(row) for count, row in zip(counts, table, strict=True)]
    if sum(rest) >= 16:
        table = [[*row, left] for row, left in zip(table, rest, strict=True)]
    return float(chi2_contingency(table).pvalue)


def p_values(one: list[tuple[int, ...]], other: list[tuple[int, ...]]) -> list[float]:
    """For the second, third and fourth token, which verification gives, and for all of the first three together."""
    alone = [same_law([path[at] for path in one], [path[at] for path in other]) for at in (1, 2, 3)]
    return [*alone, same_law([path[:3] for path in one], [path[:3] for path in other])]


@pytest.fixture(scope="module")
def plain(start: Any) -> Drawn:
    """A server without speculation."""
    with start("sampled-plain", common=RUNNING) as server:
        return draw_all(server, {**SETTINGS, "off": OFF})


@pytest.fixture(scope="module", params=core(["tree", "rejection"], ["tree"]))
def sampled(request: pytest.FixtureRequest, start: Any, tiny: Models) -> Drawn:
    """EAGLE31 with a tree, and with a chain verified by rejection sampling; the head has 384 of 512 tokens."""
    tree = request.param == "tree"
    flags = speculate("EAGLE31", tiny.eagle31, *((4, 2, 8) if tree else (3, 1, 4)))
    if not tree:
        flags.append("--speculative-use-rejection-sampling")
    with start(f"sampled-{request.param}", *flags, common=RUNNING) as server:
        return draw_all(server, SETTINGS)


@pytest.mark.parametrize("setting", SETTINGS)
def test_eagle31_has_the_law_of_no_speculation(sampled: Drawn, plain: Drawn, setting: str) -> None:
    found = p_values(sampled.paths[setting], plain.paths[setting])
    assert min(found) > LIMIT, found


def test_drafts_are_accepted(sampled: Drawn) -> None:
    assert sampled.accept_length > 1.15


def test_greedy_requests_between_sampled_ones_stay_greedy(sampled: Drawn, plain: Drawn) -> None:
    assert set(sampled.paths["greedy"]) == set(plain.paths["greedy"])
    assert len(set(plain.paths["greedy"])) == 1


def test_another_temperature_is_found(plain: Drawn) -> None:
    assert min(p_values(plain.paths["off"], plain.paths["temperature"])) < LIMIT


def test_stock_eagle3_commits_the_likeliest_tokens(start: Any, tiny: Models, plain: Drawn) -> None:
    """The same test fails there: after the first token every one is the target's likeliest."""
    with start("sampled-stock", *speculate("EAGLE3", tiny.eagle3, 4, 2, 8), common=RUNNING) as server:
        stock = draw_all(server, {"temperature": SETTINGS["temperature"]}).paths["temperature"]
    assert max(p_values(stock, plain.paths["temperature"])[1:]) < LIMIT
    after: dict[int, set[tuple[int, ...]]] = {}
    for path in stock:
        after.setdefault(path[0], set()).add(path[1:])
    assert {len(rest) for rest in after.values()} == {1}


@pytest.mark.parametrize("rejection", core([False, True], [False]))
def test_a_seed_gives_the_same_answer_in_any_batch(start: Any, tiny: Models, plain: Drawn, rejection: bool) -> None:
    """Seeds count with ``--enable-deterministic-inference``, and over many seeds the law is the target's."""
    flags = speculate("EAGLE31", tiny.eagle31, *((3, 1, 4) if rejection else (4, 2, 8)))
    flags += ["--enable-deterministic-inference", *(["--speculative-use-rejection-sampling"] * rejection)]
    setting = SETTINGS["temperature"]
    with start(f"sampled-seeds-{rejection}", *flags, common=RUNNING) as server:
        many = draw(server, [{**setting, "sampling_seed": seed} for seed in range(REQUESTS // 2)])
        again = [draw(server, [{**setting, "sampling_seed": seed}])[0] for seed in range(8)]
    paths = [tuple(answer["output_ids"]) for answer in many]
    assert [tuple(answer["output_ids"]) for answer in again] == paths[: len(again)]
    found = p_values(paths, plain.paths["temperature"])
    assert min(found) > LIMIT, found


def test_the_filters_are_those_of_sglang_s_sampler() -> None:
    """Weights after top-k and top-p, against the function that SGLang samples with on a CPU."""
    from sglang.srt.layers.sampler import top_k_top_p_min_p_sampling_from_probs_torch as sample

    generator = torch.Generator().manual_seed(0)
    rows = 64
    probs = (2 * torch.randn(rows, 3000, generator=generator)).softmax(-1)
    top_ks = torch.randint(1, 400, (rows,), generator=generator, dtype=torch.int32)
    top_ks[::4] = 1 << 30
    top_ps = torch.rand(rows, generator=generator).clamp_(0.05)
    top_ps[::5] = 1.0
    none, positions = torch.zeros(rows), torch.arange(rows)
    _, weights, ids, _ = sample(probs.clone(), top_ks, top_ps, none, False, None, positions, return_filtered_probs=True)
    theirs = torch.zeros_like(probs).scatter_(1, ids.long(), weights)
    ours = keep_top_p(keep_top_k(probs.clone(), top_ks), top_ps)
    differ = (ours != theirs) & (probs > 1e-7)  # at top_p 1 theirs leaves out what lies behind a rounded sum of 1
    assert not differ.any()
