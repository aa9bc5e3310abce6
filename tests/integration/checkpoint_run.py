"""One head on one server: what becomes of it, as a user would see it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import markers
import requests
from conftest import COMMON, ENV, generate, speculate
from forked import ForkParent

from sglang_eagle31.tools.shared.server_process import Server, ServerFailed, serve_sglang

FLAGS = (*COMMON, "--skip-server-warmup")
"""Without SGLang's own first request, so that a crash at the first request can be told from one at start."""
FILLED = {"MALLOC_PERTURB_": "194"}
"""glibc fills what it hands out with the byte 0x3d: what is never loaded is 0.046 everywhere, and not by luck zero."""
LOADED, LISTENING = "Load weight begin", "Uvicorn running on"
ERROR = re.compile(r"^(?:\[[^\]]*\] )?(?:[A-Za-z_]+\.)*([A-Z]\w*(?:Error|Exception|Refused)\b.*)$")
NO_GPU = re.compile(r"re-initialize CUDA|no NVIDIA driver|not compiled with CUDA", re.I)
DEADLINE = 180.0


@dataclass(frozen=True)
class Seen:
    """What became of a head.

    Attributes:
        outcome: ``healthy``, ``low acceptance``, ``stops at start``, ``fails at first request``, or ``needs a GPU``.
        accept_length: tokens per verification, where it served.
        error: the last error of the log, where it stopped; EAGLE31's first reason.
        loaded: whether any weights were loaded.
    """

    outcome: str
    accept_length: float | None = None
    error: str = ""
    loaded: bool = False

    def to_json(self) -> dict[str, Any]:
        """Without what is not there."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}


@contextmanager
def fork_parent(log: Path) -> Iterator[ForkParent]:
    """The process from which the servers are forked."""
    parent = ForkParent(log, {**ENV, **FILLED})
    try:
        yield parent
    finally:
        parent.close()


def serve(
    parent: ForkParent,
    target: Path,
    head: Path,
    algorithm: str,
    overrides: Mapping[str, str],
    log_dir: Path,
    name: str,
) -> Seen:
    """Start a server with the head, ask it for one answer, and end it."""
    flags = [*speculate(algorithm, head, *markers.TREE), *override_flags(overrides)]
    answers: list[dict[str, Any]] = []

    def use(server: Server) -> None:
        answers.extend(generate(server, [list(markers.PROMPT)], markers.NEW_TOKENS))

    failed = _run(name, target, flags, log_dir, parent.launch, use)
    log = (log_dir / f"{name}.log").read_text(errors="replace")
    loaded = LOADED in log
    if failed:
        error = plain(first_reason(log) or last_error(log), (head, target))
        if NO_GPU.search(error):  # of a machine without one, not of the head
            return Seen("needs a GPU", loaded=loaded)
        # SGLang's own check of its health is a request, too.
        return Seen("fails at first request" if LISTENING in log else "stops at start", error=error, loaded=loaded)
    ids, meta = answers[0]["output_ids"], answers[0]["meta_info"]
    assert ids == [markers.TOKEN] * markers.NEW_TOKENS, f"{name}: the text itself is wrong: {ids}"
    length = round((meta["completion_tokens"] - 1) / meta["spec_verify_ct"], 2)
    return Seen("healthy" if length >= markers.STEPS + 1 else "low acceptance", length, loaded=loaded)


def override_flags(overrides: Mapping[str, str]) -> list[str]:
    """``--eagle31-override KEY=VALUE`` for each."""
    return [part for key, value in overrides.items() for part in ("--eagle31-override", f"{key}={value}")]


def first_reason(log: str) -> str:
    """The first reason that EAGLE31 lists."""
    found = re.search(r"EAGLE31 cannot run this set-up:\n  - (.*)", log)
    return found[1].split(": ", 1)[1] if found and found[1].startswith("--speculative-draft-model-path") else ""


def last_error(log: str) -> str:
    """The last line of a log that names an exception."""
    lines = [found[1] for line in log.splitlines() if (found := ERROR.match(line))]
    return lines[-1][:240] if lines else ""


def plain(text: str, paths: Sequence[Path]) -> str:
    """``text`` without this machine's paths."""
    for path in paths:
        text = text.replace(str(path), path.name)
    return re.sub(r"(/[\w.+-]+){2,}/", "", text).strip()


def _run(
    name: str,
    target: Path,
    flags: Sequence[str],
    log_dir: Path,
    launch: Any,
    use: Callable[[Server], None],
) -> bool:
    """Whether the server failed, at start or while it was used."""
    try:
        with serve_sglang(name, target, [*FLAGS, *flags], log_dir=log_dir, deadline=DEADLINE, launch=launch) as server:
            use(server)
    except (ServerFailed, requests.HTTPError):
        return True
    return False
