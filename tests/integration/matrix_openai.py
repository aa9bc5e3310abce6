"""Rows of the OpenAI routes, streamed and not: text, tool calls, reasoning. What is streamed adds up to the answer."""

from __future__ import annotations

import json
from typing import Any

from matrix_case import Ask, Case
from matrix_grammar import briefly
from matrix_model import Folders
from matrix_sampling import processors

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
QUESTIONS = ("What is the first of the works?", "List the terms, please.", "In Rome, and then?")
CITY = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Oslo", "Porto"]},
        "days": {"enum": [1, 2, 3]},
        "dry": {"type": "boolean"},
    },
    "required": ["city", "days", "dry"],
    "additionalProperties": False,
}
CALL = r'<tool_call>\n\{"name": "weather", "arguments": \{"city": "(Rome|Oslo)", "days": [1-9]{1,3}\}\}\n</tool_call>'


def tools(strict: bool = False) -> list[dict[str, Any]]:
    """Two functions."""
    names = ("weather", "flights")
    return [{"type": "function", "function": {"name": n, "parameters": CITY, "strict": strict}} for n in names]


def chat(question: str, **more: Any) -> Ask:
    """A greedy chat that does not think, unless told otherwise."""
    body = {"model": "default", "messages": [{"role": "user", "content": question}], "temperature": 0}
    body |= {"max_tokens": 60, "chat_template_kwargs": {"enable_thinking": False}, **more}
    return Ask(body, CHAT)


def both(**more: Any) -> list[Ask]:
    """Every question as one answer and as a stream."""
    return [chat(question, stream=stream, **more) for stream in (False, True) for question in QUESTIONS]


def _completions(folders: Folders) -> list[Ask]:
    given: list[dict[str, Any]] = [
        {},
        {"n": 2},
        {"stop": [folders.text[17:21]]},
        {"stream": True},
        {"echo": True, "logprobs": 2},
    ]
    body = {"model": "default", "prompt": "The first of the works is", "temperature": 0, "max_tokens": 40}
    return [Ask({**body, **more}, COMPLETION) for more in given]


def _chats(folders: Folders) -> list[Ask]:
    return [
        *both(),
        *both(frequency_penalty=1.2, logit_bias={"90": 5.0}),
        chat(QUESTIONS[0], logprobs=True, top_logprobs=3),
    ]


def _response_format(folders: Folders) -> list[Ask]:
    schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    return both(response_format=schema, max_tokens=120)


def _required(folders: Folders) -> list[Ask]:
    return both(tools=tools(strict=True), tool_choice="required", max_tokens=150, logit_bias=briefly(folders.target))


def _named(folders: Folders) -> list[Ask]:
    choice = {"type": "function", "function": {"name": "flights"}}
    bias = briefly(folders.target)
    return both(tools=tools(strict=True), tool_choice=choice, max_tokens=150, logit_bias=bias)


def _parsed(folders: Folders) -> list[Ask]:
    """The model writes the format of its own accord, as far as a regex is that: one call, two, and text before."""
    forms = (CALL, f"{CALL}\n{CALL}", f"[A-C]{{3,9}} {CALL}", "[a-h ]{20}")
    return [ask for form in forms for ask in both(tools=tools(), regex=form, max_tokens=200)]


def _strict(folders: Folders) -> list[Ask]:
    """A tool that may be called and must be called as its schema says; a bias lets the call begin."""
    bias = {"5": 30.0, **briefly(folders.target)}
    return both(tools=tools(strict=True), tool_choice="auto", logit_bias=bias, max_tokens=150)


def _thinking(**more: Any) -> list[Ask]:
    """The target thinks until the budget ends it, and then answers."""
    return both(
        chat_template_kwargs={"enable_thinking": True},
        custom_logit_processor=processors()["budget"],
        custom_params={"thinking_budget": 13},
        logit_bias={"3": 30.0},
        **more,
    )


def _reasoned(folders: Folders) -> list[Ask]:
    return [*_thinking(), *_thinking(separate_reasoning=False)]


def _reasoned_schema(folders: Folders) -> list[Ask]:
    schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    return _thinking(response_format=schema, max_tokens=150)


def _calls(answers: Any) -> list[Any]:
    return [call for answer in answers for choice in answer["choices"] for call in choice["calls"]]


def _called(answers: Any) -> bool:
    return len(_calls(answers)) >= 6 and all(json.loads(call["arguments"])["city"] for call in _calls(answers))


def _streams_add_up(answers: Any) -> bool:
    """Of `both`: each stream is the answer in pieces."""
    return all(
        {k: v for k, v in one["choices"][0].items() if k != "logprobs"} == streamed["choices"][0]
        for at in range(0, len(answers) - 5, 6)
        for one, streamed in zip(answers[at : at + 3], answers[at + 3 : at + 6], strict=True)
    )


def _and_called(answers: Any) -> bool:
    """Something was called, and a stream calls what the answer in one piece calls."""
    halves = [answers[at + part : at + part + 3] for at in range(0, len(answers) - 5, 6) for part in (0, 3)]
    return _called(answers) and all(
        _calls(one) == _calls(two) for one, two in zip(halves[::2], halves[1::2], strict=True)
    )


def _thought(answers: Any) -> bool:
    return any(answer["choices"][0].get("reasoning_content") for answer in answers)


CASES = (
    Case(
        "OpenAI completions",
        "plain, two answers, a stop, streamed, with the prompt and log probabilities",
        "default",
        _completions,
    ),
    Case(
        "OpenAI chat",
        "plain, penalised, with log probabilities; streamed and not",
        "default",
        _chats,
        holds=_streams_add_up,
    ),
    Case("OpenAI chat", "`response_format` with a JSON schema; streamed and not", "default", _response_format),
    Case("Tool calls", "`tool_choice` required; streamed and not", "default", _required, holds=_and_called),
    Case("Tool calls", "a named function; streamed and not", "default", _named, holds=_calls, long=True),
    Case(
        "Tool calls",
        "found by the parser: one, two, after text, none; streamed and not",
        "default",
        _parsed,
        holds=_and_called,
    ),
    Case("Tool calls", "strict tools, by structural tags; streamed and not", "default", _strict, long=True),
    Case(
        "Reasoning",
        "separated and not, ended by a thinking budget; streamed and not",
        "default",
        _reasoned,
        holds=_thought,
    ),
    Case(
        "Reasoning", "before an answer by a JSON schema; streamed and not", "default", _reasoned_schema, holds=_thought
    ),
)
