"""Mixed requests at a server with speculation, broken off, bad and good, and the same at one without: what differs?

    python tests/load/soak.py --requests 500 --concurrency 16 --seed 0

Serves a tiny target in float32 and its head, as a chain, as a tree, and with the guard. Every answer must be its
twin's, what was broken off must be the beginning of its twin's, a refusal must have its twin's status; nothing may be
held when the server is idle, and its memory may not grow after the first of the rounds that the requests are sent in.
Then the head is deleted, the scheduler is killed under load, and another server gets SIGTERM under load.

Prints a table, writes build/soak.json. Exit status 1: a difference, a leak, a crash, or an end that was not clean.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/integration")]

import conftest  # noqa: E402
import models  # noqa: E402
from forked import ForkParent  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from load import check, faults, spoken  # noqa: E402
from load.client import Answer  # noqa: E402
from load.traffic import CONTEXT, Request, traffic  # noqa: E402
from sglang_eagle31.tools.shared.provenance import provenance  # noqa: E402
from sglang_eagle31.tools.shared.server_process import Server, ServerFailed, serve_sglang  # noqa: E402

TREES = {"chain": (3, 1, 4), "tree": (5, 4, 16), "guard": (5, 4, 16)}
"""The last one with the guard, which runs other shapes too."""
FLAGS = [flag for flag in conftest.COMMON if flag != "--skip-tokenizer-init"] + ["--context-length", str(CONTEXT)]
PLAIN = ["--disable-overlap-schedule"]
"""Without speculation, SGLang's overlap schedule counts penalties a step late."""
ENV = {**conftest.ENV, "TORCH_COMPILE_DISABLE": "1"}


def main() -> int:
    """Run, print, write; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=500, help="(default %(default)s)")
    parser.add_argument(
        "--concurrency", type=int, default=16, help="requests under way at a time (default %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="the requests are sent in so many parts (default 5)")
    parser.add_argument("--seed", type=int, default=0, help="of the requests (default %(default)s)")
    parser.add_argument("--trees", nargs="+", choices=TREES, default=list(TREES), help="(default: all)")
    parser.add_argument("--deadline", type=float, default=300.0, help="seconds for one answer (default %(default)s)")
    parser.add_argument("--out", type=Path, default=ROOT / "build/soak.json", help="the report (default %(default)s)")
    args = parser.parse_args()
    if args.requests < 10 * args.rounds or args.rounds < 2 or args.concurrency < 1:
        parser.error(
            "--requests, --rounds, --concurrency: expected two rounds of ten requests at least, and one at a time"
        )
    report = {**provenance(sys.argv), "options": {k: str(v) for k, v in vars(args).items()}, **_run(args)}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    Console(highlight=False, width=None if sys.stdout.isatty() else 140).print(table(report))
    print(f"everything: {args.out}")
    return 0 if report["passed"] else 1


def _run(args: argparse.Namespace) -> dict[str, Any]:
    # First the one whose compiled grammar, which SGLang keeps, is 75 MiB: what it keeps is there after the first round.
    load = sorted(traffic(args.requests, args.seed), key=lambda request: request.kind != "bad unicode: 100 kB regex")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        soak = Soak(args, folder)
        try:
            twins = soak.twins(load)
            runs = {name: soak.speculate(name, load, twins) for name in args.trees}
        finally:
            soak.parent.close()
    kinds = Counter(request.kind.split(":")[0] for request in load)
    fates = Counter(request.fate.value for request in load)
    failures = [f"{name}: {text}" for name, run in runs.items() for text in run["failures"]]
    return {
        "passed": not failures,
        "failures": failures,
        "kinds": dict(kinds.most_common()),
        "fates": dict(fates),
        "without speculation": check.outcomes(twins),
        "runs": runs,
    }


class Soak:
    """The servers of one run, forked from one process."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.folder, self.logs = args, folder, ROOT / "build/soak"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.target = spoken.write(folder / "target")
        self.parent = ForkParent(self.logs / "fork-parent.log", ENV)

    def serve(self, name: str, *flags: str) -> Any:
        """A server as a context."""
        return serve_sglang(
            name, self.target, [*FLAGS, *flags], log_dir=self.logs, launch=self.parent.launch, deadline=900.0
        )

    def twins(self, load: list[Request]) -> list[Answer]:
        """What a server without speculation answers to the clients that wait for the end."""
        patient = [check.patient(request) for request in load]
        with self.serve("plain", *PLAIN) as server:
            return faults.send_all(server, patient, self.args.concurrency, self.args.deadline)

    def speculate(self, name: str, load: list[Request], twins: list[Answer]) -> dict[str, Any]:
        """Everything about one tree."""
        begin, head = time.monotonic(), models.write_head(self.folder / name / "head")
        cache = self.folder / name / "cache"
        flags = [*conftest.speculate("EAGLE31", head, *TREES[name]), "--eagle31-cache-dir", str(cache)]
        flags += ["--eagle31-guard", "on" if name == "guard" else "off"]
        try:
            with self.serve(name, *flags) as server:
                run = self.rounds(server, load, twins)
                run["failures"] += self.fault(server, load, twins, [head, cache])
            models.write_head(head)
            with self.serve(f"{name}-sigterm", *flags) as server:
                run["failures"] += self.some("before SIGTERM", server, load, twins)
                run["failures"] += self.end(faults.terminated, server, load, twins)
        except ServerFailed as failed:
            return {"failures": [f"the server failed: {failed}"]}
        return {**run, "seconds": round(time.monotonic() - begin)}

    def rounds(self, server: Server, load: list[Request], twins: list[Answer]) -> dict[str, Any]:
        """The requests in parts, and what the server holds before them and after each."""
        history, answers, statuses = [faults.idle(server)], [], []
        for part in range(self.args.rounds):
            some = load[part * len(load) // self.args.rounds : (part + 1) * len(load) // self.args.rounds]
            answers += faults.send_all(server, some, self.args.concurrency, self.args.deadline)
            history.append(faults.idle(server))
            statuses.append(faults.flush(server))
        differences = check.differences(load, answers, twins)
        failures = [*differences, *check.leaks(history)]
        failures += [f"/flush_cache answered {status}" for status in statuses if status != 200]
        return {
            "failures": failures,
            "differences": len(differences),
            "outcomes": check.outcomes(answers),
            "reasons": check.words(answers),
            "compared whole": sum(a.ended == "finished" and r.compared for r, a in zip(load, answers, strict=True)),
            "memory": [memory.to_json() for memory in history],
            "flushes": statuses,
        }

    def fault(self, server: Server, load: list[Request], twins: list[Answer], folders: list[Path]) -> list[str]:
        """Without its head the server goes on; without its scheduler it ends."""
        for folder in folders:
            shutil.rmtree(folder)
        return self.some("head deleted", server, load, twins) + self.end(faults.killed, server, load, twins)

    def some(self, name: str, server: Server, load: list[Request], twins: list[Answer]) -> list[str]:
        """The differences of the first requests."""
        part = slice(0, 4 * self.args.concurrency)
        answers = faults.send_all(server, load[part], self.args.concurrency, self.args.deadline)
        return [f"{name}: {text}" for text in check.differences(load[part], answers, twins[part])]

    def end(self, how: Any, server: Server, load: list[Request], twins: list[Answer]) -> list[str]:
        """End a server with as many long requests under way as it takes at a time."""
        places = check.busy(load, 16)
        return list(
            how(server, [check.patient(load[at]) for at in places], [twins[at] for at in places], self.args.deadline)
        )


def table(report: dict[str, Any]) -> Table:
    """The figures by tree."""
    shown = Table(title="the same requests with speculation and without")
    for column in ("", "without speculation", *report["runs"]):
        shown.add_column(column, overflow="fold")
    runs = list(report["runs"].values())
    shown.add_row("requests", str(sum(report["fates"].values())), *("" for _ in runs))
    ends = sorted(
        {end for run in (report["without speculation"], *(r.get("outcomes", {}) for r in runs)) for end in run}
    )
    for end in ends:
        counts = (report["without speculation"], *(run.get("outcomes", {}) for run in runs))
        shown.add_row(end, *(str(count.get(end, 0)) for count in counts))
    for name in ("compared whole", "differences", "flushes", "seconds"):
        shown.add_row(name, "", *(str(run.get(name)) for run in runs))
    shown.add_row("slots held, by round", "", *(_each(run, lambda m: str(m["slots"])) for run in runs))
    for process in ("server", "scheduler", "detokenizer"):
        shown.add_row(f"MiB of {process}", "", *(_each(run, lambda m, p=process: f"{m['mib'][p]:.0f}") for run in runs))
    shown.add_row("failures", "", *("\n".join(text[:400] for text in run["failures"][:12]) or "none" for run in runs))
    return shown


def _each(run: dict[str, Any], show: Any) -> str:
    return " ".join(show(memory) for memory in run.get("memory", ()))


if __name__ == "__main__":
    sys.exit(main())
