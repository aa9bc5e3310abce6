"""The sweep as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sglang_eagle31.tools.shared.same_answers import tokens

COLUMNS = ("concurrency", "arm", "tok/s", "ratio", "tok/s a user", "TTFT ms", "TPOT ms", "ITL p50", "p99")
ACCEPTANCE = ("accept length", "by depth", "fallback")


def render(record: Mapping[str, Any]) -> Group:
    """A table for each prompt set, the break-even concurrencies, and whether the answers are the same."""
    parts: list[RenderableType] = []
    for prompts in dict.fromkeys(entry["prompts"] for entry in record["sweep"]):
        parts.append(_table(prompts, [entry for entry in record["sweep"] if entry["prompts"] == prompts]))
        for arm, found in record["break_even"].get(prompts, {}).items():
            parts.append(Text(f"  {arm}: {say_break_even(found)}"))
        for arm, found in record["identity"].get(prompts, {}).items():
            parts.append(Text(f"  {arm}: {say_identity(found)}"))
    for arm, why in record["conditions"].get("left_out", {}).items():
        parts.append(Text(f"left out: {arm} ({why})"))
    return Group(*parts)


def _table(prompts: str, entries: Sequence[Mapping[str, Any]]) -> Table:
    rounds = max(len(entry["rounds"]) for entry in entries)
    table = Table(title=f"{prompts}: medians of {rounds} round{'s' if rounds > 1 else ''}")
    for name in (*COLUMNS, *ACCEPTANCE):
        table.add_column(name, justify="left" if name == "arm" else "right")
    for entry in entries:
        table.add_row(*cells(entry))
    return table


def cells(entry: Mapping[str, Any]) -> list[str]:
    """A row, for `COLUMNS` and `ACCEPTANCE`."""
    ratio, length, fallback = entry["ratio"], entry["accept_length"], entry["fallback_ratio"]
    return [
        str(entry["concurrency"] or "recorded"),
        entry["arm"],
        f"{entry['output_tok_s']:.1f}",
        "" if ratio is None else f"{ratio:.2f}",
        f"{entry['user_tok_s']:.1f}",
        f"{entry['ttft_ms']:.0f}",
        f"{entry['tpot_ms']:.1f}",
        f"{entry['itl_ms_p50']:.1f}",
        f"{entry['itl_ms_p99']:.1f}",
        "" if length is None else f"{length:.2f}",
        " ".join(f"{share:.0%}" for share in entry["accept_by_depth"]),
        "" if fallback is None else f"{fallback:.0%}",
    ]


def say_break_even(found: Mapping[str, Any]) -> str:
    """Up to which concurrency it pays."""
    if found["concurrency"] is None:
        return "does not pay at the lowest concurrency measured"
    if found["beyond"]:
        return f"pays up to the highest concurrency measured, {found['concurrency']:.0f}"
    return f"pays up to concurrency {found['concurrency']:.0f}"


def say_identity(found: Mapping[str, Any]) -> str:
    """Whether the greedy answers are those of the first arm."""
    if not found["prompts"]:
        return "no greedy answer to compare"
    same = found["prompts"] - found["different"] - found.get("tie", 0)
    text = f"{same} of {found['prompts']} greedy answers are the same"
    if found.get("tie"):
        text += f", {found['tie']} part at a tie of two tokens"
    text += f", {found['different']} differ"
    return f"{text}; {tokens.say(found)}" if "tokens_checked" in found else text
