"""Ask every server every question under every condition, and report."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import requests
from rich.console import Console
from tqdm import tqdm

from sglang_eagle31.tools.robust.ask import ask_all
from sglang_eagle31.tools.robust.comparison import caveats, compare
from sglang_eagle31.tools.robust.diagnose import diagnose
from sglang_eagle31.tools.robust.measurement import HeadResult, deepest, measure
from sglang_eagle31.tools.robust.report import Report, render
from sglang_eagle31.tools.shared.conditions import Condition, context_name
from sglang_eagle31.tools.shared.demo_model import PROMPTS
from sglang_eagle31.tools.shared.filler import PYTHON, Filler
from sglang_eagle31.tools.shared.prompts import Case, Messages, Renderer, condition_cases, read_prompts
from sglang_eagle31.tools.shared.provenance import provenance
from sglang_eagle31.tools.shared.served_head import Head, parse_urls, read_heads


@dataclass(frozen=True)
class Options:
    """What to run; every field is an option of ``python -m sglang_eagle31 robust``."""

    urls: list[str]
    model: Path
    conditions: tuple[Condition, ...]
    contexts: tuple[int, ...]
    prompts: Path = PROMPTS
    filler: Path | None = None
    limit: int | None = None
    max_tokens: int = 128
    concurrency: int = 1
    seed: int = 0
    out: Path = Path("build/robust")


def run(options: Options, argv: Sequence[str], console: Console | None = None) -> Report:
    """Measure, and write ``robust.json`` and ``robust.png`` to ``options.out``.

    Raises ValueError for options that cannot work and for servers that refuse, disappear or do not speculate.
    """
    console = console or Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    chats = read_prompts(options.prompts, options.limit)
    renderer = Renderer.load(options.model)
    heads = read_heads(parse_urls(options.urls))
    groups, notes = make_cases(options, renderer, chats, heads)
    if not options.out.is_dir():
        options.out.mkdir(parents=True)
    results = [_measure_head(head, groups, options, notes) for head in heads]
    report = Report(
        results=results,
        findings=[finding for result in results for finding in diagnose(result, options.seed)],
        comparisons=compare(results, options.seed) if len(results) > 1 else [],
        notes=[*renderer.notes(), *notes, *caveats(results)],
        start=renderer.start,
        settings={
            "model": str(options.model),
            "prompts_file": options.prompts.name,
            "prompts": len(chats),
            "filler": options.filler.name if options.filler else PYTHON,
            "max_tokens": options.max_tokens,
            "concurrency": options.concurrency,
            "seed": options.seed,
            "temperature": 0,
        },
    )
    _write(report, argv, options.out, console)
    return report


def make_cases(
    options: Options, renderer: Renderer, chats: Sequence[Messages], heads: Sequence[Head]
) -> tuple[dict[str, list[Case]], list[str]]:
    """Every case by condition, the same for all servers, and notes on what was left out.

    Raises ValueError if prompts of ``regular`` do not fit a server.
    """
    most = min((head.most_input for head in heads if head.most_input), default=None)
    groups = {c.name: condition_cases(renderer, c.name, chats) for c in options.conditions}
    notes = [f"{name} left out: no such thing here (see start token)" for name, cases in groups.items() if not cases]
    if options.contexts:
        path, seed = options.filler, options.seed
        filler = Filler.of_file(path, renderer, seed) if path else Filler.of_python(renderer, seed)
        for tokens in options.contexts:
            if most is not None and tokens + options.max_tokens > most:
                notes.append(
                    f"{context_name(tokens)} left out: with its answer more than the {most} tokens of a server"
                )
                continue
            groups[context_name(tokens)] = found = filler.cases(tokens, chats)
            if len(found) < len(chats):
                notes.append(
                    f"{context_name(tokens)}: {len(found)} of {len(chats)} questions fit with text around them"
                )
    for name, cases in groups.items():
        fits = [case for case in cases if most is None or len(case.ids) + options.max_tokens <= most]
        if len(fits) < len(cases):
            notes.append(
                f"{name}: {len(cases) - len(fits)} questions left out, longer than the {most} tokens of a server"
            )
        groups[name] = fits
    if not groups["regular"]:
        raise ValueError(
            f"--max-tokens {options.max_tokens}: no question with its answer fits the {most} tokens that a server "
            "takes; fix: fewer --max-tokens, or a server with a larger --context-length and --max-total-tokens"
        )
    return {name: cases for name, cases in groups.items() if cases}, notes


def _measure_head(head: Head, groups: dict[str, list[Case]], options: Options, notes: list[str]) -> HeadResult:
    cases = [case for group in groups.values() for case in group]
    try:
        with tqdm(total=len(cases), desc=head.name, unit="answer", file=sys.stdout) as bar:
            replies = ask_all(head.url, cases, options.max_tokens, options.concurrency, bar.update, head.pinned)
    except requests.RequestException as error:
        raise ValueError(
            f"--url {head.url}: the server stopped answering ({error}); fix: see its log, and start it again"
        ) from error
    depth = deepest(replies, head.steps)
    measured = {}
    for name in groups:
        found = measure(name, [reply for reply in replies if reply.case.condition == name], depth, options.seed)
        if found is None:
            notes.append(f"{head.name}: {name} has no verify round; its answers end with their first token")
        else:
            measured[name] = found
    if not measured:
        raise ValueError(
            f"--url {head.url}: no answer had a verify round, so there is nothing to report; fix: more --max-tokens, "
            "and prompts whose answers are longer than one token"
        )
    return HeadResult(head, measured)


def _write(report: Report, argv: Sequence[str], out: Path, console: Console) -> None:
    from sglang_eagle31.tools.robust.picture import draw

    record = {**provenance(argv), **report.to_json()}
    (out / "robust.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    console.print(render(report))
    try:
        draw(report.results, out / "robust.png")
    except ValueError as error:
        console.print(f"note: {error}", markup=False)
    console.print(f"written to {out}: robust.json, and robust.png", markup=False)
