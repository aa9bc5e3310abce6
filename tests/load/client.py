"""Send a request as a client that waits, goes away, gives up or aborts; what came back, and the tokens it holds."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from typing import Any

import requests

from load.traffic import Fate, Request

CONNECT = 60.0


@dataclass
class Answer:
    """What a client saw: ``ended`` is finished, aborted, cut (by the client), refused or lost (by the server)."""

    ended: str
    status: int | None = None
    bodies: list[Any] = field(default_factory=list)
    why: str = ""


@dataclass
class Said:
    """One choice of an answer: its text, token ids and log probabilities, why it ended, and what was counted."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    reason: Any = None
    logprobs: list[Any] = field(default_factory=list)
    counts: dict[str, Any] = field(default_factory=dict)


def send(url: str, request: Request, deadline: float) -> Answer:
    """The answer within ``deadline`` seconds; a server that is silent for longer has lost the request."""
    seconds = request.after if request.fate is Fate.TIMEOUT else deadline
    timer = threading.Timer(request.after, _abort, (url, request.rid, deadline))
    if request.fate is Fate.ABORT and not request.stream:
        timer.start()
    try:
        with requests.post(
            url + request.path,
            data=request.body,
            headers={"Content-Type": "application/json"},
            stream=request.stream,
            timeout=(CONNECT, seconds),
        ) as response:
            return _read(url, request, response, deadline)
    except requests.RequestException as error:
        silent = isinstance(error, requests.ReadTimeout) or "timed out" in str(error)
        return Answer("cut" if silent and request.fate is Fate.TIMEOUT else "lost", why=repr(error)[:300])
    finally:
        timer.cancel()


def _abort(url: str, rid: str, deadline: float) -> None:
    requests.post(f"{url}/abort_request", json={"rid": rid}, timeout=deadline)


def _read(url: str, request: Request, response: requests.Response, deadline: float) -> Answer:
    if response.status_code != 200 or "event-stream" not in response.headers.get("content-type", ""):
        try:
            bodies = [response.json()]
        except ValueError:
            bodies = [response.text]
        return _classified(Answer("finished", response.status_code, bodies))
    answer = Answer("lost", 200, why="the stream ended without [DONE]")
    for line in response.iter_lines():
        if line == b"data: [DONE]":
            answer.ended, answer.why = "finished", ""
            break
        if not line.startswith(b"data: "):
            continue
        answer.bodies.append(json.loads(line[6:]))
        if len(answer.bodies) == request.after and request.fate is Fate.DISCONNECT:
            return Answer("cut", 200, answer.bodies)
        if len(answer.bodies) == request.after and request.fate is Fate.ABORT:
            _abort(url, request.rid, deadline)
    return _classified(answer)


def _classified(answer: Answer) -> Answer:
    """``answer`` with how it ended: an error is a refusal, also one inside of a stream."""
    last = answer.bodies[-1] if answer.bodies else None
    inner = last.get("error") if isinstance(last, dict) else None
    if answer.ended == "lost":
        return answer
    if "abort" in reasons(answer):
        answer.ended = "aborted"
    elif answer.status != 200 or inner is not None:
        code = inner.get("code") if answer.status == 200 and isinstance(inner, dict) else answer.status
        answer.ended, answer.status, answer.why = "refused", code, json.dumps(last)[:300]
        if "abort" in answer.why.lower():
            answer.ended = "aborted"
    return answer


def reasons(answer: Answer) -> list[str]:
    """Why each choice ended, as a word."""
    found = [said.reason for said in said_of(answer)]
    return [str(reason["type"] if isinstance(reason, dict) else reason) for reason in found if reason]


def said_of(answer: Answer) -> list[Said]:
    """The choices of an answer of any of the endpoints, streamed or not."""
    choices: dict[int, Said] = {}
    for body in answer.bodies:
        for place, part in enumerate(body if isinstance(body, list) else [body]):
            if not isinstance(part, dict):
                continue
            if "meta_info" in part:
                _native(choices.setdefault(part.get("index", place), Said()), part)
            for choice in part.get("choices") or ():
                _openai(choices.setdefault(choice["index"], Said()), choice)
            if part.get("usage") and choices:
                usage = part["usage"]
                choices[min(choices)].counts = {key: usage[key] for key in ("prompt_tokens", "completion_tokens")}
    return [choices[index] for index in sorted(choices)]


def _native(said: Said, part: dict[str, Any]) -> None:
    """``/generate`` says everything again in each event."""
    meta = part["meta_info"]
    said.text, said.ids, said.reason = part.get("text", ""), part.get("output_ids") or [], meta.get("finish_reason")
    said.counts = {key: meta.get(key) for key in ("prompt_tokens", "completion_tokens")}
    said.logprobs = [meta.get(key) or [] for key in ("output_token_logprobs", "output_top_logprobs")]
    said.logprobs += [meta.get(key) or [] for key in ("input_token_logprobs",)]


def _openai(said: Said, choice: dict[str, Any]) -> None:
    """The OpenAI endpoints say only what is new."""
    message = choice.get("delta") or choice.get("message") or {}
    said.text += choice.get("text") or message.get("content") or ""
    said.reason = choice.get("finish_reason") or said.reason
    said.logprobs.append(choice.get("logprobs") or [])
