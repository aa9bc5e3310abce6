"""Answers of SGLang's routes, streamed or not, without what differs between any two runs (ids, times, counters)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import requests

Body = dict[str, Any]
LOGPROBS = ("input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs")
LOGPROBS += tuple(name.replace("input", "output") for name in LOGPROBS)


def message(response: requests.Response) -> str:
    """What a refusal says."""
    try:
        body = response.json()
    except requests.JSONDecodeError:
        return response.text[:300]
    error = body.get("error", body)
    return str(error.get("message", error) if isinstance(error, dict) else error)[:300]


def read(route: str, asked: Body, response: requests.Response, meta: list[Body]) -> Any:
    """The answer; SGLang's facts are added to ``meta``."""
    if asked.get("stream"):
        events = list(_events(response))
        if any("error" in event for event in events):
            return {"refused": 200, "message": str(next(event["error"] for event in events if "error" in event))}
        return _streamed(events, meta) if route == "/generate" else _streamed_choices(events)
    body = response.json()
    if route == "/generate":
        answers = [_generated(answer, meta) for answer in (body if isinstance(body, list) else [body])]
        return answers if isinstance(body, list) else answers[0]
    usage = {key: body["usage"][key] for key in ("prompt_tokens", "completion_tokens")}
    return {"choices": [_choice(choice) for choice in body["choices"]], "usage": usage}


def _generated(answer: Body, meta: list[Body]) -> Body:
    facts = answer["meta_info"]
    meta.append(facts)
    said = {"ids": answer["output_ids"], "text": answer["text"], "finish": facts["finish_reason"]}
    said |= {name: facts[name] for name in ("prompt_tokens", "completion_tokens")}
    return said | {name: _rounded(facts[name]) for name in LOGPROBS if name in facts}


def _rounded(value: Any) -> Any:
    """Minus infinity and the lowest number are the same: no chance."""
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return max(value, -1e4) if isinstance(value, float) else value


def _choice(choice: Body) -> Body:
    said = choice.get("message") or {"text": choice["text"]}
    calls = [call["function"] for call in said.get("tool_calls") or []]
    said = {key: said[key] for key in ("content", "reasoning_content", "text") if said.get(key)}
    return {**said, "calls": calls, "finish": choice["finish_reason"], "logprobs": choice.get("logprobs")}


def _events(response: requests.Response) -> Iterator[Body]:
    for line in response.iter_lines():
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


def _streamed(events: list[Body], meta: list[Body]) -> Body:
    """The last state of a stream, each of whose states must begin the next."""
    for before, after in zip(events, events[1:], strict=False):
        assert after["text"].startswith(before["text"]), (before["text"], after["text"])
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
    return _generated(events[-1], meta)


def _streamed_choices(events: list[Body]) -> Body:
    """The pieces of each choice in one; what was sent of a call's arguments is the beginning of JSON, or JSON."""
    choices: dict[int, Body] = {}
    for event in events:
        for piece in event.get("choices", ()):
            whole = choices.setdefault(piece["index"], {"calls": {}, "finish": None})
            _add(whole, piece.get("delta") or {"text": piece.get("text")})
            whole["finish"] = piece.get("finish_reason") or whole["finish"]
    return {"choices": [{**choices[i], "calls": list(choices[i]["calls"].values())} for i in sorted(choices)]}


def _add(whole: Body, delta: Body) -> None:
    for key in ("content", "reasoning_content", "text"):
        if delta.get(key):
            whole[key] = whole.get(key, "") + delta[key]
    for call in delta.get("tool_calls") or ():
        parts = whole["calls"].setdefault(call["index"], {"name": "", "arguments": ""})
        for key in parts:
            parts[key] += call["function"].get(key) or ""
