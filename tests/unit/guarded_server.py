"""A server that times and counts as the guard does, by a clock of its own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from sglang_eagle31.maths.shape import Shape
from sglang_eagle31.tools.shared.requests_file import CHAT

PLAIN = 0.002


class Clock:
    """What `client` takes for the time: the servers below move it on, and the machine's load does not."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


CLOCK = Clock()


class Guarded:
    """What the guard of a server would report; each draft is right or none is."""

    def __init__(self, right: bool, any_shape: bool = True, pins: bool = True, others: int = 0) -> None:
        self.right, self.pins, self.others = right, pins, others
        self.slope = 0.05 if right else 0.5
        self.lock = threading.Lock()
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.plain = self.drafted = self.number = 0
        self.tried, self.hit = np.zeros((3, 2)), np.zeros((3, 2))
        self.seconds: dict[str, dict[str, float]] = {}
        self.any_shape = any_shape

    def info(self) -> dict[str, Any]:
        guard = {
            "mode": "on",
            "configured": "3,2,6",
            "shapes": ["3,2,6", "3,1,4"],
            "any": self.any_shape,
            "rounds": {"plain": self.plain, "drafted": self.drafted},
            "tried": self.tried.tolist(),
            "hit": self.hit.tolist(),
            "seconds": self.seconds,
        }
        states = [{"eagle31": {"guard": guard}}]
        return {"eagle31": {"algorithm": "EAGLE31"}, "device": "cpu", "internal_states": states}

    def answer(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        chat = route == CHAT
        sampling = body if chat else body["sampling_params"]
        tokens = sampling["max_tokens" if chat else "max_new_tokens"]
        text = sampling["custom_params"]["eagle31_shape"]
        shape = Shape.parse(text) if self.pins else Shape(3, 2, 6)
        rounds = -(-(tokens - 1) // (1 + (shape.steps if self.right else 0)))
        cost = PLAIN * (1 + self.slope * (shape.draft_tokens + shape.steps))
        with self.lock:
            CLOCK.now += rounds * cost
            self.bodies.append((route, body))
            self._count(shape, rounds, cost)
        return {"usage": {"completion_tokens": tokens}} if chat else {"meta_info": {"completion_tokens": tokens}}

    def _count(self, shape: Shape, rounds: int, cost: float) -> None:
        self.number += 1
        self.drafted += self.others
        if rounds:
            key = str(shape) if shape.steps else "0"
            self.seconds.setdefault(key, {})["1"] = cost * (1 + 1e-6 * (self.number % 7))
        if not shape.steps:
            self.plain += rounds
            return
        self.drafted += rounds
        if self.right:
            self.tried[: shape.steps, 0] += rounds
            self.hit[: shape.steps, 0] += rounds
        else:
            self.tried[0, : shape.topk] += rounds


@contextmanager
def served(info: Any, answer: Any = None) -> Iterator[str]:
    """A server on a free port; its address."""

    class Handler(BaseHTTPRequestHandler):
        def reply(self, status: int, record: Any) -> None:
            content = json.dumps(record).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            self.reply(200, info())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if answer is None:
                self.reply(400, {"error": "no"})
            else:
                self.reply(200, answer(self.path, body))

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
