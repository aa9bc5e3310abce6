"""Mixed requests at a concurrency of 16, many of them broken off or bad: EAGLE31 answers as a server without.

The long form, with the memory of the processes, is ``tests/load/soak.py``; that its checks see what is wrong is in
``tests/unit/test_load_check.py``.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import pytest
from conftest import COMMON, speculate
from load import check, faults, spoken
from load.client import Answer
from load.traffic import CONTEXT, Request, traffic

from sglang_eagle31.tools.shared.server_process import Server

TREES = {"chain": (3, 1, 4), "tree": (5, 4, 16)}
FLAGS = [flag for flag in COMMON if flag != "--skip-tokenizer-init"] + ["--context-length", str(CONTEXT)]
REQUESTS, CONCURRENCY, DEADLINE = 80, 16, 120.0
COMPILED = ("repetition penalty",)
"""SGLang's sampler compiles it, and the servers of the tests have no compiler."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("load")
    spoken.write(place / "target")
    return place


@pytest.fixture(scope="module")
def load() -> list[Request]:
    return traffic(REQUESTS, seed=1, without=COMPILED)


@pytest.fixture(scope="module")
def twins(start: Any, folder: Path, load: list[Request]) -> list[Answer]:
    """Without speculation, and without the overlap schedule, which counts penalties a step late."""
    with start("load-plain", "--disable-overlap-schedule", common=FLAGS, target=folder / "target") as server:
        return faults.send_all(server, [check.patient(request) for request in load], CONCURRENCY, DEADLINE)


def ended(how: Callable[..., list[str]], server: Server, load: list[Request], twins: list[Answer]) -> list[str]:
    """What is wrong with how a server ends that has long requests under way."""
    places = check.busy(load, CONCURRENCY)
    assert len(places) > 4
    return how(server, [check.patient(load[at]) for at in places], [twins[at] for at in places], DEADLINE)


def served(server: Server, load: list[Request], twins: list[Answer]) -> Counter[str]:
    """Send everything; how the answers ended. None differs, and nothing is left of them."""
    before = faults.idle(server)
    answers = faults.send_all(server, load, CONCURRENCY, DEADLINE)
    after = faults.idle(server)
    assert check.differences(load, answers, twins) == []
    assert (before.slots, before.requests) == (after.slots, after.requests) == (0, 0)
    assert faults.flush(server) == 200
    return Counter(answer.ended for answer in answers)


@pytest.mark.full
def test_a_chain_under_load_without_its_head_and_without_its_scheduler(
    start: Any, folder: Path, load: list[Request], twins: list[Answer]
) -> None:
    head, cache = models.write_head(folder / "head"), folder / "cache"
    flags = [*speculate("EAGLE31", head, *TREES["chain"]), "--eagle31-cache-dir", str(cache)]
    with start("load-chain", *flags, common=FLAGS, target=folder / "target") as server:
        for gone in (head, cache):
            shutil.rmtree(gone)
        ends = served(server, load, twins)
        assert min(ends[end] for end in ("finished", "refused", "cut", "aborted")) > 0 == ends["lost"]
        assert ended(faults.killed, server, load, twins) == []


@pytest.mark.full
def test_a_tree_under_load_and_told_to_end(start: Any, folder: Path, load: list[Request], twins: list[Answer]) -> None:
    flags = speculate("EAGLE31", models.write_head(folder / "tree"), *TREES["tree"])
    with start("load-tree", *flags, common=FLAGS, target=folder / "target") as server:
        ends = served(server, load, twins)
        assert min(ends[end] for end in ("finished", "refused", "cut", "aborted")) > 0 == ends["lost"]
        assert ended(faults.terminated, server, load, twins) == []
