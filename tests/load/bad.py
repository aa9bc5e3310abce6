"""Requests that are wrong or at the edge of what is allowed; a server without speculation says what is due to each."""

from __future__ import annotations

import json
from typing import Any

HUGE = 10**9
LONG = 100_000
"""Bytes of a string far longer than the context."""
GENERATE = "/generate"


def _generate(text: Any = "ab cd", more: dict[str, Any] | None = None, **sampling: Any) -> tuple[str, bytes]:
    """A ``/generate`` body; ``more`` are its other fields, None leaves one out."""
    fields = {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": 6, **sampling}, **(more or {})}
    return GENERATE, json.dumps({key: value for key, value in fields.items() if value is not None}).encode()


def _raw(body: bytes, path: str = GENERATE) -> tuple[str, bytes]:
    return path, body


def _chat(**fields: Any) -> tuple[str, bytes]:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "ab"}],
        "max_tokens": 6,
        "temperature": 0,
        **fields,
    }
    return "/v1/chat/completions", json.dumps(body).encode()


def _completion(**fields: Any) -> tuple[str, bytes]:
    return "/v1/completions", json.dumps(
        {"model": "tiny", "prompt": "ab", "max_tokens": 6, "temperature": 0, **fields}
    ).encode()


MALFORMED: dict[str, tuple[str, bytes]] = {
    "half a body": _raw(b'{"text": "ab", '),
    "no body": _raw(b""),
    "a list": _raw(b"[]"),
    "null": _raw(b"null"),
    "not JSON": _raw(b"hello"),
    "not UTF-8": _raw(b'{"text": "\xff\xfe\xc3"}'),
    "NaN": _raw(b'{"text": "ab", "sampling_params": {"temperature": NaN}}'),
    "infinity": _raw(b'{"text": "ab", "sampling_params": {"temperature": 1e999}}'),
    "deep": _raw(b'{"text": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"),
    "half a chat": _raw(b'{"messages": [', "/v1/chat/completions"),
    "no such path": _raw(b"{}", "/v1/nothing"),
}
TYPES: dict[str, tuple[str, bytes]] = {
    "text a number": _generate(5),
    "text a dict": _generate({"a": 1}),
    "nothing to read": _generate(None),
    "text and ids": _generate("ab", {"input_ids": [5, 6]}),
    "no tokens": _generate(None, {"input_ids": []}),
    "ids a string": _generate(None, {"input_ids": "abc"}),
    "ids mixed": _generate(None, {"input_ids": [[5], "a"]}),
    "ids fractions": _generate(None, {"input_ids": [1.5, 2.5]}),
    "sampling a list": _raw(b'{"text": "ab", "sampling_params": ["temperature"]}'),
    "sampling unknown": _generate(no_such_parameter=1),
    "tokens a word": _generate(max_new_tokens="ten"),
    "temperature a word": _generate(temperature="hot"),
    "stop a number": _generate(stop=7),
    "stop ids words": _generate(stop_token_ids=["x"]),
    "regex a number": _generate(regex=5),
    "bias of a word": _generate(logit_bias={"a": 1.0}),
    "stream a word": _generate("ab", {"stream": "perhaps"}),
    "logprobs a word": _generate("ab", {"return_logprob": "maybe"}),
    "top logprobs a word": _generate("ab", {"return_logprob": True, "top_logprobs_num": "many"}),
    "rid a number": _generate("ab", {"rid": 5}),
    "priority a word": _generate("ab", {"priority": "high"}),
    "messages a word": _chat(messages="hello"),
    "role unknown": _chat(messages=[{"role": "wizard", "content": "ab"}]),
    "content a number": _chat(messages=[{"role": "user", "content": 5}]),
    "tools a word": _chat(tools="hammer"),
    "format unknown": _chat(response_format={"type": "poem"}),
    "prompt a number": _completion(prompt=5),
    "prompt a dict": _completion(prompt={"a": 1}),
    "embedding": ("/v1/embeddings", b'{"model": "tiny", "input": "ab"}'),
}
RANGES: dict[str, tuple[str, bytes]] = {
    "tokens below zero": _generate(max_new_tokens=-1),
    "1e9 tokens, a fraction": _generate(max_new_tokens=1e9 + 0.5),
    "1e30 tokens": _generate(max_new_tokens=10**30),
    "1e9 at least": _generate(min_new_tokens=HUGE),
    "temperature below zero": _generate(temperature=-1),
    "top p 2": _generate(top_p=2),
    "top k -5": _generate(top_k=-5),
    "min p 3": _generate(min_p=3),
    "frequency 99": _generate(frequency_penalty=99),
    "repetition 0": _generate(repetition_penalty=0),
    "n 0": _generate(n=0),
    "n -1": _generate(n=-1),
    "bias beyond the vocabulary": _generate(logit_bias={"9999999": 1.0}),
    "seed 1e30": _generate(temperature=0, sampling_seed=10**30),
    "id 1e30": _generate(None, {"input_ids": [5, 10**30]}),
    "logprobs from 1e9": _generate("ab", {"return_logprob": True, "logprob_start_len": HUGE}),
    "completion tokens -1": _completion(max_tokens=-1),
    "chat tokens 1e30": _chat(max_tokens=10**30),
    "chat top p 7": _chat(top_p=7),
}
GRAMMARS: dict[str, tuple[str, bytes]] = {
    "regex open": _generate(regex="((("),
    "regex range": _generate(regex="[z-a]"),
    "regex repeat": _generate(regex="a{5,2}"),
    "regex class": _generate(regex="\\p{Nothing}"),
    "stop regex open": _generate(stop_regex="((("),
    "schema not JSON": _generate(json_schema="{not json"),
    "schema type": _generate(json_schema='{"type": "nonsense"}'),
    "ebnf": _generate(ebnf="root ::= "),
    "structural tag": _generate(structural_tag="{}"),
    "two grammars": _generate(regex="a+", json_schema="{}"),
}
UNICODE: dict[str, tuple[str, bytes]] = {
    "lone surrogate": _generate("ab\ud800cd"),
    "lone surrogate, low": _generate("\udc00"),
    "surrogates swapped": _generate("\udc00\ud800"),
    "surrogate in stop": _generate(stop=["\ud800"]),
    "surrogate in regex": _generate(regex="\ud800+"),
    "surrogate in rid": _generate("ab", {"rid": "\ud800"}),
    "surrogate in a chat": _chat(messages=[{"role": "user", "content": "\ud83d"}]),
    "NUL": _generate("ab\0cd"),
    "NUL in stop": _generate(stop=["\0"]),
    "emoji": _generate("\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea"),
    "right to left": _generate("\u202e\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627"),
    "combining": _generate("e\u0301" + "\u0300" * 40),
    "byte order mark": _generate("\ufeffab\uffff"),
    "100 kB prompt": _generate("ab" * (LONG // 2)),
    "100 kB of emoji": _generate("\U0001f600" * (LONG // 4)),
    "100 kB stop": _generate(stop=["q" * LONG]),
    "100 kB regex": _generate(regex="a" * LONG),
    "100 kB stop regex": _generate(stop_regex="a" * LONG),
    "100 kB bias": _generate(logit_bias={str(3 + index % 500): 0.0 for index in range(LONG // 10)}),
    "100 kB chat": _chat(messages=[{"role": "user", "content": "ab" * (LONG // 2)}]),
}
BAD: dict[str, tuple[str, bytes]] = {
    f"{group}: {name}": body
    for group, bodies in (
        ("malformed", MALFORMED),
        ("type", TYPES),
        ("range", RANGES),
        ("grammar", GRAMMARS),
        ("unicode", UNICODE),
    )
    for name, body in bodies.items()
}
"""Path and body by ``group: name``."""
DEADLY: dict[str, tuple[str, bytes]] = {
    "no text": _generate(""),
    "id beyond the vocabulary": _generate(None, {"input_ids": [5, HUGE]}),
    "id below zero": _generate(None, {"input_ids": [5, -7]}),
}
"""SGLang 0.5.23 lets these through to its scheduler, which they end, on a CPU with and without speculation.

The first only if the tokenizer adds no token of its own to an empty text.
"""
