"""The requests that are replayed: a JSON-lines file of bodies for ``/generate`` or ``/v1/chat/completions``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHAT = "/v1/chat/completions"
NATIVE = "/generate"


@dataclass(frozen=True)
class Request:
    """One line of the file."""

    line: int
    route: str
    body: Mapping[str, Any]
    """As in the file."""

    @property
    def sampling(self) -> Mapping[str, Any]:
        """Where this kind of request keeps its sampling parameters."""
        return self.body if self.route == CHAT else self.body.get("sampling_params") or {}

    @property
    def greedy(self) -> bool:
        """Whether every token is the most probable one, by temperature 0 or top_k 1."""
        return self.sampling.get("temperature") == 0 or self.sampling.get("top_k") == 1

    def to_send(self) -> dict[str, Any]:
        """The body, not streamed, with token ids asked for."""
        body = {**self.body, "stream": False}
        if self.route == CHAT:
            body = {"model": "default", **body}
            body |= {"return_token_ids": True, "return_spec_tokens_details": True}
        body.pop("stream_options", None)
        return body

    def made_greedy(self) -> Request:
        """The same at temperature 0."""
        if self.route == CHAT:
            return Request(self.line, self.route, {**self.body, "temperature": 0})
        return Request(self.line, self.route, {**self.body, "sampling_params": {**self.sampling, "temperature": 0}})


def read_requests(
    path: Path, limit: int | None = None, make_greedy: bool = False, flag: str = "--requests"
) -> list[Request]:
    """The first ``limit`` requests of a file; ``make_greedy`` sets temperature 0 in all of them.

    ``flag`` is the option that named the file, for messages.

    Raises ValueError for a file that cannot be read or is empty, and for a line that is neither kind of body.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{flag} {path}: cannot be read ({error}); fix: a JSON-lines file") from error
    found = [
        _request(f"{flag} {path}, line {number}", number, line)
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not found:
        raise ValueError(f"{flag} {path}: holds no request; fix: one JSON body a line")
    if limit is not None and limit < 1:
        raise ValueError(f"--limit {limit}: expected at least 1; fix: leave it out for all {len(found)} requests")
    return [request.made_greedy() if make_greedy else request for request in found[:limit]]


def _request(where: str, number: int, line: str) -> Request:
    try:
        body = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}: no JSON ({error}); fix: one JSON object a line") from error
    kinds = [key for key in ("messages", "input_ids", "text") if isinstance(body, dict) and body.get(key) is not None]
    if len(kinds) != 1:
        found = sorted(body) if isinstance(body, dict) else type(body).__name__
        raise ValueError(
            f"{where}: expected an object with one of messages (chat), text or input_ids (/generate), found {found}; "
            "fix: the bodies as they are sent to the server"
        )
    if kinds[0] == "messages":
        return Request(number, CHAT, body)
    prompt = body[kinds[0]]
    if isinstance(prompt, list) and any(not isinstance(part, int) for part in prompt):
        raise ValueError(f"{where}: {kinds[0]} is a batch; fix: one request a line")
    if not isinstance(body.get("sampling_params") or {}, dict):
        raise ValueError(f"{where}: sampling_params is no object; fix: one request a line, with one set of parameters")
    return Request(number, NATIVE, body)
