"""Fakes of a benchmark: servers that only remember when they ran, and a sender with set speeds."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from sglang_eagle31.tools.bench.load import Load
from sglang_eagle31.tools.bench.run import Measured
from sglang_eagle31.tools.shared.server_process import ServerFailed

CONDITIONS = {
    "argv": ["sglang_eagle31/__main__.py", "bench", "--arms", "none,guard"],
    "versions": {"python": "3.11", "sglang": "0.5.23", "gone": None},
    "git": "abc",
    "cpu": "A CPU",
    "cores": 2,
    "threads": "2",
    "device": "cpu",
    "dtype": "bfloat16",
    "model": "target",
    "head": "head",
    "head_sha256": "00",
    "shape": "3,1,4",
    "tokens": 64,
    "requests": {"1": 8},
    "rounds": 2,
    "servers": "kept",
    "server_flags": ["--device", "cpu"],
    "arms": {"none": [], "guard": ["--speculative-algorithm", "EAGLE31"]},
    "left_out": {},
    "prompts": {"chat": {"count": 8, "digest": "11", "tokens": {"least": 5, "median": 9, "most": 30}}},
    "started": "2026-01-01T00:00:00Z",
}


def load(rate, **more):
    """A load of 10 requests at a rate."""
    fields = {
        "requests": 10,
        "output_tokens": 100,
        "seconds": 100 / rate,
        "output_tok_s": rate,
        "user_tok_s": rate / 2,
        "ttft_ms": 50.0,
        "tpot_ms": 2000 / rate,
        "itl_ms_p50": 2000 / rate,
        "itl_ms_p99": 4000 / rate,
    }
    return Load(**{**fields, **more})


def raw(turn, rate, **more):
    """One round of a cell."""
    return {"round": turn, **load(rate).to_json(), **more}


class FakeTurns:
    """Hands out a server for each arm and notes every turn."""

    def __init__(self, keep=True, alive=True):
        self.keep, self.alive, self.log, self.urls = keep, alive, [], {}

    @contextmanager
    def __call__(self, arm):
        self.log.append(arm.name)
        yield SimpleNamespace(
            name=arm.name,
            url=self.urls.get(arm.name, f"fake:{arm.name}"),
            alive=lambda: self.alive,
            log_path=Path("fake.log"),
            failed=lambda what: ServerFailed(f"server {arm.name} {what}; last words", 7),
        )


class FakeSender:
    """Rates by arm and concurrency; fails at one cell if it is told to."""

    def __init__(self, rates, fail=None):
        self.rates, self.fail, self.warmed, self.measured = rates, fail, [], []

    def warm(self, url):
        self.warmed.append(url)

    def measure(self, url, cell):
        self.measured.append(cell)
        if cell == self.fail:
            raise RuntimeError("a request failed")
        return Measured(load(self.rates[cell.arm] / cell.concurrency))
