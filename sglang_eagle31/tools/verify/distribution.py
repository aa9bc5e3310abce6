"""Run cases and controls, test what they committed, and judge all tests together."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from sglang_eagle31.tools.verify.cases import Case
from sglang_eagle31.tools.verify.chisquare import Test, against_exact, against_sample, fisher, holm
from sglang_eagle31.tools.verify.exact import joint, tally
from sglang_eagle31.tools.verify.rounds import Draw, Outcome, Rule, direct
from sglang_eagle31.tools.verify.synthetic import STATISTIC_TOKENS, target

LEVEL = 0.05
BATCH = 10_000
"""Sequences that are run at once."""


@dataclass(frozen=True)
class Result:
    """One case or control."""

    case: Case
    rounds: int
    """Speculative steps that were run."""
    sequences: int
    accept_length: float
    """Committed tokens a step, the target's own token included."""
    tests: tuple[Test, ...]
    seconds: float

    @property
    def p(self) -> float:
        """The smallest p-value, not corrected."""
        return min(test.p for test in self.tests)


@dataclass(frozen=True)
class Verdict:
    """All results with one correction over all tests of the cases."""

    results: tuple[Result, ...]
    combined: tuple[Test, ...]
    """Fisher's combination over all cases, for each length of sequences."""
    adjusted: tuple[tuple[float, ...], ...]
    """Holm's p-value of each test of each result, and, last, of the combined ones."""
    controls: tuple[Result, ...]

    @property
    def failed(self) -> list[str]:
        """Names of the cases that are not the target's distribution, at 95 % over all tests."""
        names = [*(result.case.name for result in self.results), "all cases together"]
        return [name for name, row in zip(names, self.adjusted, strict=True) if min(row, default=1.0) < LEVEL]

    @property
    def found(self) -> list[Result]:
        """Controls that would have failed as a case: Bonferroni's level, the strictest that Holm asks for."""
        return [control for control in self.controls if control.p < LEVEL / self.tests]

    @property
    def tests(self) -> int:
        """Tests that are corrected for."""
        return sum(len(row) for row in self.adjusted)

    @property
    def passed(self) -> bool:
        """No case failed and every control was found out."""
        return not self.failed and len(self.found) == len(self.controls)

    def to_json(self) -> dict[str, Any]:
        """Schema: docs/verify.md."""
        return {
            "passed": self.passed,
            "level": LEVEL,
            "tests": self.tests,
            "steps": sum(result.rounds for result in self.results),
            "failed": self.failed,
            "controls_not_found": [control.case.name for control in self.controls if control not in self.found],
            "combined": _tests(self.combined, self.adjusted[-1]),
            "cases": [_result(r, row) for r, row in zip(self.results, self.adjusted, strict=False)],
            "controls": [{**_result(c), "found": c in self.found, "level": LEVEL / self.tests} for c in self.controls],
        }


def run_case(case: Case, rules: Mapping[str, Rule], steps: int, seed: int, draw: Draw) -> Result:
    """One case against exact probabilities and against direct samples.

    It runs ``steps`` sequences (a control: times its factor), so at least as many speculative steps.
    """
    start = time.perf_counter()
    random = torch.Generator().manual_seed(zlib.crc32(f"{seed} {case.name}".encode()))
    experiment = case.experiment(rules, seed)
    done: list[Outcome] = []
    plain: list[torch.Tensor] = []
    for begin in range(0, steps * case.steps_factor, BATCH):
        size = min(BATCH, steps * case.steps_factor - begin)
        done.append(experiment.run(size, random))
        plain.append(direct(experiment.target, case.sampling, size, random, draw).tokens)
    context, spoken, drawn = torch.cat([o.context for o in done]), torch.cat([o.tokens for o in done]), torch.cat(plain)
    rounds, accepted = sum(o.rounds for o in done), sum(o.accepted for o in done)
    tests: list[Test] = []
    for tokens in range(1, STATISTIC_TOKENS + 1):
        exact = joint(target(seed), case.sampling, tokens)
        observed, other = tally(context, spoken[:, :tokens]), tally(context, drawn[:, :tokens])
        both = against_exact(observed, exact), against_sample(observed, other, exact)
        tests += [replace(test, tokens=tokens) for test in both]
    return Result(case, rounds, len(context), 1 + accepted / rounds, tuple(tests), time.perf_counter() - start)


def run(
    cases: Sequence[Case],
    controls: Sequence[Case],
    rules: Mapping[str, Rule],
    steps: int,
    seed: int,
    draw: Draw,
    advance: Callable[[], object],
) -> Verdict:
    """Everything; ``advance`` is called after each case and control."""

    def one(case: Case) -> Result:
        result = run_case(case, rules, steps, seed, draw)
        advance()
        return result

    results = tuple(one(case) for case in cases)
    combined = tuple(_combine(results))
    groups = [*(result.tests for result in results), combined]
    flat = iter(holm([test.p for group in groups for test in group]))
    adjusted = tuple(tuple(next(flat) for _ in group) for group in groups)
    return Verdict(results, combined, adjusted, tuple(one(control) for control in controls))


def _combine(results: Sequence[Result]) -> Iterator[Test]:
    for tokens in range(1, STATISTIC_TOKENS + 1):
        tests = [test for result in results for test in result.tests if test.df]
        yield fisher(tokens, [test.p for test in tests if (test.against, test.tokens) == ("exact", tokens)])


def _tests(tests: Sequence[Test], adjusted: Sequence[float]) -> list[dict[str, Any]]:
    return [{**asdict(test), "p_holm": p} for test, p in zip(tests, adjusted, strict=True)]


def _result(result: Result, adjusted: Sequence[float] = ()) -> dict[str, Any]:
    case = result.case
    return {
        "name": case.name,
        **{key: getattr(case, key) for key in ("rule", "shape", "drafter", "reduced")},
        **({"control": case.control} if case.control else {}),
        "sampling": asdict(case.sampling),
        "steps": result.rounds,
        "sequences": result.sequences,
        "accept_length": result.accept_length,
        "seconds": round(result.seconds, 2),
        "tests": _tests(result.tests, adjusted) if adjusted else [asdict(test) for test in result.tests],
    }
