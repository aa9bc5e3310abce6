"""The load on a real server: requests with a pinned shape, and the guard's counts before and after."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import requests

from sglang_eagle31.maths.shape import NO_SPECULATION, Shape
from sglang_eagle31.tools.shared.guard_records import Counts, counts, guards
from sglang_eagle31.tools.shared.requests_file import CHAT, Request
from sglang_eagle31.tools.shared.server_info import server_info
from sglang_eagle31.tools.tune.turns import Turn

TIMEOUT = 1800.0
"""Seconds one request may take."""
WARM = 8
"""Tokens by which a shape is warmed up."""
STRANGE = 0.1
"""Share of rounds of another kind than the pinned shape's from which a turn is not counted; a few always may be, as the
guard counts a round when the next one begins."""
FEW = 4


@dataclass(frozen=True)
class Reply:
    """One answer."""

    tokens: int
    seconds: float


@dataclass(frozen=True)
class HttpLoad:
    """A closed loop on a server, as `turns.Load`.

    Attributes:
        url: of the server.
        prompts: requests of the user's file, of which each cycle asks the next ones.
        temperature: of all requests.
        concurrency: requests at a time.
        max_tokens: longest answer.
        each: requests of a turn.
    """

    url: str
    prompts: Sequence[Request]
    temperature: float
    concurrency: int
    max_tokens: int
    each: int

    def prepare(self, cycle: int, shapes: Sequence[Shape]) -> int:
        """As `turns.Load`."""
        asked = len(self._ask(NO_SPECULATION, cycle, 1))
        for shape in shapes:
            asked += len(self._ask(shape, cycle, WARM, self.concurrency))
        return asked

    def turn(self, shape: Shape, cycle: int) -> Turn:
        """As `turns.Load`.

        Raises ValueError where the server refuses, is gone, or ran other shapes than the pinned one.
        """
        before = self._counts()
        start = time.perf_counter()
        replies = self._ask(shape, cycle, self.max_tokens)
        seconds = time.perf_counter() - start
        after = self._counts()
        self._check(shape, before, after)
        return Turn(
            shape,
            len(replies),
            sum(reply.tokens for reply in replies),
            seconds,
            sum(reply.seconds for reply in replies),
            after.seconds[shape],
            after.tried - before.tried,
            after.hit - before.hit,
        )

    def _check(self, shape: Shape, before: Counts, after: Counts) -> None:
        plain, drafted = after.plain - before.plain, after.drafted - before.drafted
        wanted, other = (drafted, plain) if shape.steps else (plain, drafted)
        if not wanted + other:
            raise ValueError(
                f"--url {self.url}: no round was run, as all answers ended with their first token; "
                "fix: more --max-new-tokens, or prompts with longer answers"
            )
        if other > max(FEW, STRANGE * (wanted + other)) or shape not in after.seconds:
            raise ValueError(
                f"--url {self.url}: {shape} was pinned, but of {wanted + other} rounds {drafted} had a draft and "
                f"{plain} had none; fix: a server without other traffic, whose guard prepares this shape"
            )

    def _counts(self) -> Counts:
        return counts(guards(server_info(self.url), self.url))

    def _ask(self, shape: Shape, cycle: int, tokens: int, count: int | None = None) -> list[Reply]:
        """The cycle's requests, or the first ``count`` of them."""
        first = cycle * self.each
        chosen = [self.prompts[(first + index) % len(self.prompts)] for index in range(count or self.each)]
        bodies = [(one.route, pinned(one, shape, self.temperature, tokens)) for one in chosen]
        with ThreadPoolExecutor(self.concurrency) as pool:
            futures = [pool.submit(self._post, *body) for body in bodies]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _post(self, route: str, body: dict[str, Any]) -> Reply:
        start = time.perf_counter()
        try:
            response = requests.post(self.url + route, json=body, timeout=TIMEOUT)
        except requests.RequestException as error:
            raise ValueError(
                f"--url {self.url}: the server stopped answering ({error}); fix: see its log, and start it again"
            ) from error
        seconds = time.perf_counter() - start
        if not response.ok:
            raise ValueError(
                f"--url {self.url}: {route} was refused with status {response.status_code}: {response.text[:300]}; "
                "fix: prompts that this server takes"
            )
        return Reply(_tokens(route, response.json()), seconds)


def pinned(request: Request, shape: Shape, temperature: float, tokens: int) -> dict[str, Any]:
    """The body to send: the file's, with shape, temperature and length set, and one answer a request.

    An answer at the end of a chat is left off, for the target is to give it.
    """
    chat = request.route == CHAT
    most, least = ("max_tokens", "min_tokens") if chat else ("max_new_tokens", "min_new_tokens")
    dropped = {"n", "max_completion_tokens"}
    if (request.sampling.get(least) or 0) > tokens:
        dropped.add(least)
    kept = {key: value for key, value in request.sampling.items() if key not in dropped}
    pin = {"eagle31_shape": str(shape) if shape.steps else "0"}
    sampling = {
        **kept,
        "temperature": temperature,
        most: tokens,
        "custom_params": {**(request.sampling.get("custom_params") or {}), **pin},
    }
    if not chat:
        return {**request.to_send(), "sampling_params": sampling}
    messages = list(request.body["messages"])
    while len(messages) > 1 and messages[-1].get("role") == "assistant":
        messages.pop()
    body = {key: value for key, value in request.to_send().items() if key not in dropped}
    return {**body, **sampling, "stream": False, "messages": messages}


def _tokens(route: str, reply: Mapping[str, Any]) -> int:
    counted = reply["usage"] if route == CHAT else reply["meta_info"]
    return int(counted["completion_tokens"])
