"""Greedy answers to token ids, with SGLang's count of accepted drafts per verify round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import requests

from sglang_eagle31.server.guard.asks import PIN
from sglang_eagle31.tools.shared.acceptance import loops
from sglang_eagle31.tools.shared.prompts import Case

TIMEOUT = 1800.0
"""Seconds one request may take; prefill of a long context on a CPU takes minutes."""


@dataclass(frozen=True)
class Reply:
    """The answer to one case."""

    case: Case
    token_ids: tuple[int, ...]
    histogram: tuple[int, ...]
    """Index a: verify rounds that accepted exactly a drafted tokens, the bonus token not counted. On a tree that is
    the depth of the accepted path."""
    verify_rounds: int
    """By SGLang's own count; the round in which the answer ends is in both."""
    finish: str

    @property
    def looping(self) -> bool:
        """Whether it repeats itself; such answers are easy to draft and inflate acceptance."""
        return loops(self.token_ids)


def ask(url: str, case: Case, max_tokens: int, shape: str | None = None) -> Reply:
    """One greedy answer through ``/generate``, drafted in ``shape`` whatever the server's guard would choose.

    Raises ValueError if the server refuses the request or reports no speculation, requests.ConnectionError if it is
    gone.
    """
    params: dict[str, Any] = {"temperature": 0, "max_new_tokens": max_tokens}
    if shape is not None:
        params["custom_params"] = {PIN: shape}
    body = {"input_ids": list(case.ids), "sampling_params": params}
    response = requests.post(f"{url}/generate", json=body, timeout=TIMEOUT)
    if not response.ok:
        raise ValueError(
            f"{url}: {case.condition}, prompt {case.prompt} of {len(case.ids)} tokens was refused with status "
            f"{response.status_code}: {response.text[:300]}; fix: see the server's log; --model must be its own"
        )
    return reply_of(url, case, response.json())


def reply_of(url: str, case: Case, answer: dict[str, Any]) -> Reply:
    """SGLang's answer to one request as a `Reply`; raises ValueError if it holds no count of accepted drafts."""
    meta = answer["meta_info"]
    tokens = tuple(answer.get("output_ids") or ())
    if "spec_verify_ct" not in meta and len(tokens) > 1:
        raise ValueError(
            f"{url}: the answer has {len(tokens)} tokens and no spec_verify_ct: it was made without speculation; "
            "fix: SGLang 0.5.23 or later, with a --speculative-algorithm that drafts"
        )
    histogram = tuple(meta.get("spec_correct_drafts_histogram") or ())
    reason = meta.get("finish_reason") or {}
    return Reply(case, tokens, histogram, int(meta.get("spec_verify_ct", 0)), str(reason.get("type", "")))


def ask_all(
    url: str,
    cases: Sequence[Case],
    max_tokens: int,
    concurrency: int,
    advance: Callable[[], object],
    shape: str | None = None,
) -> list[Reply]:
    """All cases in order, ``concurrency`` at a time; ``advance`` is called after each answer."""

    def one(case: Case) -> Reply:
        reply = ask(url, case, max_tokens, shape)
        advance()
        return reply

    with ThreadPoolExecutor(concurrency) as pool:
        futures = [pool.submit(one, case) for case in cases]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
