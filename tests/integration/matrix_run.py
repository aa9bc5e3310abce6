"""Servers of the feature matrix: each group of flags without speculation, with a chain and with a tree."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matrix_cache
import matrix_grammar
import matrix_lifecycle
import matrix_logprobs
import matrix_openai
import matrix_parallel
import matrix_sampling
import requests
from conftest import COMMON, ENV, speculate
from matrix_case import Body, Case, Place, difference
from matrix_model import Folders
from test_sampled import p_values

from sglang_eagle31.tools.shared.server_process import Launch, Server, ServerFailed, popen, serve_sglang

MODES = {"none": None, "chain": (3, 1, 4), "tree": (4, 2, 8)}
"""Without speculation; steps, topk and draft tokens."""
LIMIT = 1e-5
"""p-value below which two laws differ, of a few hundred tests."""
DEADLINE = 400.0
ERRORS = (AssertionError, LookupError, RuntimeError, TypeError, ValueError, requests.HTTPError)
"""Of one case; a server that ended is of all."""
SPOKEN = [flag for flag in COMMON if flag != "--skip-tokenizer-init"]
NO_COMPILER = {"TORCH_COMPILE_DISABLE": "1"}
"""SGLang compiles repetition penalties; the servers of the tests have no compiler."""
PLAIN = ["--disable-overlap-schedule"]
"""With the overlap schedule a server without speculation counts penalties a step late."""
OPEN = (
    "--enable-custom-logit-processor --tool-call-parser qwen --reasoning-parser qwen3 --context-length 1024 "
    "--constrained-json-disable-any-whitespace"
)
TIGHT = "--max-total-tokens {} --schedule-conservativeness 0.01 --context-length 512"
GROUPS: dict[str, Callable[[Folders], str]] = {
    "default": lambda _: f"{OPEN} --max-running-requests 64",
    "pages": lambda _: f"--page-size 16 {TIGHT.format(800)}",
    "pressure": lambda _: TIGHT.format(700),
    "lora": lambda f: f"--enable-lora --lora-paths style={f.lora} --lora-backend torch_native --max-loras-per-batch 2",
    "data parallel": lambda _: "--dp-size 2",
    "tensor parallel": lambda _: "--tp-size 2",
    "seeds": lambda _: "--enable-deterministic-inference",
}
RANKS = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1", "SGLANG_NCCL_SO_PATH": "/nonexistent"}
"""Two ranks on a CPU: SGLang wants their cores, and fails where it finds NCCL, which it then starts on the CPU."""
NOT_FORKED = ("data parallel", "tensor parallel")
REFUSED_WITHOUT = {("seeds", "none")}
"""SGLang refuses seeds on a CPU: the reference has the law, and not the seeds."""
CASES: tuple[Case, ...] = (
    *matrix_sampling.CASES,
    *matrix_grammar.CASES,
    *matrix_logprobs.CASES,
    *matrix_openai.CASES,
    *matrix_cache.CASES,
    *matrix_lifecycle.CASES,
    *matrix_parallel.CASES,
)
Row = dict[str, Any]


@dataclass
class Said:
    """What one server said: an answer a case, or why there is none."""

    answers: dict[int, Any] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    rounds: dict[int, tuple[int, int]] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    refused: str = ""


def flags_of(group: str, mode: str, folders: Folders) -> list[str]:
    """Of one server."""
    tree = MODES[mode]
    more = PLAIN if tree is None else speculate("EAGLE31", folders.head, *tree)
    own = "" if (group, mode) in REFUSED_WITHOUT else GROUPS[group](folders)
    return [*SPOKEN, *own.split(), *more]


def serve(
    name: str, group: str, mode: str, folders: Folders, logs: Path, launch: Launch
) -> AbstractContextManager[Server]:
    """A server of a group; one of two ranks starts as users start it."""
    flags, env = flags_of(group, mode, folders), {}
    if group in NOT_FORKED:
        launch, env = popen, {**ENV, **NO_COMPILER, **RANKS}
    return serve_sglang(name, folders.target, flags, log_dir=logs, env=env, deadline=DEADLINE, launch=launch)


def ask_all(cases: dict[int, Case], group: str, mode: str, folders: Folders, logs: Path, launch: Launch) -> Said:
    """Every case on one server."""
    said, name = Said(), f"matrix-{group.replace(' ', '-')}-{mode}"
    at = -1
    try:
        with serve(name, group, mode, folders, logs, launch) as server:
            for at, case in cases.items():
                place, started = Place(server.url, folders, server.log_path, mode != "none"), time.monotonic()
                try:
                    said.answers[at] = case.answer(place)
                    assert case.holds(said.answers[at]), f"the feature did nothing: {str(said.answers[at])[:300]}"
                except ERRORS as error:
                    said.errors[at] = f"{type(error).__name__}: {error}"[:600]
                said.rounds[at], said.seconds[at] = _rounds(place.meta), round(time.monotonic() - started, 1)
                print(said.seconds[at], case.feature, case.name, said.errors.get(at, ""), flush=True)
    except ServerFailed as failed:
        why = reason(failed, server_log(logs, name))
        said.refused = why if at < 0 and failed.exit_code is not None else ""
        said.errors |= {k: f"server ended: {why}" for k in cases if k >= at and k not in said.answers}
    return said


def server_log(logs: Path, name: str) -> str:
    """All that it wrote."""
    path = logs / f"{name}.log"
    return path.read_text(errors="replace") if path.is_file() else ""


def reason(failed: ServerFailed, log: str) -> str:
    """Why a server ended: the last exception in its log."""
    lines = re.findall(r"^(?:\[[^\]]*\] )?((?:\w+\.)*\w*(?:Error|Exception)\b.*(?:\n  - .*)*)", log, re.M)
    return re.sub(r"(?<![:/\w])(/[\w.+-]+){2,}/", "", str(lines[-1]))[:400] if lines else str(failed)[:200]


def _rounds(meta: list[Body]) -> tuple[int, int]:
    """Tokens after the first of each answer, and verify steps."""
    counted = [one for one in meta if one.get("spec_verify_ct")]
    return sum(one["completion_tokens"] - 1 for one in counted), sum(one["spec_verify_ct"] for one in counted)


def compare(case: Case, mode: str, at: int, reference: Said, other: Said) -> Row:
    """What became of a case: ``identical``, ``same law``, ``differs``, ``fails``, or ``refused`` as the case says."""
    tokens, rounds = other.rounds.get(at, (0, 0))
    speed = {"tokens": tokens, "accept_length": round(tokens / rounds, 2)} if rounds else {}
    expected, refusal = case.refused.get(mode), other.refused or _refusal(other.answers.get(at))
    if expected is not None or refusal:
        kind = "refused" if expected is not None and refusal and expected in refusal else "fails"
        without = "refused" if reference.refused or _refusal(reference.answers.get(at)) else "answered"
        return {"outcome": kind, "message": refusal or "answered", "without": without}
    if at in reference.errors or at in other.errors:
        return {"outcome": "fails", "without": reference.errors.get(at), "with": other.errors.get(at)}
    wanted, found = reference.answers[at], other.answers[at]
    if case.compare == "law":
        p = min(p_values(*([(*path, -1, -1, -1, -1)[:4] for path in paths] for paths in (found, wanted))))
        return {"outcome": "same law" if p > LIMIT else "differs", "p": float(f"{p:.3g}"), **speed}
    if text := difference(wanted, found):
        return {"outcome": "differs", "difference": text, **speed}
    return {"outcome": "identical", **speed}


def _refusal(answer: Any) -> str:
    """What a server said instead of every answer."""
    answers = answer if isinstance(answer, list) else [answer]
    refused = [one["message"] for one in answers if isinstance(one, dict) and "refused" in one]
    return str(refused[0]) if answers and len(refused) == len(answers) else ""


def rows(
    group: str,
    folders: Folders,
    logs: Path,
    launch: Launch,
    wanted: Callable[[Case], bool] = lambda _: True,
    at_once: int = 1,
) -> list[Row]:
    """All cases of a group that are ``wanted``, on its three servers, ``at_once`` of which run at a time."""
    cases = {at: case for at, case in enumerate(CASES) if case.flags == group and wanted(case)}
    if not cases:
        return []

    def ask(mode: str) -> Said:
        started = time.monotonic()
        said = ask_all(cases, group, mode, folders, logs, launch)
        print(f"[features] {group}, {mode}: {time.monotonic() - started:.0f} s", flush=True)
        return said

    with ThreadPoolExecutor(at_once) as pool:
        found = list(pool.map(ask, MODES) if at_once > 1 else map(ask, MODES))
    return [row(case, at, dict(zip(MODES, found, strict=True))) for at, case in cases.items()]


def row(case: Case, at: int, said: dict[str, Said]) -> Row:
    """One row as JSON."""
    found = {mode: compare(case, mode, at, said["none"], said[mode]) for mode in MODES if mode != "none"}
    return {"feature": case.feature, "name": case.name, "flags": case.flags, "compare": case.compare, **found}


def groups(cases: Iterable[Case]) -> list[str]:
    """In the order of `GROUPS`, those that some case needs."""
    needed = {case.flags for case in cases}
    return [group for group in GROUPS if group in needed]
