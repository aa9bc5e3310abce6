"""Ask a running server at every temperature and concurrency, and report."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from tqdm import tqdm

from sglang_eagle31.tools.shared.guard_records import guards, limits
from sglang_eagle31.tools.shared.provenance import provenance
from sglang_eagle31.tools.shared.requests_file import read_requests
from sglang_eagle31.tools.shared.server_info import server_info
from sglang_eagle31.tools.tune.answer import Answer, Budget, Options, answer, turns_of
from sglang_eagle31.tools.tune.client import HttpLoad
from sglang_eagle31.tools.tune.report import Report, closing, table, verdict
from sglang_eagle31.tools.tune.turns import GOALS

LEAST_TOKENS = 16


@dataclass(frozen=True)
class Asked:
    """What to run; every field is an option of ``python -m sglang_eagle31 tune --url``.

    Raises ValueError for numbers out of range.
    """

    url: str
    prompts: Path
    options: Options = field(default_factory=Options)
    concurrency: tuple[int, ...] = (1,)
    temperatures: tuple[float, ...] = (0.0,)
    max_new_tokens: int = 128
    requests: int | None = None
    """Of a turn; None: twice the concurrency."""
    budget: float = 900.0
    out: Path = Path("build/tune.json")

    def __post_init__(self) -> None:
        """Check the numbers."""
        for flag, least, example, values in (
            ("--concurrency", 1, 4, self.concurrency),
            ("--temperature", 0, 0.8, self.temperatures),
            ("--max-new-tokens", LEAST_TOKENS, 128, (self.max_new_tokens,)),
            ("--requests-per-turn", 1, 8, () if self.requests is None else (self.requests,)),
            ("--turns", 1, 3, (self.options.turns,)),
            ("--confirm", 1, 3, (self.options.confirm,)),
            ("--budget-seconds", 1, 900, (self.budget,)),
            ("--margin", 0, 0.03, (self.options.margin,)),
        ):
            wrong = [value for value in values if not least <= value < float("inf")]
            if wrong:
                raise ValueError(f"{flag} {wrong[0]:g}: expected at least {least}; fix: for example {example}")
        if self.options.goal not in GOALS:
            raise ValueError(f"--goal {self.options.goal}: expected one of {', '.join(GOALS)}; fix: --goal latency")


def run(asked: Asked, argv: Sequence[str], console: Console | None = None, as_json: bool = False) -> Report:
    """Measure, print, and write the JSON and a picture beside it.

    Raises ValueError for a file or a server that cannot be used.
    """
    console = console or Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    prompts = read_requests(asked.prompts, flag="--prompts")
    info = server_info(asked.url)
    most = limits(guards(info, asked.url))
    rows = [(temperature, users) for temperature in asked.temperatures for users in asked.concurrency]
    start, answers = time.monotonic(), list[Answer]()
    with tqdm(total=len(rows) * turns_of(most, asked.options), unit="turn", file=sys.stderr) as bar:
        for index, (temperature, users) in enumerate(rows):
            bar.set_description(f"temperature {temperature:g}, concurrency {users}")
            each = asked.requests or 2 * users
            load = HttpLoad(asked.url, prompts, temperature, users, asked.max_new_tokens, each)
            now = time.monotonic()
            budget = Budget(now, max(0.0, start + asked.budget - now) / (len(rows) - index))
            answers.append(answer(load, most, temperature, users, asked.options, budget, bar.update))
    report = Report(most, asked.options, answers, facts(info))
    note = write(report, asked, argv)
    if as_json:
        print(json.dumps(report.to_json(), indent=1))
    else:
        show(report, console)
        console.print(note, markup=False, soft_wrap=True)
    return report


def show(report: Report, console: Console) -> None:
    """Table and words."""
    console.print(table(report))
    for one in report.answers:
        console.print(verdict(one, report.options, report.server["device"]), markup=False, soft_wrap=True)
    for line in closing(report):
        console.print(line, markup=False, soft_wrap=True)


def write(report: Report, asked: Asked, argv: Sequence[str]) -> str:
    """The JSON, and a picture beside it where matplotlib is installed; says what was written."""
    from sglang_eagle31.tools.tune.picture import draw

    asked.out.parent.mkdir(parents=True, exist_ok=True)
    settings = {
        "url": asked.url,
        "prompts_file": asked.prompts.name,
        "max_new_tokens": asked.max_new_tokens,
        "requests_per_turn": asked.requests,
        "budget_seconds": asked.budget,
    }
    record = {**provenance(argv), "settings": settings, **report.to_json()}
    asked.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    picture = asked.out.with_suffix(".png")
    try:
        draw(report, picture)
    except ValueError as error:
        return f"written to {asked.out}; note: {error}"
    return f"written to {asked.out} and {picture.name}"


def facts(info: Mapping[str, Any]) -> dict[str, Any]:
    """Of the server, for the record."""
    ours = info.get("eagle31") or {}
    return {
        "model": info.get("model_path"),
        "head": ours.get("head"),
        "variant": ours.get("variant"),
        "device": info.get("device"),
        "dtype": info.get("dtype"),
        "version": info.get("version"),
    }
