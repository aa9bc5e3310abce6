"""`tune --simulate`: the best shape from given numbers, without a server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from sglang_eagle31.maths.cost import RoundCost, break_even_acceptance, break_even_batch
from sglang_eagle31.maths.expected import Floats, ranks
from sglang_eagle31.maths.grid import WIDTHS, Prediction, best, grid, predict
from sglang_eagle31.maths.shape import NO_SPECULATION, Shape

MOST_STEPS = 128


@dataclass(frozen=True)
class Given:
    """What is known, or assumed.

    Attributes:
        acceptance: by depth, of the draft's first choice when all before it are accepted; or a table by depth and rank.
        cost: of a draft step, in target steps.
        verify_slope: what each further token of a pass costs, in target steps.
        free_tokens: tokens of a pass that cost no more than one does.
        concurrency: batch sizes to look at.
        recovery: by rank from the second, the chance that it is right when those before it are wrong; for trees.
        max_steps: deepest draft to look at.
        topk: of the trees to look at.
        draft_tokens: of the trees to look at.
    """

    acceptance: list[float] | list[list[float]]
    cost: float
    verify_slope: float = 0.0
    free_tokens: float = 1.0
    concurrency: list[int] = field(default_factory=lambda: [1])
    recovery: list[float] = field(default_factory=list)
    max_steps: int = 10
    topk: list[int] = field(default_factory=lambda: [2, 4, 8])
    draft_tokens: list[int] = field(default_factory=lambda: list(WIDTHS))

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str) -> Given:
        """From names and numbers; a single number stands for a list of one.

        Raises ValueError, beginning with ``where``, for unknown names, missing ones and values of another type.
        """
        known = {one.name: str(one.type) for one in fields(cls)}
        strange = sorted(set(values) - set(known))
        if strange:
            raise ValueError(f"{where}: unknown {', '.join(strange)}; fix: of {', '.join(known)}")
        missing = [name for name in ("acceptance", "cost") if name not in values]
        if missing:
            raise ValueError(
                f"{where}: {' and '.join(missing)} not given; fix: for example --acceptance 0.8 --cost 0.05"
            )
        return cls(**{name: _typed(value, known[name], f"{where}: {name}") for name, value in values.items()})

    def table(self) -> Floats:
        """``[D, K]`` acceptance by depth and rank.

        Raises ValueError for what are no probabilities.
        """
        rows = [row if isinstance(row, list) else [row] for row in self.acceptance]
        if not rows or len({len(row) for row in rows}) != 1 or not rows[0]:
            raise ValueError("acceptance: expected as many ranks at each depth; fix: pad with 0")
        table = np.array(rows, np.float64)
        for name, numbers in (("acceptance", table), ("recovery", np.array(self.recovery, np.float64))):
            wrong = numbers[~((numbers >= 0) & (numbers <= 1))]
            if wrong.size:
                raise ValueError(f"{name} {wrong[0]:g}: expected a probability, from 0 to 1; fix: 0.8 for 80 %")
        if (table.sum(1) > 1 + 1e-9).any():
            raise ValueError("acceptance: the ranks of one depth add up to more than 1; fix: at most one can be right")
        if table.shape[1] > 1 and self.recovery:
            raise ValueError("acceptance by rank and recovery are both given; fix: leave one out")
        return table if table.shape[1] > 1 else ranks(table[:, 0], self.recovery)

    def shapes(self) -> list[Shape]:
        """The grid; trees only where something is known of the ranks after the first.

        Raises ValueError for sizes out of range.
        """
        for name, numbers, most in (
            ("max_steps", [self.max_steps], MOST_STEPS),
            ("topk", self.topk, 64),
            ("draft_tokens", self.draft_tokens, 1024),
            ("concurrency", self.concurrency, 65536),
        ):
            wrong = [number for number in numbers if not 1 <= number <= most]
            if wrong or not numbers and name == "concurrency":
                raise ValueError(f"{name} {wrong or 'is empty'}: expected 1 to {most}; fix: for example 4")
        trees = self.topk if self.table().shape[1] > 1 else []
        return grid(self.max_steps, trees, self.draft_tokens)


@dataclass(frozen=True)
class Answer:
    """What to do at one batch size.

    Attributes:
        best: the fastest, no speculation included.
        runner_up: the fastest that drafts.
        acceptance: constant acceptance at which the runner-up's chain breaks even; None where it never does, or a tree.
        batch: the largest batch up to which the runner-up is nowhere slower than no speculation; None: not found.
        at_edge: whether a deeper grid may hold a better one.
    """

    best: Prediction
    runner_up: Prediction
    acceptance: float | None
    batch: int | None
    at_edge: bool

    @property
    def speculate(self) -> bool:
        """Whether anything that drafts is faster than not drafting."""
        return self.best.shape != NO_SPECULATION


@dataclass(frozen=True)
class Simulation:
    """Predictions of the whole grid, and an answer for each batch size."""

    given: Given
    table: Floats
    predictions: list[Prediction]
    answers: list[Answer]

    def to_json(self) -> dict[str, Any]:
        """Plain numbers."""
        return {
            "given": asdict(self.given),
            "acceptance_by_depth_and_rank": self.table.tolist(),
            "answers": [
                {
                    "concurrency": one.best.batch,
                    "speculate": one.speculate,
                    "flags": one.best.shape.flags(),
                    "best": _row(one.best),
                    "best_that_drafts": _row(one.runner_up),
                    "break_even_acceptance": one.acceptance,
                    "break_even_concurrency": one.batch,
                    "at_edge": one.at_edge,
                }
                for one in self.answers
            ],
            "grid": [_row(one) for one in self.predictions],
        }


def simulate(given: Given) -> Simulation:
    """Predict the grid. Raises ValueError for numbers that make no sense."""
    table = given.table()
    cost = RoundCost.relative(given.cost, given.verify_slope, given.free_tokens)
    shapes = given.shapes()
    predictions = predict(shapes, cost, table, given.concurrency)
    answers = []
    for start in range(0, len(predictions), len(shapes)):
        here = predictions[start : start + len(shapes)]
        drafting = max(here[1:], key=lambda one: (one.speedup, -one.shape.draft_tokens))
        shape, batch = drafting.shape, drafting.batch
        acceptance = break_even_acceptance(cost, batch, shape.steps) if shape.is_chain else None
        limit = break_even_batch(cost, shape, drafting.expected)
        answers.append(Answer(best(here), drafting, acceptance, limit, shape.steps == given.max_steps))
    return Simulation(given, table, predictions, answers)


def read(path: Path) -> dict[str, Any]:
    """The names and numbers of a file. Raises ValueError for a file that is no JSON object."""
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"--input {path}: cannot be read as JSON ({error}); fix: a file with an object in it"
        ) from error
    if not isinstance(values, dict):
        raise ValueError(f"--input {path}: expected a JSON object, found {type(values).__name__}; fix: {{...}}")
    return values


def _row(one: Prediction) -> dict[str, Any]:
    shape = {"steps": one.shape.steps, "topk": one.shape.topk, "draft_tokens": one.shape.draft_tokens}
    return {
        **shape,
        "concurrency": one.batch,
        "expected_tokens": one.expected,
        "round_time": one.time,
        "time_per_token": one.time_per_token,
        "speedup": one.speedup,
    }


def _typed(value: Any, kind: str, where: str) -> Any:
    items = value if isinstance(value, list) else [value]
    flat = [number for item in items for number in (item if isinstance(item, list) else [item])]
    nested = any(isinstance(item, list) for item in items)
    whole = "int" in kind
    if nested and ("list[list" not in kind or not all(isinstance(item, list) for item in items)):
        raise ValueError(f"{where}: found {value!r}, a list in a list; fix: numbers")
    if isinstance(value, list) and not kind.startswith("list"):
        raise ValueError(f"{where}: found {value!r}, expected one number; fix: one number")
    for number in flat:
        if isinstance(number, bool) or not isinstance(number, int if whole else (int, float)):
            expected = "a whole number" if whole else "a number"
            raise ValueError(f"{where}: found {number!r}, expected {expected}; fix: for example {4 if whole else 0.8}")
    return items if kind.startswith("list") else value
