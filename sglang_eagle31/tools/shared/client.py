"""Requests to a server: timed chat answers through the OpenAI route."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

REQUEST_TIMEOUT = 600.0
"""Seconds one request may take."""


Messages = list[dict[str, str]]
"""A chat: ``role`` and ``content`` of each message."""


@dataclass(frozen=True)
class Answer:
    """One greedy answer. Token ids include the end-of-turn token if the model produced it."""

    prompt: str
    """The last message."""
    text: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    seconds: float
    finish_reason: str
    verify_steps: int = 0
    """Target verify steps of the request; 0 without speculation."""
    accepted_histogram: tuple[int, ...] = ()
    """Index a holds how many verify steps accepted exactly a drafted tokens (the bonus token not counted)."""

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens by wall seconds of the request, prefill included."""
        return len(self.token_ids) / self.seconds


@dataclass(frozen=True)
class Run:
    """All answers of one server, in the order of the prompts."""

    answers: tuple[Answer, ...]
    seconds: float
    """Wall time from the first request to the last answer."""

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens of all prompts by the wall seconds of the whole run."""
        return sum(len(answer.token_ids) for answer in self.answers) / self.seconds


def load_prompts(path: Path, limit: int | None = None) -> list[Messages]:
    """Chats from a JSON-lines file with ``messages`` (each with ``role`` and ``content``) in every line.

    Raises ValueError when ``limit`` exceeds what the file holds.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    prompts: list[Messages] = [json.loads(line)["messages"] for line in lines if line.strip()]
    if limit is not None and not 1 <= limit <= len(prompts):
        raise ValueError(f"--prompts {limit}: {path.name} holds {len(prompts)} prompts; ask for 1 to {len(prompts)}")
    return prompts[:limit]


def chat(url: str, messages: Messages, max_tokens: int) -> Answer:
    """One greedy answer through ``/v1/chat/completions``; raises requests.HTTPError on any status but 2xx."""
    body = {
        "model": "default",
        "messages": messages,
        "temperature": 0,
        "repetition_penalty": 1.0,  # else SGLang takes the one of the model's generation_config.json
        "max_tokens": max_tokens,
        "return_token_ids": True,
        "return_spec_tokens_details": True,
    }
    start = time.perf_counter()
    reply = _post(url + "/v1/chat/completions", body)
    seconds = time.perf_counter() - start
    choice = reply["choices"][0]
    details = (reply.get("sglext") or {}).get("spec_tokens_details") or {}
    return Answer(
        prompt=messages[-1]["content"],
        text=choice["message"]["content"],
        prompt_ids=tuple(choice["prompt_token_ids"]),
        token_ids=tuple(choice["response_token_ids"]),
        seconds=seconds,
        finish_reason=choice["finish_reason"],
        verify_steps=details.get("spec_verify_ct", 0),
        accepted_histogram=tuple(details.get("spec_correct_drafts_histogram", ())),
    )


def chat_all(
    url: str, prompts: Sequence[Messages], max_tokens: int, concurrency: int, advance: Callable[[], object]
) -> Run:
    """All prompts, ``concurrency`` at a time, after one answer that warms the server up and is not counted.

    ``advance`` is called after each counted answer.
    """
    chat(url, [{"role": "user", "content": "Name one colour."}], min(max_tokens, 16))

    def ask(messages: Messages) -> Answer:
        answer = chat(url, messages, max_tokens)
        advance()
        return answer

    start = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as pool:
        answers = tuple(pool.map(ask, prompts))
    return Run(answers, time.perf_counter() - start)


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    response = requests.post(url, json=body, timeout=REQUEST_TIMEOUT)
    if not response.ok:
        raise requests.HTTPError(f"{url}: status {response.status_code}: {response.text[:500]}", response=response)
    reply: dict[str, Any] = response.json()
    return reply
