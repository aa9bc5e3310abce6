"""Send requests to a server and keep what it answered, token by token."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from sglang_eagle31.tools.shared.requests_file import CHAT, NATIVE, Request
from sglang_eagle31.tools.shared.same_answers.logprobs import NotTold
from sglang_eagle31.tools.shared.server_info import server_info

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Completion:
    """One answer; a request with ``n`` above 1 has several."""

    token_ids: tuple[int, ...]
    finish: str
    """Type of the finish reason, with what was matched."""
    text: str | None
    """None where the server gives none."""


@dataclass(frozen=True)
class Answer:
    """What a server made of one request."""

    sequences: tuple[Completion, ...] = ()
    prompt_ids: tuple[int, ...] | None = None
    """None where the answer does not tell."""
    verify_rounds: int = 0
    """Speculative steps that SGLang counts; 0 without speculation."""
    refused: str = ""
    """Status and message, if the server did not answer."""
    status: int = 200


@dataclass(frozen=True)
class Facts:
    """What a server says of itself."""

    url: str
    model: str | None
    algorithm: str | None
    """Of speculation; None without."""
    dtype: str | None
    """One of DTYPES; None where the server says ``auto``."""
    version: str | None
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Sampling parameters by route, which it takes where a request has none."""


def read_facts(url: str, flag: str) -> Facts:
    """Facts from ``/server_info``; raises ValueError where no SGLang server answers, naming ``flag``."""
    info = server_info(url, flag)
    algorithm = (info.get("eagle31") or {}).get("algorithm") or info.get("speculative_algorithm")
    dtype = str(info.get("dtype")).removeprefix("torch.")
    return Facts(
        url=url,
        model=info.get("model_path"),
        algorithm=None if str(algorithm or "NONE").upper() == "NONE" else str(algorithm),
        dtype={"half": "float16", "float": "float32"}.get(dtype, dtype if dtype in DTYPES else None),
        version=info.get("version"),
        defaults=_defaults(info),
    )


def _defaults(info: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The server's own for /generate; the model's for chats, of which only a penalty counts for a greedy request.

    A model that is not on this machine is taken to have none.
    """
    preferred = info.get("preferred_sampling_params") or {}
    native = json.loads(preferred) if isinstance(preferred, str) else preferred
    file = Path(str(info.get("model_path")), "generation_config.json")
    counts = info.get("sampling_defaults") == "model" and file.is_file()
    penalty = json.loads(file.read_text()).get("repetition_penalty") if counts else None
    return {NATIVE: native, CHAT: {} if penalty is None else {"repetition_penalty": penalty}}


def send(url: str, request: Request, timeout: float) -> Answer:
    """One request, refused or answered.

    Raises ValueError where the server is gone, takes longer than ``timeout`` seconds, or answers without token ids.
    """
    try:
        response = requests.post(f"{url}{request.route}", json=request.to_send(), timeout=timeout)
    except requests.RequestException as error:
        what = f"no answer in {timeout:.0f} s" if isinstance(error, requests.Timeout) else f"is gone ({error})"
        raise ValueError(
            f"{url}: {what}, at request {request.line}; fix: see the server's log, or raise --timeout"
        ) from error
    if not response.ok:
        return Answer(refused=f"{response.status_code}: {response.text[:300]}", status=response.status_code)
    try:
        return _chat(response.json()) if request.route == CHAT else _native(response.json())
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{url}: the answer to request {request.line} holds no token ids ({error!r}): {response.text[:200]!r}; "
            "fix: SGLang 0.5.23 or later answers /generate with output_ids and chats with return_token_ids"
        ) from error


def send_all(
    url: str, found: Sequence[Request], concurrency: int, timeout: float, advance: Callable[[], object]
) -> list[Answer]:
    """All requests in order, ``concurrency`` at a time; ``advance`` is called after each. Raises as `send` does."""

    def one(request: Request) -> Answer:
        answer = send(url, request, timeout)
        advance()
        return answer

    with ThreadPoolExecutor(concurrency) as pool:
        futures = [pool.submit(one, request) for request in found]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def prompt_ids(url: str, request: Request, answer: Answer, timeout: float) -> tuple[int, ...]:
    """The prompt's token ids: from the request, from the answer, or asked of the server.

    Raises NotTold where it does not tell them, requests.RequestException where it is gone.
    """
    if answer.prompt_ids is not None:
        return answer.prompt_ids
    if "input_ids" in request.body:
        return tuple(request.body["input_ids"])
    body = {
        "text": request.body["text"],
        "sampling_params": {"temperature": 0, "max_new_tokens": 1},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    response = requests.post(f"{url}{NATIVE}", json=body, timeout=timeout)
    try:
        response.raise_for_status()
        return tuple(token for _, token, _ in response.json()["meta_info"]["input_token_logprobs"])
    except (requests.HTTPError, KeyError, TypeError, ValueError) as error:
        raise NotTold(
            f"{url}: does not tell the prompt's tokens ({error!r}); fix: input_ids instead of text"
        ) from error


def _native(reply: Any) -> Answer:
    replies = reply if isinstance(reply, list) else [reply]
    found = [
        Completion(tuple(one["output_ids"]), _finish(one["meta_info"].get("finish_reason")), one.get("text"))
        for one in replies
    ]
    return Answer(tuple(found), verify_rounds=sum(one["meta_info"].get("spec_verify_ct") or 0 for one in replies))


def _chat(reply: Mapping[str, Any]) -> Answer:
    found = [
        Completion(
            tuple(choice["response_token_ids"]),
            f"{choice.get('finish_reason')} {choice.get('matched_stop') or ''}".strip(),
            choice["message"].get("content"),
        )
        for choice in reply["choices"]
    ]
    details = (reply.get("sglext") or {}).get("spec_tokens_details") or {}
    return Answer(tuple(found), tuple(reply["choices"][0]["prompt_token_ids"]), details.get("spec_verify_ct") or 0)


def _finish(reason: Any) -> str:
    if not isinstance(reason, Mapping):
        return str(reason)
    return f"{reason.get('type')} {reason.get('matched') or ''}".strip()
