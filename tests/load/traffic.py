"""A seeded mix of requests: what production sends, what its clients break off, and what should never have been sent."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import Any

from load.bad import BAD, HUGE

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["ab", "cd", "ef"]}, "age": {"enum": [1, 22, 333]}, "ok": {"type": "boolean"}},
    "required": ["name", "age", "ok"],
    "additionalProperties": False,
}
REGEXES = ("(a[b-f]|c[d-h] )+z", "[0-9]{3}(-[0-9]{2}){4}", "(\u05e9|\U0001f600|x){6}")
EBNF = 'root ::= word (" " word){5}\nword ::= "ab" | "cd" | "e" [f-k]'
WORDS = (
    "ab",
    "fj",
    "qr ",
    "x\u0301",
    "\u05e9\u05dc\u05d5\u05dd ",
    "\U0001f600",
    "\U0001f469\u200d\U0001f467",
    "\0",
    "\n",
    "zz9",
)
CONTEXT = 768
"""Tokens of the served context. SGLang refuses what would not fit, 1e9 tokens among it."""
RESERVED = 20
"""Tokens of it that SGLang keeps for drafts, with any algorithm; without speculation they could be used."""
LONG = 400
"""Tokens of an answer that is broken off in time."""


class Fate(Enum):
    """What the client does: waits for the end, goes away mid-stream, aborts by id, gives up waiting."""

    FINISH = "finish"
    DISCONNECT = "disconnect"
    ABORT = "abort"
    TIMEOUT = "timeout"


@dataclass(frozen=True)
class Request:
    """A request; ``after`` is the events (of a stream) or seconds until its fate."""

    number: int
    kind: str
    path: str
    body: bytes
    rid: str = ""
    stream: bool = False
    fate: Fate = Fate.FINISH
    after: float = 0.0
    compared: bool = True


Kind = Callable[[random.Random], dict[str, Any]]


def _text(rng: random.Random, most: int = 24) -> str:
    return "".join(rng.choice(WORDS) for _ in range(rng.randint(1, most)))


def _ids(rng: random.Random, most: int = 60) -> list[int]:
    return [rng.randrange(3, 512) for _ in range(rng.randint(1, most))]


def _plain(rng: random.Random) -> dict[str, Any]:
    return {"input_ids": _ids(rng)}


def _with(**sampling: Callable[[random.Random], Any]) -> Kind:
    def make(rng: random.Random) -> dict[str, Any]:
        return {"text": _text(rng), "sampling": {name: draw(rng) for name, draw in sampling.items()}}

    return make


def _filling(rng: random.Random, length: int) -> dict[str, Any]:
    ids = [rng.randrange(3, 512) for _ in range(length)]
    return {"input_ids": ids, "sampling": {"max_new_tokens": CONTEXT - RESERVED - length, "ignore_eos": True}}


def _logprobs(rng: random.Random) -> dict[str, Any]:
    return {"input_ids": _ids(rng), "return_logprob": True, "top_logprobs_num": 3, "logprob_start_len": 0}


def _stops(rng: random.Random) -> list[str]:
    """Some that the target says often, so that two lie in one accepted run, and others that it does not say."""
    often = [*rng.sample("abcdg", 2), rng.choice("klmnop") + rng.choice("abcdef")]
    return [*rng.sample(often, 2), "q" * 50, "\U0001f680"]


GENERATE: dict[str, Kind] = {
    "ids": _plain,
    "text": _with(ignore_eos=lambda rng: rng.random() < 0.5),
    "one to three tokens": _with(max_new_tokens=lambda rng: rng.randint(1, 3)),
    "long prompt": lambda rng: {"input_ids": [rng.randrange(3, 512) for _ in range(rng.randint(280, 600))]},
    "to the end of the context": lambda rng: _filling(rng, rng.randint(680, 740)),
    "shared prefix": lambda rng: {"input_ids": [3 + index * 7 % 500 for index in range(120)] + _ids(rng, 8)},
    "stop strings": _with(stop=_stops),
    "stop kept": _with(stop=_stops, no_stop_trim=lambda rng: True),
    "stop regex": _with(stop_regex=lambda rng: rng.choice(["[a-d][c-k]", "[0-9]", "z+"])),
    "stop token ids": _with(stop_token_ids=lambda rng: rng.sample(range(3, 512), 40)),
    "min new tokens": _with(stop_token_ids=lambda rng: rng.sample(range(3, 512), 90), min_new_tokens=lambda rng: 12),
    "frequency penalty": _with(frequency_penalty=lambda rng: rng.uniform(-1, 2)),
    "presence penalty": _with(presence_penalty=lambda rng: rng.uniform(0.5, 2)),
    "repetition penalty": _with(repetition_penalty=lambda rng: rng.uniform(0.8, 1.8)),
    "logit bias": _with(logit_bias=lambda rng: {str(rng.randrange(3, 512)): rng.uniform(-5, 9) for _ in range(5)}),
    "regex": _with(regex=lambda rng: rng.choice(REGEXES)),
    "JSON schema": _with(json_schema=lambda rng: json.dumps(SCHEMA)),
    "EBNF": _with(ebnf=lambda rng: EBNF),
    "log probabilities": _logprobs,
    "n = 2": _with(n=lambda rng: 2),
    "1e9 tokens": _with(max_new_tokens=lambda rng: HUGE, stop_token_ids=lambda rng: rng.sample(range(3, 512), 8)),
    "sampled": _with(
        temperature=lambda rng: rng.uniform(0.3, 2), top_p=lambda rng: rng.uniform(0.5, 1), min_p=lambda rng: 0.05
    ),
}
BROKEN_OFF = ("ids", "text", "shared prefix", "long prompt", "stop strings", "frequency penalty", "regex", "sampled")
"""Kinds that clients also break off."""


def traffic(count: int, seed: int, without: Collection[str] = ()) -> list[Request]:
    """``count`` requests: of ten, five are waited for, three broken off and two bad; every kind comes in turn.

    Kinds in ``without`` are left out.
    """
    rng = random.Random(seed)
    kinds, bad, broken = (
        [kind for kind in (*GENERATE, "completion", "chat") if kind not in without],
        list(BAD),
        list(BROKEN_OFF),
    )
    for names in (kinds, bad, broken):
        rng.shuffle(names)
    requests: list[Request] = []
    for number in range(count):
        turn, place = number // 10, number % 10
        rid = f"load-{seed}-{number:05}"  # none begins another: SGLang aborts by prefix
        if place in (3, 7):
            kind = bad[(2 * turn + (place == 7)) % len(bad)]
            requests.append(Request(number, f"bad {kind}", *BAD[kind]))
        elif place in (1, 5, 8):
            fate = (Fate.DISCONNECT, Fate.ABORT, Fate.TIMEOUT)[(1, 5, 8).index(place)]
            requests.append(_broken_off(rng, number, rid, fate, broken[(3 * turn + place) % len(broken)]))
        else:
            kind = kinds[(5 * turn + (0, 2, 4, 6, 9).index(place)) % len(kinds)]
            requests.append(_waited_for(rng, number, rid, kind))
    rng.shuffle(requests)
    return requests


def _waited_for(rng: random.Random, number: int, rid: str, kind: str) -> Request:
    stream = rng.random() < 0.5
    if kind == "completion":
        body: dict[str, Any] = {"prompt": _text(rng), "stop": _stops(rng), "logprobs": rng.choice([None, 2])}
        path = "/v1/completions"
    elif kind == "chat":
        body = {"messages": [{"role": "user", "content": _text(rng)}], "presence_penalty": rng.choice([0, 1.5])}
        path = "/v1/chat/completions"
    else:
        body = _native(rng, rid, stream, kind)
        return Request(number, kind, "/generate", json.dumps(body).encode(), rid, stream, compared=kind != "sampled")
    body |= {"model": "tiny", "temperature": 0, "max_tokens": rng.randint(20, 50), "stream": stream, "rid": rid}
    body |= {"stream_options": {"include_usage": True}} if stream else {}
    return Request(number, kind, path, json.dumps(body).encode(), rid, stream)


def _broken_off(rng: random.Random, number: int, rid: str, fate: Fate, kind: str) -> Request:
    """Half of them would run for long."""
    stream = fate is Fate.DISCONNECT or (fate is Fate.ABORT and rng.random() < 0.5)
    body = _native(rng, rid, stream, kind)
    if rng.random() < 0.5 and kind != "long prompt":
        # With a grammar and ignore_eos, SGLang's server without speculation says one token after the grammar's end.
        body["sampling_params"] |= {"max_new_tokens": LONG, "ignore_eos": kind != "regex"}
    after = float(rng.randint(1, 6)) if stream else rng.uniform(0.05, 1.5)
    return Request(number, kind, "/generate", json.dumps(body).encode(), rid, stream, fate, after, kind != "sampled")


def _native(rng: random.Random, rid: str, stream: bool, kind: str) -> dict[str, Any]:
    """A ``/generate`` body."""
    body = GENERATE[kind](rng)
    sampling = {"temperature": 0, "max_new_tokens": rng.randint(20, 60), **body.pop("sampling", {})}
    return {**body, "sampling_params": sampling, "stream": stream, "rid": rid}
