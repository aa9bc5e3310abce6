"""Greedy output with speculation equals greedy output without, token for token, in float32."""

from __future__ import annotations

import json
from typing import Any

import pytest
import requests
from conftest import Models, Plain, ask_everything, generate, prompt, speculate
from selection import core

TREES = {"chain": (3, 1, 4), "topk2": (4, 2, 8), "topk4": (5, 4, 16), "topk8": (3, 8, 24)}


@pytest.fixture(scope="module", params=core(TREES, ["chain", "topk4"]))
def served(request: pytest.FixtureRequest, start: Any, tiny: Models) -> Any:
    """A server with EAGLE31 for each tree, one after the other; one of them starts as users start it."""
    flags = speculate("EAGLE31", tiny.eagle31, *TREES[request.param])
    with start(request.param, *flags, command_line=request.param == "topk4") as server:
        yield request.param, server, ask_everything(server)


def test_same_tokens_and_a_head_that_lives(served: Any, plain: Plain) -> None:
    _, _, answers = served
    assert answers.ids == plain.answers.ids
    assert answers.accept_length() > 1.5


def test_shared_prefix_hits_the_radix_cache(served: Any) -> None:
    _, _, answers = served
    repeated = answers.meta[25:29]  # the second batch over the 300-token prefix
    assert all(meta["cached_tokens"] >= 256 for meta in repeated), [meta["cached_tokens"] for meta in repeated]


def test_streaming_gives_the_same_tokens(served: Any, plain: Plain) -> None:
    _, server, _ = served
    sampling = {"temperature": 0, "max_new_tokens": 48, "ignore_eos": True}
    body = {"input_ids": prompt(17, 1), "sampling_params": sampling, "stream": True}
    seen: list[int] = []
    with requests.post(f"{server.url}/generate", json=body, stream=True, timeout=120) as response:
        for line in response.iter_lines():
            if line.startswith(b"data: {"):
                seen = json.loads(line[6:])["output_ids"]
    assert seen == plain.answers.ids[0]


def test_server_says_what_it_runs(served: Any, tiny: Models) -> None:
    name, server, _ = served
    steps, topk, tokens = TREES[name]
    facts = requests.get(f"{server.url}/server_info", timeout=60).json()["eagle31"]
    assert facts["variant"] == "EAGLE 3.1"
    assert facts["captured_boundaries"] == [2, 4, 5]
    assert facts["head"] == str(tiny.eagle31.resolve())
    assert facts["tree"] == {"num_steps": steps, "eagle_topk": topk, "num_draft_tokens": tokens}
    log = server.log_path.read_text()
    assert f"EAGLE31: EAGLE 3.1 head {tiny.eagle31.resolve()}" in log
    assert "vocabulary 384 of 512" in log


def test_second_request_needs_no_compiler(served: Any) -> None:
    _, server, _ = served
    assert len(generate(server, [prompt(10, 3)], 4)[0]["output_ids"]) == 4  # CC and CXX do not exist for this server
