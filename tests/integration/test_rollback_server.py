"""A server whose KV pool is too small for its load: requests are sent back and aborted, and nothing of them stays."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
from conftest import COMMON, Models, generate, prompt, speculate

from sglang_eagle31.tools.shared.server_process import Server

POOL = 480
SMALL = [*COMMON[: COMMON.index("--max-total-tokens")], "--max-total-tokens", str(POOL)]
SMALL += [*COMMON[COMMON.index("--max-total-tokens") + 2 :], "--schedule-conservativeness", "0.05"]
TOKENS = 90
PROMPTS = [prompt(40, 1)[: 10 + 5 * (i % 7)] + prompt(30, 100 + i) for i in range(9)]
ABORTED = (3, 8)
ESTIMATE = {"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "8"}
"""The scheduler expects so few new tokens of a request that it admits more of them than fit."""


def flush(server: Server) -> None:
    """Empty the prefix cache; SGLang refuses unless it holds no request any more."""
    answer = requests.post(f"{server.url}/flush_cache", params={"timeout": 30}, timeout=60)
    assert answer.status_code == 200, answer.text


def used(server: Server) -> int:
    """Tokens of the pool that neither are free nor could be evicted from the cache."""
    load = requests.get(f"{server.url}/v1/loads", timeout=60).json()["loads"][0]
    assert load["max_total_num_tokens"] == POOL
    return int(load["num_used_tokens"])


def ask(server: Server, number: int) -> dict[str, Any]:
    """One of the prompts under an id of its own; those that are aborted would take four times as long."""
    tokens = TOKENS * 4 if number in ABORTED else TOKENS
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    body = {"input_ids": PROMPTS[number], "sampling_params": sampling, "rid": f"request-{number:03}"}
    answer: dict[str, Any] = requests.post(f"{server.url}/generate", json=body, timeout=240).json()
    return answer


@pytest.mark.full
def test_nothing_stays_of_what_was_sent_back_or_aborted(start: Any, tiny: Models) -> None:
    flags = speculate("EAGLE31", tiny.eagle31, 3, 2, 6)
    with start("rollback", *flags, common=SMALL, **ESTIMATE) as server:
        fresh = []
        for one in PROMPTS:
            flush(server)
            fresh.append(generate(server, [one], TOKENS)[0]["output_ids"])
        flush(server)

        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            answers = [pool.submit(ask, server, number) for number in range(len(PROMPTS))]
            deadline = time.monotonic() + 60
            while "Retract requests" not in server.log_path.read_text() and time.monotonic() < deadline:
                time.sleep(0.02)
            for number in ABORTED:
                requests.post(f"{server.url}/abort_request", json={"rid": f"request-{number:03}"}, timeout=60)
            got = [answer.result() for answer in answers]
        for number, (answer, expected) in enumerate(zip(got, fresh, strict=True)):
            reason, ids = answer["meta_info"]["finish_reason"]["type"], answer["output_ids"]
            assert reason == ("abort" if number in ABORTED else "length"), f"request {number} ended by {reason}"
            assert ids[:TOKENS] == expected[: len(ids)]
        assert "Retract requests" in server.log_path.read_text(), "the pool was large enough after all"

        again = [generate(server, [one], TOKENS)[0] for one in PROMPTS]
        assert [answer["output_ids"] for answer in again] == fresh
        assert any(answer["meta_info"]["cached_tokens"] for answer in again)
        assert used(server) == 0
        flush(server)
        assert "leak" not in server.log_path.read_text()
