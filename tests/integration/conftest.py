"""Real SGLang servers on tiny models: the models, a plain server's answers, and what is asked of every server."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import models
import pytest
import requests
from forked import ForkParent

from sglang_eagle31.tools.shared.server_process import Server, ServerFailed, popen, serve_sglang

START = 300.0
ANSWER = 240.0
ENV = {
    "CC": "/nonexistent",
    "CXX": "/nonexistent",
    "OMP_NUM_THREADS": "1",
    "SGLANG_EAGLE31_OPTIONS": '{"guard": "off"}',
}
"""No compiler, as on many machines; one thread, for with tiny models more of them only wait for each other; and no
guard but where a test asks for it, for a draft seldom pays with models that small."""
COMMON = (
    "--device cpu --dtype float32 --skip-tokenizer-init --max-total-tokens 16000 --max-running-requests 16 "
    "--chunked-prefill-size 256 --random-seed 0"
).split()


@dataclass
class Answers:
    """Token ids of every request, and SGLang's per-request facts."""

    ids: list[list[int]] = field(default_factory=list)
    meta: list[dict[str, Any]] = field(default_factory=list)

    def accept_length(self) -> float:
        """Tokens a verify step, bonus included, over all requests."""
        return sum(m["completion_tokens"] for m in self.meta) / sum(m["spec_verify_ct"] for m in self.meta)


def generate(server: Server, prompts: list[list[int]], tokens: int, **more: Any) -> list[dict[str, Any]]:
    """One batched greedy request; SGLang's answers in order."""
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    body = {"input_ids": prompts, "sampling_params": sampling, **more}
    response = requests.post(f"{server.url}/generate", json=body, timeout=ANSWER)
    response.raise_for_status()
    answers: list[dict[str, Any]] = response.json()
    return answers


def prompt(length: int, seed: int) -> list[int]:
    """Random tokens, none of them special."""
    draw = random.Random(seed)
    return [draw.randrange(3, models.VOCAB) for _ in range(length)]


def ask_everything(server: Server) -> Answers:
    """Batches of 1, 4 and 16 of ragged lengths, a shared prefix twice, a chunked prompt and a long context."""
    prefix = prompt(300, 7)
    jobs = [
        ([prompt(17, 1)], 48),
        ([prompt(length, length) for length in (4, 60, 33, 200)], 48),
        ([prompt(5 + 9 * i, 100 + i) for i in range(16)], 32),
        ([prefix + prompt(20, 50 + i) for i in range(4)], 24),
        ([prefix + prompt(20, 60 + i) for i in range(4)], 24),
        ([prompt(1500, 8)], 32),
        ([prompt(4000, 9)], 32),
    ]
    answers = Answers()
    for prompts, tokens in jobs:
        for answer in generate(server, prompts, tokens):
            answers.ids.append(answer["output_ids"])
            answers.meta.append(answer["meta_info"])
    return answers


def speculate(algorithm: str, head: Path, steps: int, topk: int, draft_tokens: int) -> list[str]:
    """The flags of a speculative server."""
    flags = ["--speculative-algorithm", algorithm, "--speculative-draft-model-path", str(head)]
    flags += ["--speculative-num-steps", str(steps), "--speculative-eagle-topk", str(topk)]
    return [*flags, "--speculative-num-draft-tokens", str(draft_tokens)]


@dataclass(frozen=True)
class Models:
    """Folders of the tiny models."""

    target: Path
    eagle31: Path
    eagle3: Path
    wide: Path
    eagle1: Path


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """The target and its heads, written once."""
    folder = tmp_path_factory.mktemp("tiny")
    return Models(
        models.write_target(folder / "target"),
        models.write_head(folder / "eagle31"),
        models.write_head(folder / "eagle3", "eagle3"),
        models.write_wide_head(folder / "wide"),
        models.write_eagle1_head(folder / "eagle1"),
    )


@pytest.fixture(scope="session")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where servers log; pytest keeps the last runs."""
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def fork_parent(log_dir: Path) -> Iterator[ForkParent]:
    """The process from which servers are forked; it has imported SGLang, and nothing else."""
    parent = ForkParent(log_dir / "fork-parent.log", ENV)
    yield parent
    parent.close()


@pytest.fixture(scope="session")
def start(tiny: Models, log_dir: Path, request: pytest.FixtureRequest) -> Any:
    """Start a server of the tiny target.

    It is forked, except with ``command_line`` and with environment of its own: then it is started as users do.
    """

    @contextmanager
    def run(
        name: str,
        *flags: str,
        common: list[str] = COMMON,
        target: Path = tiny.target,
        deadline: float = START,
        command_line: bool = False,
        **env: str,
    ) -> Iterator[Server]:
        slow = command_line or bool(env)
        with serve_sglang(
            name,
            target,
            [*common, *flags],
            log_dir=log_dir,
            env={**ENV, **env} if slow else {},
            deadline=deadline,
            launch=popen if slow else request.getfixturevalue("fork_parent").launch,
        ) as server:
            yield server

    return run


@dataclass(frozen=True)
class Attempt:
    """How far a server came: ready, or ended by itself with ``exit_code`` (None: ``deadline`` seconds had passed)."""

    ready: bool
    exit_code: int | None
    log: str


@pytest.fixture(scope="session")
def attempt(start: Any, log_dir: Path) -> Any:
    """Start a server that may refuse or crash, call ``use`` with it if it is ready, and end it.

    A server that fails while ``use`` runs is not ready either. Other errors of ``use`` are raised.
    """

    def run(
        name: str, *flags: str, deadline: float = START, use: Callable[[Server], None] | None = None, **options: Any
    ) -> Attempt:
        ready, exit_code, log_path = True, None, log_dir / f"{name}.log"
        try:
            with start(name, *flags, deadline=deadline, **options) as server:
                if use is not None:
                    use(server)
        except ServerFailed as failed:
            ready, exit_code = False, failed.exit_code
        return Attempt(ready, exit_code, log_path.read_text(errors="replace"))

    return run


@dataclass(frozen=True)
class Plain:
    """What the server without speculation answered."""

    answers: Answers
    info: dict[str, Any]
    log: str


@pytest.fixture(scope="session")
def plain(start: Any) -> Plain:
    """Every answer of a server without speculation; it is gone when the fixture returns."""
    with start("plain", CC="", CXX="") as server:
        answers = ask_everything(server)
        info = requests.get(f"{server.url}/server_info", timeout=60).json()
        return Plain(answers, info, server.log_path.read_text())
