"""A server under load and faults: its processes killed or told to end, and what it holds when it is idle."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests

from load.check import Memory, differences
from load.client import Answer, send
from load.traffic import Request
from sglang_eagle31.tools.shared.server_process import Server, _group_members

IDLE = 120.0
"""Seconds for a server to finish what its clients no longer wait for."""


@dataclass(frozen=True)
class End:
    """How a server ended: exit code (None: it had not in time), seconds from the signal, processes it left behind."""

    code: int | None
    seconds: float
    left: int


def processes(server: Server) -> dict[str, int]:
    """Ids of the server's processes: ``server``, ``scheduler``, ``detokenizer``."""
    found = {"server": server.pid}
    for pid in _group_members(server.pid):
        title = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
        if title.startswith("sglang::"):
            found[title.removeprefix("sglang::")] = pid
    return found


def idle(server: Server, seconds: float = IDLE) -> Memory:
    """What an idle server holds, or one that is not idle after ``seconds``. Nothing is flushed before."""
    end = time.monotonic() + seconds
    while True:
        load = requests.get(f"{server.url}/v1/loads", timeout=60).json()["loads"][0]
        left = load["num_running_reqs"] + load["num_waiting_reqs"]
        if left == load["num_used_tokens"] == 0 or time.monotonic() > end:
            break
        time.sleep(0.2)
    mib = {name: resident(pid) for name, pid in processes(server).items()}
    return Memory(load["num_used_tokens"], left, mib)


def resident(pid: int) -> float:
    """MiB of memory that a process has for itself; what it shares with the process that forked it is not counted."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    fields = {name: float(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines[1:])}
    return (fields["Private_Clean"] + fields["Private_Dirty"]) / 1024


def flush(server: Server) -> int:
    """The status with which the cache was flushed: 200, unless the server still holds a request."""
    return requests.post(f"{server.url}/flush_cache", params={"timeout": 30}, timeout=60).status_code


def send_all(server: Server, load: list[Request], concurrency: int, deadline: float) -> list[Answer]:
    """The answers to all requests, in their order, with so many under way at a time."""
    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(lambda request: send(server.url, request, deadline), load))


@contextmanager
def under_load(server: Server, load: list[Request], concurrency: int, deadline: float) -> Iterator[list[Answer]]:
    """Requests are under way while the block runs; their answers are there after it."""
    answers: list[Answer] = []
    worker = threading.Thread(target=lambda: answers.extend(send_all(server, load, concurrency, deadline)))
    worker.start()
    _wait(lambda: requests.get(f"{server.url}/v1/loads", timeout=60).json()["loads"][0]["num_running_reqs"] > 1)
    yield answers
    worker.join()


def _wait(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"the server was not busy in {seconds:.0f} s")
        time.sleep(0.1)


def signalled(server: Server, process: str, number: signal.Signals, deadline: float) -> End:
    """Send a signal to one of the server's own processes, and see the server end by itself."""
    begin = time.monotonic()
    os.kill(processes(server)[process], number)
    try:
        code: int | None = server.process.wait(timeout=deadline)
    except subprocess.TimeoutExpired:
        code = None
    seconds = time.monotonic() - begin
    time.sleep(0.5)  # for the last of its children
    return End(code, seconds, len(_group_members(server.pid)))


def killed(server: Server, load: list[Request], twins: list[Answer], deadline: float) -> list[str]:
    """Kill the scheduler under load: what is wrong with how the server ends. ``load`` is sent all at once."""
    with under_load(server, load, len(load), deadline) as answers:
        end = signalled(server, "scheduler", signal.SIGKILL, deadline)
    failures = [] if end.code else [f"the scheduler was killed, and the server ended with {end.code}"]
    failures += [f"{end.left} processes are left of a server whose scheduler was killed"] if end.left else []
    if not any("scheduler" in line and "crashed with exit code -9" in line for line in _log(server)):
        failures.append("the log does not say that the scheduler was killed")
    finished = [at for at, answer in enumerate(answers) if answer.ended == "finished"]
    return failures + differences(*([rows[at] for at in finished] for rows in (load, answers, twins)))


def terminated(server: Server, load: list[Request], twins: list[Answer], deadline: float) -> list[str]:
    """SIGTERM to the server under load: what is wrong with how it ends, and with the answers that it still gives."""
    with under_load(server, load, len(load), deadline) as answers:
        end = signalled(server, "server", signal.SIGTERM, deadline)
    failures = [] if end.code == 0 else [f"SIGTERM under load, and the server ended with {end.code}"]
    failures += [f"{end.left} processes are left of a server that had SIGTERM"] if end.left else []
    if any("Traceback" in line or "Still alive" in line for line in _log(server)):
        failures.append(f"a server that had SIGTERM logged an error: {server.log_path}")
    return failures + differences(load, answers, twins)


def _log(server: Server) -> list[str]:
    return server.log_path.read_text(errors="replace").splitlines()
