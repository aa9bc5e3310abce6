"""SGLang servers that start in seconds: forked from one process that has imported SGLang and done nothing else.

A forked server runs ``sglang.launch_server`` as ``python -m`` does, and so do the children that it spawns: what is sent
to them is pickled, and their signal handlers and file descriptors are a new process's; only their imports are there
already. What differs from the command line: our hooks are put in place after all of SGLang is imported (as for
``sglang.Engine``; the command line has them before SGLang's HTTP server), and a scheduler has them from its parent.
Variables that SGLang or torch read when they are imported must not differ between servers; the one that our plugin
sets, TORCH_COMPILE_DISABLE, is applied again. So some servers of the tests start on the command line all the same.
"""

from __future__ import annotations

import gc
import io
import json
import multiprocessing.popen_spawn_posix
import multiprocessing.util
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing import reduction
from multiprocessing.context import set_spawning_popen
from pathlib import Path
from typing import IO, Any

MODULE = "sglang.launch_server"
STANDARD = (0, 1, 2)


class Forked:
    """A server that the parent forked, with as much of subprocess.Popen as the tests need."""

    def __init__(self, parent: ForkParent, pid: int) -> None:
        self.parent, self.pid = parent, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status as in subprocess.Popen, None while it runs."""
        if self.returncode is None:
            self.returncode = self.parent.ask({"poll": self.pid})
        return self.returncode

    def terminate(self) -> None:
        """SIGKILL, and its children end with it: SGLang looks only every five seconds whether it had a SIGTERM."""
        if self.poll() is None:  # and until poll says otherwise, the pid is its own
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(MODULE, timeout or 0.0)
            time.sleep(0.02)
        return code


class ForkParent:
    """The process that has imported SGLang; it ends when this object is closed or this process ends."""

    def __init__(self, log_path: Path, env: Mapping[str, str]) -> None:
        self.log_path, self.lock = log_path, threading.Lock()
        with log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **env},
                start_new_session=True,
            )

    def launch(self, command: Sequence[str], log: IO[bytes], env: Mapping[str, str]) -> Forked:
        """Fork a server; ``command`` is that of ``serve_sglang``.

        Raises ValueError for another command, and for environment that came after the imports.
        """
        if list(command[1:3]) != ["-m", MODULE] or env:
            raise ValueError(f"only {MODULE} with this process's environment can be forked, not {command}, {env}")
        return Forked(self, self.ask({"argv": list(command[3:]), "log": os.path.abspath(log.name)}))

    def ask(self, request: dict[str, Any]) -> Any:
        """The answer to one request; raises RuntimeError when the process is gone."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with self.lock:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that forks servers has ended:\n{self.log_path.read_text()[-3000:]}")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        self.process.communicate(timeout=30)


def _import_all() -> None:
    """What the processes of a server import. Its plugins stay for the server itself to load."""
    __import__(MODULE)
    del sys.modules[MODULE]  # the server runs it as __main__
    import sglang.srt.entrypoints.http_server
    import sglang.srt.managers.detokenizer_manager
    import sglang.srt.managers.scheduler
    import sglang.srt.models.registry
    import sglang.srt.speculative.eagle_worker_v2  # noqa: F401

    gc.collect()
    gc.freeze()  # collections in the servers would copy every page


def _serve_requests() -> None:
    """Answer requests from stdin; returns in the forked servers, with sys.argv set, and ends the parent at EOF."""
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        if "poll" in request:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            _answer(os.waitstatus_to_exitcode(status) if pid else None)
        elif os.fork() == 0:
            os.setsid()
            _answer(os.getpid())
            _redirect(request["log"])
            sys.argv = [MODULE, *request["argv"]]
            return
    sys.exit(0)


def _answer(value: int | None) -> None:
    os.write(1, json.dumps(value).encode() + b"\n")


def _redirect(log: str) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_APPEND)
    for source, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(out)


def _launch(self: Any, process_obj: Any) -> None:
    """``popen_spawn_posix.Popen._launch`` with a fork in the place of a new interpreter."""
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise RuntimeError(f"{threads} threads run; what the others lock would stay locked in a forked child")
    pickled = io.BytesIO()
    set_spawning_popen(self)
    try:
        reduction.dump(process_obj, pickled)
    finally:
        set_spawning_popen(None)
    parent_r, child_w = os.pipe()
    child_r, parent_w = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    self.pid = os.fork()
    if self.pid == 0:
        code = 1
        try:
            _become_new({*STANDARD, *self._fds, child_r, child_w})
            code = reduction.pickle.loads(pickled.getbuffer())._bootstrap(parent_sentinel=child_r)
        finally:
            os._exit(code)
    os.close(child_r)
    os.close(child_w)
    self.sentinel = parent_r
    self.finalizer = multiprocessing.util.Finalize(self, multiprocessing.util.close_fds, (parent_r, parent_w))


def _become_new(keep: set[int]) -> None:
    """Give up what a new process would not have: the parent's signal handlers, descriptors and compiler setting."""
    import torch._dynamo

    for number in signal.valid_signals():
        if callable(signal.getsignal(number)) and number != signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        if fd not in keep and fd != null:
            try:
                os.dup2(null, fd, inheritable=False)  # not closed: the objects that own it may close it later
            except OSError:  # the descriptor of the listing itself
                continue
    torch._dynamo.config.disable = os.environ.get("TORCH_COMPILE_DISABLE", "0") == "1"


if __name__ == "__main__":
    _import_all()
    _serve_requests()
    multiprocessing.popen_spawn_posix.Popen._launch = _launch  # type: ignore[method-assign]
    runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
