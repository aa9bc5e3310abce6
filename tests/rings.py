"""Run the rings of tests one after the other, each to its end, and say at the end which failed.

python tests/rings.py                  the core: what `make test` runs
python tests/rings.py --all            with the tests marked `full`: what `make test-all` and CI run
python tests/rings.py unit seams       some rings only
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_eagle31.server.cpu import memory

ROOT = Path(__file__).resolve().parents[1]
GRACE = 60
"""Seconds from SIGTERM to SIGKILL, in which running tests end their servers."""
SLOWEST = 10
"""Tests whose times are printed."""
WORKER_BYTES = 5 << 30
"""Of memory that a process with its servers may take."""
NO_TESTS = 5
"""pytest's exit status where nothing was selected."""


@dataclass(frozen=True)
class Ring:
    """Tests that need the same things.

    Attributes:
        what: shown while it runs.
        paths: below ``tests/``.
        deadline: minutes after which it is ended; far above what it takes on two slow cores.
    """

    what: str
    paths: tuple[str, ...]
    deadline: int


RINGS = {
    "unit": Ring("torch only, seconds a file", ("unit",), 20),
    "seams": Ring("the seams against the installed SGLang", ("seams",), 10),
    "rollback": Ring("SGLang's allocators and caches against a model", ("rollback",), 8),
    "served": Ring("real SGLang servers", ("integration", "e2e"), 60),
}


def command(ring: Ring, full: bool, workers: int) -> list[str]:
    """pytest's; tests of one file stay in one process, for they share its servers."""
    chosen = "not gpu" if full else "not gpu and not full"
    found = [sys.executable, "-m", "pytest", "-q", "-m", chosen, f"--durations={SLOWEST}"]
    if workers > 1:
        found += ["-n", str(workers), "--dist", "loadfile"]
    return [*found, *(str(Path("tests") / path) for path in ring.paths)]


def run(name: str, full: bool, workers: int) -> tuple[bool, float]:
    """Whether the ring passed, and its seconds."""
    ring = RINGS[name]
    print(f"[test] {name}: {ring.what}", flush=True)
    start = time.monotonic()
    limit = ["timeout", "--foreground", f"--kill-after={GRACE}", str(60 * ring.deadline)]
    env = {**os.environ, **({"OMP_NUM_THREADS": "1"} if workers > 1 else {})}  # else they wait for each other's threads
    status = subprocess.run([*limit, *command(ring, full, workers)], cwd=ROOT, env=env, check=False).returncode
    if status == 124:
        print(f"[test] {name}: ended after {ring.deadline} minutes", flush=True)
    return status in (0, NO_TESTS), time.monotonic() - start


def workers() -> int:
    """One a core, as far as the free memory goes: each has servers of its own."""
    return max(1, min(len(os.sched_getaffinity(0)), memory.available() // WORKER_BYTES))


def main(argv: Sequence[str] | None = None) -> int:
    """1 where a ring failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rings", nargs="*", metavar="RING", help=f"of {', '.join(RINGS)} (default: all of them)")
    parser.add_argument("--all", action="store_true", help="with the tests marked full")
    parser.add_argument("--workers", type=int, default=workers(), help="default: as many as cores and memory allow")
    args = parser.parse_args(argv)
    unknown = [name for name in args.rings if name not in RINGS]
    if unknown:
        parser.error(f"{unknown[0]}: no such ring; fix: of {', '.join(RINGS)}")
    results = {name: run(name, args.all, args.workers) for name in args.rings or RINGS}
    for name, (passed, seconds) in results.items():
        print(f"[test] {name:<10} {'passed' if passed else 'FAILED'}  {seconds / 60:5.1f} min")
    failed = [name for name, (passed, _) in results.items() if not passed]
    print(f"[test] failed: {', '.join(failed)}" if failed else "[test] all rings passed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
