"""Recorded traffic, played again: a JSONL of requests, at their own pace or so many at a time.

Each line is ``{"path": "/v1/chat/completions", "body": {...}, "at": 12.5}``; ``at``, in seconds from any start, is
optional. Answers are streamed; the server says with each piece how many tokens there are.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from sglang_eagle31.tools.bench.load import Load, Timing, summarise

NATIVE = "/generate"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
PATHS = (NATIVE, CHAT, COMPLETIONS)
MOST = 256
"""Requests in flight at most when traffic has its own pace."""


@dataclass(frozen=True)
class Recorded:
    """One request."""

    path: str
    body: Mapping[str, Any]
    at: float | None = None

    @property
    def greedy(self) -> bool:
        """Whether two servers must answer it alike."""
        sampling = self.body.get("sampling_params") or {} if self.path == NATIVE else self.body
        return bool(sampling.get("temperature") == 0 or sampling.get("top_k") == 1)

    def to_send(self) -> dict[str, Any]:
        """The body, streamed, with the number of tokens in each piece."""
        body = {**self.body, "stream": True}
        if self.path != NATIVE:
            body = {"model": "default", **body}
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        return body


def read(path: Path, limit: int | None = None) -> list[Recorded]:
    """The first ``limit`` requests. Raises ValueError naming the line that is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--replay {path}: cannot be read ({error}); fix: a JSON-lines file") from error
    found = [_recorded(path, number, line) for number, line in enumerate(lines, 1) if line.strip()][:limit]
    if not found:
        raise ValueError(f'--replay {path}: holds no request; fix: lines of {{"path": "{CHAT}", "body": {{...}}}}')
    if len({one.at is None for one in found}) > 1:
        raise ValueError(f"--replay {path}: some requests have a time (at) and some have none; fix: all or none")
    return found


def _recorded(path: Path, number: int, line: str) -> Recorded:
    where = f"--replay {path}, line {number}"
    try:
        entry = json.loads(line)
        one = Recorded(entry["path"], dict(entry["body"]), None if entry.get("at") is None else float(entry["at"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f'{where}: expected {{"path": ..., "body": {{...}}, "at": seconds}} ({error!r}); '
            "fix: one recorded request a line"
        ) from error
    if one.path not in PATHS:
        raise ValueError(f"{where}: path {one.path!r} is not measured; fix: of {', '.join(PATHS)}")
    sampling = one.body.get("sampling_params") if one.path == NATIVE else one.body
    if isinstance(sampling, dict) and (sampling.get("n") or 1) != 1:
        raise ValueError(
            f"{where}: n is {sampling['n']}, and the times of several answers cannot be told apart; fix: 1"
        )
    return one


def play(
    url: str,
    traffic: Sequence[Recorded],
    concurrency: int,
    speed: float = 1.0,
    advance: Callable[[], object] = lambda: None,
) -> tuple[Load, list[str | None]]:
    """Send everything and wait for every answer: the load, and a digest of each greedy answer (None if sampled).

    ``concurrency`` 0 keeps the recorded times, ``speed`` times as fast. Raises RuntimeError where one is not answered.
    """
    _flush(url)
    if not concurrency:
        traffic = sorted(traffic, key=lambda one: one.at or 0.0)
    start, first = time.perf_counter(), (traffic[0].at or 0.0)
    with ThreadPoolExecutor(concurrency or MOST) as pool:
        futures = []
        for one in traffic:
            if not concurrency:
                time.sleep(max(0.0, start + ((one.at or 0.0) - first) / speed - time.perf_counter()))
            futures.append(pool.submit(_timed, url, one, advance))
        answers = [future.result() for future in futures]
    return summarise([timing for timing, _ in answers]), [digest for _, digest in answers]


def _timed(url: str, one: Recorded, advance: Callable[[], object]) -> tuple[Timing, str | None]:
    start = time.perf_counter()
    pieces: list[tuple[float, int]] = []
    said = hashlib.sha256()
    with requests.post(url + one.path, json=one.to_send(), stream=True, timeout=3600) as reply:
        if not reply.ok:
            raise RuntimeError(f"{url}{one.path}: status {reply.status_code}: {reply.text[:300]}")
        tokens, text = 0, ""
        for event in events(reply.iter_lines()):
            tokens, text = _piece(one.path, event, tokens, text)
            if tokens > (pieces[-1][1] if pieces else 0):
                pieces.append((time.perf_counter(), tokens))
    if not pieces:
        raise RuntimeError(f"{url}{one.path}: an answer without a token")
    said.update(text.encode())
    advance()
    return timing(start, pieces), said.hexdigest()[:16] if one.greedy else None


def timing(start: float, pieces: Sequence[tuple[float, int]]) -> Timing:
    """Of when the answer had how many tokens; those of one piece share the time since the last, but for the first."""
    gaps: list[float] = []
    for (before, had), (now, has) in zip(pieces, pieces[1:], strict=False):
        gaps += [(now - before) / (has - had)] * (has - had)
    return Timing(start, pieces[0][0], pieces[-1][0], pieces[-1][1], tuple(gaps))


def events(lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """The objects of a stream of server-sent events. Raises RuntimeError for one that is an error."""
    for line in lines:
        if not line.startswith(b"data:") or line.strip() == b"data: [DONE]":
            continue
        event = json.loads(line[5:])
        if "error" in event:
            raise RuntimeError(f"the server broke off: {str(event['error'])[:300]}")
        yield event


def _piece(path: str, event: Mapping[str, Any], tokens: int, text: str) -> tuple[int, str]:
    """Tokens and text after an event."""
    if path == NATIVE:
        said = event["text"] if "text" in event else json.dumps(event.get("output_ids"))
        return event["meta_info"]["completion_tokens"], said
    usage, choices = event.get("usage") or {}, event.get("choices") or []
    if choices:
        delta = choices[0].get("delta") or {}
        more = [choices[0].get("text"), delta.get("content"), delta.get("reasoning_content"), delta.get("tool_calls")]
        text += "".join(part if isinstance(part, str) else json.dumps(part) for part in more if part)
    return max(tokens, usage.get("completion_tokens") or 0), text


def _flush(url: str) -> None:
    """Empty the prefix cache, so that no arm finds what a former round left."""
    requests.post(f"{url}/flush_cache", timeout=60).raise_for_status()


def differing(raws: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Greedy answers of the first round of both, compared as text."""
    if not raws or not base:
        return {"prompts": 0, "different": 0}
    pairs = [(a, b) for a, b in zip(raws[0]["answers"], base[0]["answers"], strict=True) if a is not None]
    return {"prompts": len(pairs), "different": sum(a != b for a, b in pairs)}
