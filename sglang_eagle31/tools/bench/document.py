"""The generated parts of a page: conditions and tables of a sweep, between two markers; the first names its result."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sglang_eagle31.tools.bench.report import ACCEPTANCE, COLUMNS, cells, say_break_even, say_identity

END = "<!-- end -->"
MISSING = "Not measured in this checkout: `make bench` measures and writes this part."


def begin(results: Path) -> str:
    """The marker of a result's part: ``<!-- bench -->`` for bench.json."""
    return f"<!-- {results.stem} -->"


def fill(page: Path, results: Path) -> str:
    """The page with the results' part made anew; a result that is not there is said.

    Raises ValueError for a page without the markers, and for a file that is no result.
    """
    text = page.read_text(encoding="utf-8")
    block = re.compile(rf"({re.escape(begin(results))}\n).*?({re.escape(END)})", re.DOTALL)
    if not block.search(text):
        raise ValueError(
            f"--document {page}: no {begin(results)} ... {END} in it; fix: put the two where the tables belong"
        )
    body = MISSING
    if results.exists():
        try:
            body = "\n".join(lines(json.loads(results.read_text(encoding="utf-8")), results))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{results}: no result of bench ({error!r}); fix: measure again") from error
    return block.sub(lambda found: f"{found[1]}{body}\n{found[2]}", text)


def lines(record: Mapping[str, Any], results: Path) -> Iterator[str]:
    """The part in Markdown."""
    yield from _conditions(record["conditions"])
    names = dict.fromkeys(entry["prompts"] for entry in record["sweep"])
    for name in names:
        about = record["conditions"]["prompts"][name]
        yield from ("", f"### {name}", "")
        yield f"{about['count']} prompts of {_span(about['tokens'])} tokens."
        yield ""
        yield "| " + " | ".join((*COLUMNS, *ACCEPTANCE)) + " |"
        yield "| " + " | ".join("---" for _ in (*COLUMNS, *ACCEPTANCE)) + " |"
        yield from (f"| {' | '.join(cells(entry))} |" for entry in record["sweep"] if entry["prompts"] == name)
        yield ""
        for arm, found in record["break_even"].get(name, {}).items():
            yield f"- `{arm}` {say_break_even(found)}."
        for arm, found in record["identity"].get(name, {}).items():
            yield from textwrap.wrap(f"- `{arm}`: {say_identity(found)}.", 120, subsequent_indent="  ")
    picture = results.with_suffix(".png")
    if picture.exists():
        yield from ("", f"![ratio by concurrency]({picture.parent.name}/{picture.name})")


def _conditions(found: Mapping[str, Any]) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items() if version)
    kept = found["servers"] == "kept"
    sentences = [
        f"**Conditions**: {found['cpu']}, {found['cores']} cores, device {found['device']}, {found['dtype']}; "
        f"{versions}; commit `{found['git']}`.",
        f"Target {found['model']}, head {found['head']}, shape {found['shape']} (steps, topk, draft tokens).",
        f"Greedy answers of at most {found['tokens']} tokens; medians of {found['rounds']} rounds, a ratio is taken "
        "within a round.",
        "All servers are up, and those whose turn it is not are stopped." if kept else "One server at a time.",
        "ITL: tokens that come together share the time since the last ones.",
        *(f"Left out: `{arm}` ({why})." for arm, why in found["left_out"].items()),
    ]
    yield from textwrap.wrap(" ".join(sentences), 120, break_long_words=False, break_on_hyphens=False)
    yield ""
    yield "```bash"
    yield f"python -m sglang_eagle31 {shlex.join(found['argv'][1:])}"
    yield "```"


def _span(tokens: Mapping[str, int]) -> str:
    return f"{tokens['least']} to {tokens['most']} (median {tokens['median']})"
