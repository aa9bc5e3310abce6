"""The file of a run: written after every cell, and read again to go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_eagle31.tools.bench import summary
from sglang_eagle31.tools.bench.plan import Ask, Cell, Key

FREE = ("argv", "rounds", "left_out", "started")
"""Conditions that two runs whose cells are put together may differ in."""


class Results:
    """What was measured so far. ``baseline`` is the arm that the others are compared with."""

    def __init__(self, path: Path, baseline: str, conditions: Mapping[str, Any]) -> None:
        self.path, self.baseline = path, baseline
        self.conditions: dict[str, Any] = json.loads(portable(json.dumps(conditions)))
        self.rounds: dict[Key, list[summary.Raw]] = {}
        self.identity: dict[str, dict[str, Any]] = {}

    def resume(self) -> None:
        """Take over what the file has, if there is one.

        Raises ValueError for a file that is none of ours, and where its conditions are others.
        """
        if not self.path.exists():
            return
        try:
            record = json.loads(self.path.read_text(encoding="utf-8"))
            found = {name: value for name, value in record["conditions"].items() if name not in FREE}
            entries, identity = record["sweep"], record["identity"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"--resume: {self.path} is no result of bench ({error!r}); fix: another --out") from error
        mine = {name: value for name, value in self.conditions.items() if name not in FREE}
        other = [name for name in {**mine, **found} if mine.get(name) != found.get(name)]
        if other:
            name = other[0]
            raise ValueError(
                f"--resume: {self.path} was measured under other conditions ({', '.join(other)}; {name}: "
                f"{found.get(name)!r}, now {mine.get(name)!r}); fix: the same options, or leave --resume out"
            )
        for entry in entries:
            self.rounds[entry["arm"], entry["prompts"], entry["concurrency"] or 0] = list(entry["rounds"])
        self.identity = identity

    def done(self) -> set[Cell | Ask]:
        """What need not be measured again; answers count once every arm has been compared."""
        cells = {Cell(*key, raw["round"]) for key, raws in self.rounds.items() for raw in raws}
        arms = self.conditions["arms"]
        asked = [name for name, found in self.identity.items() if {*found, self.baseline} >= set(arms)]
        return cells | {Ask(arm, name) for arm in arms for name in asked}

    def add(self, cell: Cell, raw: summary.Raw) -> None:
        """Keep one measurement, and write the file."""
        self.rounds.setdefault(cell.key, []).append({"round": cell.round, **raw})
        self.save()

    def compared(self, prompts: str, arm: str, record: dict[str, Any]) -> None:
        """Keep the comparison of an arm's answers."""
        self.identity.setdefault(prompts, {})[arm] = record
        self.save()

    def to_json(self) -> dict[str, Any]:
        """The layout of docs/performance.md."""
        entries = summary.sweep(self._ordered(), self.baseline, self.identity)
        for entry in entries:
            entry["concurrency"] = entry["concurrency"] or None
        return {
            "sweep": entries,
            "break_even": summary.break_even(entries, self.baseline),
            "identity": self.identity,
            "conditions": self.conditions,
        }

    def save(self) -> None:
        """Write the file; it is never seen half written."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(f".{self.path.name}.new")
        fresh.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        fresh.replace(self.path)

    def _ordered(self) -> dict[Key, list[summary.Raw]]:
        """By prompt set, concurrency and arm, as the options name them."""
        names, arms = list(self.conditions["prompts"]), list(self.conditions["arms"])

        def place(key: Key) -> tuple[int, int, int]:
            arm, prompts, concurrency = key
            return names.index(prompts), concurrency, arms.index(arm)

        return {key: self.rounds[key] for key in sorted(self.rounds, key=place)}


def portable(text: str, root: Path | None = None) -> str:
    """Without this machine's folders: relative to ``root`` (where the command was called), or to the home directory."""
    return text.replace(f"{root or Path.cwd()}/", "").replace(str(Path.home()), "~")
