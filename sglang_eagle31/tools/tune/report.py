"""The answers as a record for JSON, as a table and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import geometric_mean
from typing import Any

from rich.table import Table

from sglang_eagle31.maths.grid import Prediction
from sglang_eagle31.maths.shape import NO_SPECULATION, Shape
from sglang_eagle31.tools.shared.guard_records import Limits
from sglang_eagle31.tools.tune.answer import Answer, Options, Realised
from sglang_eagle31.tools.tune.reasons import reasons

UNITS = {"latency": "tok/s a user", "throughput": "tok/s in all"}


@dataclass(frozen=True)
class Report:
    """All answers of one run, temperature by temperature, with the server they are of."""

    limits: Limits
    options: Options
    answers: list[Answer]
    server: Mapping[str, Any]
    """model, head, device and version, as far as the server says."""

    def to_json(self) -> dict[str, Any]:
        """Plain numbers."""
        return {
            "server": {
                **self.server,
                "configured": str(self.limits.configured),
                "guard": self.limits.mode,
                "any_shape": self.limits.any,
                "schedulers": self.limits.schedulers,
            },
            "options": asdict(self.options),
            "answers": [_record(one, self.server.get("device")) for one in self.answers],
            "recommended_flags": self.recommended().flags(),
            "requests": sum(one.requests for one in self.answers),
            "seconds": self.seconds,
            "grid_seconds": self.grid_seconds,
            "fraction_of_grid": self.seconds / self.grid_seconds,
        }

    @property
    def seconds(self) -> float:
        """That all answers took."""
        return sum(one.seconds for one in self.answers)

    @property
    def grid_seconds(self) -> float:
        """That all shapes, measured one by one, would have taken or took."""
        return sum(one.grid_seconds for one in self.answers)

    def recommended(self) -> Shape:
        """For the one set of flags that a server has: the largest mean gain over all rows, perhaps no speculation."""
        if len(self.answers) == 1:
            return self.answers[0].pick
        rows = [self.gains(answer) for answer in self.answers]
        mean = {shape: geometric_mean([row[shape] for row in rows]) for shape in sorted(rows[0])}
        best = max(mean, key=lambda shape: mean[shape])
        return best if mean[best] >= 1 + self.options.margin else NO_SPECULATION

    def gains(self, answer: Answer) -> dict[Shape, float]:
        """Realised where it was confirmed, else predicted."""
        predicted = {one.shape: one.speedup for one in answer.predictions}
        return predicted | {one.shape: one.gain for one in answer.realised}


def table(report: Report) -> Table:
    """Confirmed shapes of every answer, predicted and realised; the pick is marked."""
    found = Table(title=f"gain against no speculation, for {report.options.goal}")
    for name in ("temperature", "concurrency", "shape", "tokens a round", "predicted", "realised", "least to most"):
        found.add_column(name, justify="right")
    found.add_column(UNITS[report.options.goal], justify="right")
    found.add_column("")
    for answer in report.answers:
        for one in answer.realised:
            found.add_row(
                f"{answer.temperature:g}",
                str(answer.concurrency),
                str(one.shape) if one.shape.steps else "none",
                f"{answer.learnt.expected(one.shape):.2f}",
                f"{one.predicted:.2f}",
                f"{one.gain:.2f}",
                f"{one.low:.2f} to {one.high:.2f}" if one.shape.steps else "",
                f"{one.rate:.1f}",
                "pick" if one.shape == answer.pick else "",
            )
        found.add_section()
    return found


def verdict(answer: Answer, options: Options, device: str | None = None) -> str:
    """One answer in words: what to do, why, and how sure."""
    best = answer.best
    gains = f"predicted {best.predicted:.2f}x, realised {best.gain:.2f}x ({best.low:.2f} to {best.high:.2f})"
    where = f"temperature {answer.temperature:g}, concurrency {answer.concurrency}"
    if answer.speculate:
        said = [f"{where}: {best.shape}, {gains}", f"  {best.shape.flags()}"]
    else:
        said = [f"{where}: do not speculate. The best that drafts is {best.shape}, {gains}"]
        if best.gain > 1:
            said.append(f"  A gain below {options.margin:.0%} is not worth a second model.")
    said += [f"  - {reason}" for reason in reasons(answer, device)]
    said += [f"  note: {note}" for note in answer.notes]
    if answer.of_best is not None and answer.grid is not None:
        top = max(answer.grid, key=lambda one: one.gain)
        name = top.shape if top.shape.steps else "no speculation"
        said.append(
            f"  of the measured grid the best is {name}, {top.gain:.2f}x; the pick has {answer.of_best:.0%} of it"
        )
    return "\n".join(said)


def closing(report: Report) -> list[str]:
    """What holds for all answers: what it took, the flags of one server for all rows, the guard, the limits."""
    took = f"{report.seconds:.0f} s"
    measured = report.options.grid
    whole = f"{report.grid_seconds:.0f} s {'were' if measured else 'would be'} needed to measure every shape as often"
    number = sum(one.requests for one in report.answers)
    said = [f"{number} requests in {took}; {whole}, so this is {report.seconds / report.grid_seconds:.0%} of it"]
    said += _temperatures(report)
    picks = {one.pick for one in report.answers}
    if len(picks) > 1:
        one = report.recommended()
        gains = " ".join(f"{report.gains(answer)[one]:.2f}x" for answer in report.answers)
        what = f"{one.flags()}, row by row {gains}" if one.steps else "no speculation"
        said.append(f"one setting for all rows, by the mean gain (predicted where not confirmed): {what}")
    if picks != {NO_SPECULATION}:
        said.append(_guard(report.limits, len(picks) > 1))
    most = report.limits.configured
    edge = [pick for pick in picks if pick.steps and (pick.steps == most.steps or pick.topk == most.topk > 1)]
    if edge:
        said.append(
            f"{max(edge)} is at the edge of what this server runs ({most}); start it with larger flags and tune again "
            "to see beyond"
        )
    return said


def _temperatures(report: Report) -> list[str]:
    """How acceptance falls with temperature, where several were measured at the first concurrency."""
    first = [one for one in report.answers if one.concurrency == report.answers[0].concurrency]
    if len(first) == 1:
        return []
    each = ", ".join(f"{one.learnt.chains[0, 0]:.2f} at {one.temperature:g}" for one in first)
    return [f"acceptance of the first draft by temperature: {each}; use the row of the temperature that you serve"]


def _guard(limits: Limits, several: bool) -> str:
    if limits.mode == "on":
        shapes = " ".join(str(shape) for shape in limits.listed)
        return (
            "the guard of this server is on: by batch size it goes to what pays of its prepared shapes "
            f"({shapes}) or to none, while it runs; the flags are the largest of them"
        )
    picks = "chooses by batch size" if several else "leaves speculation where it does not pay"
    return f"the guard of this server is {limits.mode}; with --eagle31-guard on it {picks} while the server runs"


def _record(answer: Answer, device: str | None) -> dict[str, Any]:
    learnt = answer.learnt
    return {
        "temperature": answer.temperature,
        "concurrency": answer.concurrency,
        "speculate": answer.speculate,
        "pick": str(answer.pick),
        "flags": answer.pick.flags(),
        "reasons": reasons(answer, device),
        "notes": answer.notes,
        "realised": [_realised(one) for one in answer.realised],
        "measured_grid": None if answer.grid is None else [_realised(one) for one in answer.grid],
        "pick_of_best_measured": answer.of_best,
        "acceptance_of_chains": learnt.chains[:, 0].tolist(),
        "acceptance_of_trees_by_depth_and_rank": learnt.trees.tolist(),
        "lift_of_trees": learnt.lift,
        "draft_cost": learnt.draft_cost,
        "verify_slope": learnt.verify_slope,
        "cost": asdict(learnt.cost),
        "batch": learnt.batch,
        "round_seconds": {str(shape): seconds for shape, seconds in learnt.measured.items()},
        "misfit": learnt.misfit,
        "predicted": [_predicted(one) for one in answer.predictions],
        "requests": answer.requests,
        "seconds": answer.seconds,
        "grid_seconds": answer.grid_seconds,
        "tokens_per_answer": answer.tokens_per_answer,
        "cycles": answer.cycles,
    }


def _realised(one: Realised) -> dict[str, Any]:
    return {**asdict(one), "shape": str(one.shape)}


def _predicted(one: Prediction) -> dict[str, Any]:
    return {
        "shape": str(one.shape),
        "expected_tokens": one.expected,
        "round_seconds": one.time,
        "speedup": one.speedup,
    }
