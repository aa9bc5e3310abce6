"""Servers that take turns: all up with only one awake, or one at a time."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from sglang_eagle31.tools.bench.arms import Arm
from sglang_eagle31.tools.shared.server_process import Server

Serve = Callable[..., AbstractContextManager[Server]]
"""Starts a server as `serve_sglang` does."""

KEPT_FLAGS = ("--watchdog-timeout", "1000000")
"""Seconds without progress after which SGLang ends itself: a server that is stopped makes none."""


class Turns:
    """Gives each arm its server when it is its turn."""

    def __init__(self, model: Path | str, common: Sequence[str], folder: Path, keep: bool, serve: Serve) -> None:
        """``common`` are the flags of every server; ``keep`` has them all up, stopped while they wait."""
        self.model, self.folder, self.keep, self.serve = model, folder, keep, serve
        self.common = [*common, *(KEPT_FLAGS if keep else ())]
        self.stack = ExitStack()
        self.servers: dict[str, Server] = {}
        self.awake: str | None = None

    @contextmanager
    def __call__(self, arm: Arm) -> Iterator[Server]:
        """The server of ``arm``, which alone runs."""
        if not self.keep:
            with self._start(arm) as server:
                yield server
            return
        if arm.name != self.awake:
            self._sleep()
            if arm.name in self.servers:
                resume(self.servers[arm.name])
            else:
                self.servers[arm.name] = self.stack.enter_context(self._kept(arm))
            self.awake = arm.name
        yield self.servers[arm.name]

    def close(self) -> None:
        """End the servers."""
        self.stack.close()
        self.servers.clear()
        self.awake = None

    def _start(self, arm: Arm) -> AbstractContextManager[Server]:
        return self.serve(f"bench-{arm.name}", self.model, [*self.common, *arm.flags], log_dir=self.folder)

    @contextmanager
    def _kept(self, arm: Arm) -> Iterator[Server]:
        with self._start(arm) as server:
            try:
                yield server
            finally:
                resume(server)  # a stopped process would not see the signal that ends it

    def _sleep(self) -> None:
        if self.awake is not None:
            pause(self.servers[self.awake])
        self.awake = None


def pause(server: Server) -> None:
    """Stop every process of a server where it is: it costs memory, and no time."""
    os.killpg(server.pid, signal.SIGSTOP)


def resume(server: Server) -> None:
    """Let it go on; nothing happens to one that runs or is gone."""
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGCONT)


@contextmanager
def turns(*args: Any, **named: Any) -> Iterator[Turns]:
    """`Turns`, whose servers end with the block."""
    made = Turns(*args, **named)
    try:
        yield made
    finally:
        made.close()
