"""Replay requests on a server with speculation and on one without, and compare: two addresses, or both started here."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from tqdm import tqdm

from sglang_eagle31.tools.shared.requests_file import Request, read_requests
from sglang_eagle31.tools.shared.same_answers import logits
from sglang_eagle31.tools.shared.same_answers.ties import LOGIT_MAGNITUDE, TieRule, tie_rule
from sglang_eagle31.tools.shared.same_answers.tokens import counts
from sglang_eagle31.tools.shared.server_process import Server, serve_sglang
from sglang_eagle31.tools.verify.identity import Finding, Kind, compare
from sglang_eagle31.tools.verify.judged import Judged, Key, ask_baseline, ask_speculative, comparable
from sglang_eagle31.tools.verify.replay import Answer, Facts, read_facts, send_all


@dataclass(frozen=True)
class Options:
    """What to compare; every field is an option of ``python -m sglang_eagle31 verify``."""

    requests: Path
    url: str | None = None
    baseline: str | None = None
    target: Path | None = None
    head: Path | None = None
    server_flags: Sequence[str] = ()
    any_servers: bool = False
    greedy: bool = False
    limit: int | None = None
    concurrency: int = 1
    timeout: float = 600.0
    dtype: str | None = None
    logit_magnitude: float = LOGIT_MAGNITUDE
    out: Path = Path("build/verify")


@dataclass(frozen=True)
class Identity:
    """Everything that one comparison found."""

    findings: Sequence[Finding]
    speculative: Facts
    baseline: Facts
    rule: TieRule
    rounds: int
    """Speculative steps of the first server."""
    notes: Sequence[str] = field(default_factory=list)

    def count(self, kind: Kind) -> int:
        """Requests of a kind."""
        return sum(finding.kind is kind for finding in self.findings)

    @property
    def status(self) -> int:
        """0: every greedy request is identical; 1: one is different; 3: none is, but answers part at ties."""
        if self.count(Kind.DIFFERENT):
            return 1
        return 3 if self.count(Kind.TIE) else 0

    @property
    def tokens(self) -> dict[str, Any]:
        """How many there are, how many were compared, how many were checked, and why others were not."""
        not_checked: Counter[str] = Counter()
        for finding in self.findings:
            if finding.not_checked:
                not_checked[finding.not_checked] += finding.tokens
        return {
            "tokens": sum(finding.tokens for finding in self.findings),
            "tokens_compared": sum(finding.compared for finding in self.findings),
            **counts(one for finding in self.findings for one in finding.checked),
            "tokens_not_checked": dict(not_checked),
        }

    def to_json(self) -> dict[str, Any]:
        """Schema: docs/verify.md."""
        return {
            "identical": self.status == 0,
            "status": self.status,
            "counts": {kind.name.lower(): self.count(kind) for kind in Kind},
            **self.tokens,
            "tie_bound": self.rule.answers_bound,
            "token_tie_bound": self.rule.bound,
            "speculative_steps": self.rounds,
            "servers": {"speculative": asdict(self.speculative), "baseline": asdict(self.baseline)},
            "notes": list(self.notes),
            "requests": [finding.to_json() for finding in self.findings],
        }


Serve = Callable[..., AbstractContextManager[Server]]
"""Starts a server as `serve_sglang` does."""


def run(options: Options, console: Console, serve: Serve = serve_sglang) -> Identity:
    """Compare the answers.

    Raises ValueError for options and servers that cannot be compared, ServerFailed for a server that does not come up.
    """
    found = read_requests(options.requests, options.limit, options.greedy)
    if not any(request.greedy for request in found):
        raise ValueError(
            f"--requests {options.requests}: none of {len(found)} requests has temperature 0, and a sampled answer "
            "cannot be compared token for token; fix: --greedy sends them with temperature 0"
        )
    if options.url and options.baseline:
        return _compare_urls(options, found)
    assert options.target is not None and options.head is not None
    return _compare_started(options, found, console, serve)


def split_flags(flags: Sequence[str]) -> tuple[list[str], list[str]]:
    """Flags of a server with speculation: those of both servers, and those that only it gets."""
    both: list[str] = []
    speculative: list[str] = []
    into = both
    for flag in flags:
        if flag.startswith("--"):
            into = speculative if flag.startswith(("--speculative", "--eagle31")) else both
        into.append(flag)
    return both, speculative


def _compare_urls(options: Options, found: Sequence[Request]) -> Identity:
    assert options.url and options.baseline
    facts = read_facts(options.url, "--url"), read_facts(options.baseline, "--baseline")
    notes = _check(facts, options)
    rule = _rule(options, facts, notes)
    ours = _answers(options.url, found, options, "speculative")
    theirs = _answers(options.baseline, found, options, "baseline")
    judged = _judged(options.baseline, found, ours, theirs, rule, facts[1], options)
    judged, more = ask_speculative(options.url, found, judged, rule, options.timeout)
    return _identity(options, found, (ours, theirs), judged, rule, facts, [*notes, *more])


def _compare_started(options: Options, found: Sequence[Request], console: Console, serve: Serve) -> Identity:
    """One server after the other; the first is started again where the answers differ and it has to be asked why."""
    both, only = split_flags(options.server_flags)
    if "--speculative-algorithm" not in only:
        only = ["--speculative-algorithm", "EAGLE31", *only]
    only = ["--speculative-draft-model-path", str(options.head), *only]
    more = {"log_dir": options.out, "console": console}
    with serve("speculative", options.target, [*both, *only], **more) as server:
        speculative, ours = read_facts(server.url, "--target"), _answers(server.url, found, options, "speculative")
    with serve("baseline", options.target, [*both, *_in_time(found, both)], **more) as server:
        baseline, theirs = read_facts(server.url, "--target"), _answers(server.url, found, options, "baseline")
        notes = _check((speculative, baseline), options)
        rule = _rule(options, (speculative, baseline), notes)
        judged = _judged(server.url, found, ours, theirs, rule, baseline, options)
    if any(one.candidates for one in judged.values()):
        with serve("speculative-again", options.target, [*both, *only], **more) as server:
            judged, others = ask_speculative(server.url, found, judged, rule, options.timeout)
            notes += others
    return _identity(options, found, (ours, theirs), judged, rule, (speculative, baseline), notes)


def _rule(options: Options, facts: tuple[Facts, Facts], notes: list[str]) -> TieRule:
    """Of the dtype that both servers have; a note where it is not known."""
    dtype = options.dtype or (facts[0].dtype if facts[0].dtype == facts[1].dtype else None)
    best = logits.of_target(options.target, dtype or "bfloat16") if options.target else None
    if dtype is None:
        dtypes = f"dtypes {facts[0].dtype}, {facts[1].dtype} (None: auto)"
        notes.append(f"{dtypes}: no difference counts as a tie, and tokens are checked as in bfloat16; see --dtype")
    return tie_rule(dtype, options.logit_magnitude, best)


def _in_time(found: Sequence[Request], flags: Sequence[str]) -> list[str]:
    """A flag for penalties, which SGLang's overlap schedule applies one token late without speculation."""
    neutral = {"frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1}
    late = any(request.sampling.get(name, value) != value for request in found for name, value in neutral.items())
    flag = "--disable-overlap-schedule"
    return [flag] if late and flag not in flags else []


def _answers(url: str, found: Sequence[Request], options: Options, name: str) -> list[Answer]:
    with tqdm(total=len(found), desc=name, unit="answer", file=sys.stdout) as bar:
        return send_all(url, found, options.concurrency, options.timeout, bar.update)


def _judged(
    url: str,
    found: Sequence[Request],
    ours: Sequence[Answer],
    theirs: Sequence[Answer],
    rule: TieRule,
    facts: Facts,
    options: Options,
) -> dict[Key, Judged]:
    pairs = comparable(found, ours, theirs)
    with tqdm(total=len(pairs), desc="every token", unit="request", file=sys.stdout) as bar:
        return ask_baseline(url, pairs, rule, facts.defaults, options.timeout, bar.update)


def _identity(
    options: Options,
    found: Sequence[Request],
    answers: tuple[list[Answer], list[Answer]],
    judged: Mapping[Key, Judged],
    rule: TieRule,
    facts: tuple[Facts, Facts],
    notes: Sequence[str],
) -> Identity:
    findings = compare(found, *answers, judged)
    rounds = sum(answer.verify_rounds for answer in answers[0])
    longest = max((len(one.token_ids) for answer in answers[0] for one in answer.sequences), default=0)
    if not options.any_servers and rounds == 0 and longest > 1:
        raise ValueError(
            f"{facts[0].url}: answered up to {longest} tokens and reports no speculative step, so nothing was "
            "verified; fix: see its log; --any-servers compares all the same"
        )
    return Identity(findings, *facts, rule, rounds, notes)


def _check(facts: tuple[Facts, Facts], options: Options) -> list[str]:
    """Notes; raises ValueError unless the first server speculates and the second does not."""
    ours, theirs = facts
    if not options.any_servers:
        fix = "; fix: the other way round, or --any-servers to compare all the same"
        if ours.algorithm is None:
            raise ValueError(f"--url {ours.url}: runs without speculation, so there is nothing to verify{fix}")
        if theirs.algorithm is not None:
            raise ValueError(f"--baseline {theirs.url}: runs with speculation ({theirs.algorithm}){fix}")
    return [
        f"the servers differ in {name}: {a} and {b}"
        for name, a, b in (("model", ours.model, theirs.model), ("SGLang version", ours.version, theirs.version))
        if a != b
    ]
