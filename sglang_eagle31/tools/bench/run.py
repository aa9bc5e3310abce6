"""Measure every arm in turns."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import requests
from tqdm import tqdm

from sglang_eagle31.tools.bench import identity
from sglang_eagle31.tools.bench.arms import Arm
from sglang_eagle31.tools.bench.load import Load
from sglang_eagle31.tools.bench.plan import Ask, Cell, plan
from sglang_eagle31.tools.bench.prompts import PromptSet
from sglang_eagle31.tools.bench.results import Results
from sglang_eagle31.tools.bench.turns import Turns
from sglang_eagle31.tools.shared import counters
from sglang_eagle31.tools.shared.client import Run
from sglang_eagle31.tools.shared.same_answers.ties import TieRule
from sglang_eagle31.tools.shared.server_info import server_info
from sglang_eagle31.tools.shared.server_process import Server


@dataclass(frozen=True)
class Measured:
    """One cell; ``extra`` goes to its raw record."""

    load: Load
    extra: Mapping[str, Any] = field(default_factory=dict)


class Sender(Protocol):
    """Sends requests to a server's address."""

    def warm(self, url: str) -> object:
        """One short request that is not measured: the server may have been stopped, or just have started."""

    def measure(self, url: str, cell: Cell) -> Measured:
        """The requests of a cell."""


class Asker(Protocol):
    """How answers are got and compared; `Identity`, or nothing."""

    def ask(self, server: Server, item: Ask, results: Results) -> None: ...


@dataclass
class Identity:
    """Every arm's greedy answers, compared with the first arm's when that has answered."""

    sets: Mapping[str, PromptSet]
    baseline: str
    count: int
    """Prompts of a set that are answered."""
    tokens: int
    rule: TieRule
    runs: dict[Ask, Run] = field(default_factory=dict)

    def ask(self, server: Server, item: Ask, results: Results) -> None:
        """Get the answers; those of the baseline are compared with all others at once."""
        prompts = self.sets[item.prompts]
        count = min(self.count, len(prompts.chats))
        with tqdm(total=count, desc=f"answers: {item.prompts}, {item.arm}", unit="answer", leave=False) as bar:
            run = identity.answers(server.url, prompts, count, self.tokens, bar.update)
        if item.arm != self.baseline:
            self.runs[item] = run
            return
        for other, theirs in self.runs.items():
            if other.prompts == item.prompts:
                with tqdm(total=count, desc=f"every token: {item.prompts}, {other.arm}", leave=False) as bar:
                    found = identity.compare(server.url, run, theirs, self.rule, bar.update)
                results.compared(item.prompts, other.arm, found)


def sweep(
    arms: Sequence[Arm],
    prompts: Sequence[str],
    concurrency: Sequence[int],
    rounds: int,
    *,
    turns: Turns,
    sender: Sender,
    results: Results,
    asker: Asker | None,
) -> None:
    """Measure what ``results`` does not have yet; it is written after every cell.

    Raises ServerFailed for a server that does not come up or dies, RuntimeError for a request that fails.
    """
    names = [arm.name for arm in arms]
    by_name = dict(zip(names, arms, strict=True))
    done = results.done()
    visits = list(plan(names, prompts, concurrency, rounds, kept=turns.keep, ask=asker is not None, done=done))
    with tqdm(total=sum(map(len, visits)), unit="cell", file=sys.stdout) as bar:
        for visit in visits:
            with turns(by_name[visit[0].arm]) as server:
                for item in visit:
                    bar.set_description(describe(item))
                    _do(item, server, sender, results, asker)
                    bar.update()


def describe(item: Cell | Ask) -> str:
    """For the progress bar."""
    if isinstance(item, Ask):
        return f"answers: {item.prompts}, {item.arm}"
    return f"round {item.round}: {item.prompts}, concurrency {item.concurrency or 'as recorded'}, {item.arm}"


def _do(item: Cell | Ask, server: Server, sender: Sender, results: Results, asker: Asker | None) -> None:
    try:
        if isinstance(item, Ask):
            assert asker is not None
            asker.ask(server, item, results)
        else:
            results.add(item, cell(server.url, item, sender))
    except (RuntimeError, ValueError, requests.RequestException) as error:
        if server.alive():
            if isinstance(error, requests.RequestException):
                raise RuntimeError(f"server {server.name}: {error}; log: {server.log_path}") from error
            raise
        raise server.failed("is gone") from error


def cell(url: str, item: Cell, sender: Sender) -> dict[str, Any]:
    """The raw record of one cell: the load's, and what the server counted meanwhile."""
    sender.warm(url)
    before = counters.read(server_info(url))
    measured = sender.measure(url, item)
    info = server_info(url)
    counted = counters.read(info) - before
    shapes = [guard.get("running", {}) for guard in counters.guards(info)]
    more = {"running": shapes[0]} if shapes else {}  # those of the other schedulers are alike
    return {**measured.load.to_json(), **counted.to_json(), **more, **measured.extra}


def folder_of(out: Path) -> Path:
    """For logs."""
    return Path("build/bench") / out.stem
