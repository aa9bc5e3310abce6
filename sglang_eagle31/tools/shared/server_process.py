"""Start a server as a child process, show how it comes up, and end it for certain."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any, Protocol

import psutil
import requests
from rich.console import Console
from rich.markup import escape

from sglang_eagle31.tools.shared.crash_watch import CrashWatch
from sglang_eagle31.tools.shared.server_log import failure

HOST = "127.0.0.1"
GRACE_SECONDS = 15.0
"""From SIGTERM to SIGKILL."""
TAKEN = "address already in use"
"""What uvicorn logs of a port that somebody else listens on."""


class ServerFailed(RuntimeError):
    """The server ended or did not answer in time.

    The message begins with the exception that ended it, else it ends with the tail of the log.

    Attributes:
        exit_code: with which the server had ended by itself, None if it had not.
    """

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Process(Protocol):
    """What is used of subprocess.Popen."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def terminate(self) -> None: ...
    def wait(self, timeout: float | None = None) -> int: ...


Launch = Callable[[Sequence[str], IO[bytes], Mapping[str, str]], Process]
"""Starts a command as the leader of a new process group: where its output goes, what is added to the environment."""


@dataclass
class Server:
    """A running server, which leads its own process group."""

    name: str
    url: str
    log_path: Path
    process: Process
    started: float = field(default_factory=time.monotonic)

    @property
    def pid(self) -> int:
        """Process id, and the id of the process group."""
        return self.process.pid

    def alive(self) -> bool:
        """Whether the process that was started still runs."""
        return self.process.poll() is None

    def log_tail(self, lines: int = 30) -> str:
        """The last lines of the log."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def last_message(self) -> str:
        """The last line of the log that begins with a time in brackets, as SGLang's do, else the last line."""
        lines = self.log_tail(100).splitlines() or ["no output yet"]
        return next((line for line in reversed(lines) if line.startswith("[")), lines[-1]).strip()

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def failed(self, what: str) -> ServerFailed:
        """The error to raise: why the server ended, as its log has it, and ``what`` was seen of it."""
        why = failure(self.log_path.read_text(errors="replace"))
        text = f"server {self.name} {what}; log: {self.log_path}"
        return ServerFailed(f"{why}\n{text}" if why else f"{text}\n{self.log_tail()}", self.process.poll())

    def kill(self) -> None:
        """End every process of the group without a word."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def stop(self, grace: float = GRACE_SECONDS) -> None:
        """End the whole process group: SIGTERM to its leader, which ends its children, then SIGKILL for what is left.

        The leader has ``grace`` seconds. Its children get no signal before: SGLang takes that for a crash.
        """
        if self.alive():
            self.process.terminate()
            _wait_until(lambda: not self.alive(), grace)
        if not _wait_until(lambda: not _group_members(self.pid), min(grace, 1.0)):
            self.kill()
            _wait_until(lambda: not _group_members(self.pid), 5.0)
        self.process.wait(timeout=10.0)


def free_port() -> int:
    """A TCP port on this machine that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def popen(command: Sequence[str], log: IO[bytes], env: Mapping[str, str]) -> Process:
    """A child process of this one, with ``env`` added to this one's environment."""
    return subprocess.Popen(
        command,
        stdout=log,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **env},
        start_new_session=True,
    )


@contextmanager
def serve(
    name: str,
    command: Sequence[str],
    port: int,
    *,
    log_dir: Path = Path("build"),
    env: Mapping[str, str] | None = None,
    deadline: float = 600.0,
    health: str = "/health",
    console: Console | None = None,
    launch: Launch = popen,
) -> Iterator[Server]:
    """Run ``command``, which listens on ``port``, until the block ends, however it ends.

    The block starts once ``health`` answers 200. Output goes to ``log_dir/name.log``; ``env`` is added to this
    process's environment. Raises ServerFailed when the process dies first, ``deadline`` seconds pass, one of SGLang's
    processes crashes, or the block cannot reach the server any more (requests.ConnectionError).
    """
    log_dir.mkdir(parents=True, exist_ok=True)
    log_path = log_dir / f"{name}.log"
    with _interrupt_on_termination(), log_path.open("wb") as log:
        process = launch(command, log, env or {})
        server = Server(name, f"http://{HOST}:{port}", log_path, process)
        watch = CrashWatch(log_path, server.kill)
        watch.start()
        try:
            _wait_until_healthy(server, server.url + health, deadline, console or Console(stderr=True))
            yield server
        except Exception as error:
            if isinstance(error, ServerFailed) or not (
                isinstance(error, requests.ConnectionError) or watch.seen.is_set()
            ):
                raise
            raise server.failed("stopped answering") from error
        finally:
            watch.stop()
            try:
                server.stop()
            except BaseException:  # interrupted again: do not wait any longer
                server.stop(grace=0.0)
                raise


@contextmanager
def serve_sglang(
    name: str,
    model: Path | str,
    args: Sequence[str] = (),
    *,
    log_dir: Path = Path("build"),
    env: Mapping[str, str] | None = None,
    deadline: float = 600.0,
    console: Console | None = None,
    launch: Launch = popen,
) -> Iterator[Server]:
    """``python -m sglang.launch_server`` for ``model`` on a free local port, with ``args`` added; see :func:`serve`.

    Another port is tried where the first is taken before SGLang listens on it, which is a while after it was free.
    """
    more: dict[str, Any] = {"log_dir": log_dir, "env": env, "deadline": deadline, "console": console, "launch": launch}
    for again in (True, True, False):
        port, running = free_port(), ExitStack()
        command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model)]
        command += ["--host", HOST, "--port", str(port), *args]
        try:
            server = running.enter_context(serve(name, command, port, **more))
        except ServerFailed:
            if again and TAKEN in (log_dir / f"{name}.log").read_text(errors="replace"):
                continue
            raise
        with running:
            yield server
        return


def _wait_until_healthy(server: Server, url: str, deadline: float, console: Console) -> None:
    """Show progress until ``url`` answers 200."""
    reported = 0.0
    with console.status("") if console.is_terminal else nullcontext() as status:
        while server.elapsed() < deadline:
            if not server.alive():
                raise server.failed(f"ended with exit code {server.process.returncode}")
            if _answers(url):
                ready = f"server {server.name}: ready after {server.elapsed():.0f} s (log: {server.log_path})"
                console.print(ready, markup=False, highlight=False, soft_wrap=True)
                return
            text = f"server {server.name}: starting, {server.elapsed():.0f} s · {server.last_message()[:100]}"
            if status is not None:
                status.update(escape(text))
            elif server.elapsed() - reported >= 15.0:
                reported = server.elapsed()
                console.print(text, markup=False, highlight=False, soft_wrap=True)
            time.sleep(0.5)
    raise server.failed(f"did not answer {url} in {deadline:.0f} s")


def _answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=10).status_code == 200
    except requests.RequestException:
        return False


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return met


def _group_members(group: int) -> list[int]:
    """Ids of the processes in a process group, without those that have ended and wait to be reaped."""
    members = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, ProcessLookupError):  # it ended meanwhile
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process.pid)
    return members


@contextmanager
def _interrupt_on_termination() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, so that ``finally`` blocks run; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
