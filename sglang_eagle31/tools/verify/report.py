"""Both results as tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sglang_eagle31.tools.shared.same_answers.logprobs import NextToken
from sglang_eagle31.tools.shared.same_answers.tokens import say
from sglang_eagle31.tools.verify.distribution import LEVEL, Result, Verdict
from sglang_eagle31.tools.verify.exact import Sampling
from sglang_eagle31.tools.verify.identity import Finding, Kind
from sglang_eagle31.tools.verify.identity_run import Identity

STYLE = {Kind.SAME: "green", Kind.TIE: "yellow", Kind.DIFFERENT: "bold red"}


def render_distribution(verdict: Verdict) -> Group:
    """Cases by rule, tree, vocabulary and drafter; failed cases one by one; controls."""
    table = Table(title="committed tokens against the target's distribution")
    for name in ("rule", "tree", "drafter"):
        table.add_column(name)
    for name in ("cases", "steps", "accept length", "least p", "Holm", "impossible"):
        table.add_column(name, justify="right")
    table.add_column("")
    for results, holm in _groups(verdict):
        case = results[0].case
        lengths = [result.accept_length for result in results]
        table.add_row(
            *(case.rule, case.shape, case.drafter + (", reduced" if case.reduced else ""), str(len(results))),
            f"{sum(result.rounds for result in results):,}",
            f"{min(lengths):.2f} to {max(lengths):.2f}",
            *(_p(min(result.p for result in results)), _p(holm)),
            str(sum(test.impossible for result in results for test in result.tests)),
            Text("ok", "green") if holm >= LEVEL else Text("DIFFERENT", "bold red"),
        )
    combined = ", ".join(f"{test.tokens}: {_p(test.p)}" for test in verdict.combined)
    lines: list[RenderableType] = [table, Text(f"all cases together (Fisher), by tokens: {combined}")]
    lines += [Text(f"DIFFERENT: {name}", "red") for name in verdict.failed]
    found = "all found" if len(verdict.found) == len(verdict.controls) else "NOT ALL FOUND"
    summary = f"{verdict.tests} tests, {len(verdict.failed)} failed at {1 - LEVEL:.0%} over all of them (Holm)"
    return Group(*lines, _controls(verdict), Text(f"{summary}; {len(verdict.controls)} controls, {found}", "bold"))


def render_identity(identity: Identity) -> Group:
    """Counts, and a row for each request that is not the same."""
    parts: list[RenderableType] = []
    shown = [finding for finding in identity.findings if finding.kind in (Kind.TIE, Kind.DIFFERENT)]
    if shown:
        table = Table(title="first differences; log-probabilities: best, token with speculation, token without")
        for name in ("line", "", "position", "with", "without", "on the speculative server", "on the baseline"):
            table.add_column(name)
        for finding in shown:
            table.add_row(*_row(finding))
        parts.append(table)
    counts = ", ".join(f"{identity.count(kind)} {kind.value}" for kind in Kind if identity.count(kind))
    tokens, bound = identity.tokens, identity.rule.answers_bound
    rule = f"gap up to {bound:g} is a tie" if bound else "no difference is a tie"
    compared = f"{tokens['tokens_compared']} of {tokens['tokens']} tokens compared and equal"
    others = ", ".join(f"{count} ({why})" for why, count in tokens["tokens_not_checked"].items())
    parts.append(Text(f"{len(identity.findings)} requests: {counts}"))
    parts.append(Text(f"{compared}; {identity.rounds} speculative steps; {rule}"))
    parts.append(Text(f"{say(tokens)}; gap up to {identity.rule.bound:g} is a tie"))
    parts += [Text(f"tokens not checked by the logits: {others}")] if others else []
    parts += [Text(line, "red") for finding in identity.findings for line in _wrong(finding)]
    parts += [Text(f"note: {note}") for note in identity.notes]
    words = {0: ("identical", "bold green"), 1: ("DIFFERENT", "bold red"), 3: ("identical up to ties", "bold yellow")}
    return Group(*parts, Text(*words[identity.status]))


def _groups(verdict: Verdict) -> Iterator[tuple[Sequence[Result], float]]:
    """Results of one rule, tree, drafter and vocabulary, with their least p-value after Holm."""
    pairs = list(zip(verdict.results, verdict.adjusted, strict=False))
    for _, group in groupby(pairs, key=lambda pair: dataclasses.replace(pair[0].case, sampling=Sampling())):
        rows = list(group)
        yield [result for result, _ in rows], min(min(adjusted) for _, adjusted in rows)


def _controls(verdict: Verdict) -> Table:
    table = Table(title="controls: wrong samplers, which have to be found out")
    for name in ("rule", "tree", "what is wrong"):
        table.add_column(name)
    for name in ("steps", "least p"):
        table.add_column(name, justify="right")
    table.add_column("")
    for control in verdict.controls:
        found = Text("found", "green") if control in verdict.found else Text("NOT FOUND", "bold red")
        case = control.case
        table.add_row(case.rule, case.shape, case.control, f"{control.rounds:,}", _p(control.p), found)
    return table


def _row(finding: Finding) -> list[str | Text]:
    where = finding.difference
    position, ours, theirs = ("", finding.what, "")
    if where is not None:
        position = str(where.index)
        ours, theirs = ("ended" if token is None else str(token) for token in (where.speculative, where.plain))
    return [
        str(finding.request.line) + (f" [{finding.choice}]" if finding.choice else ""),
        Text(finding.kind.value, STYLE[finding.kind]),
        *(position, ours, theirs, _logprobs(finding, finding.on_speculative), _logprobs(finding, finding.on_baseline)),
    ]


def _wrong(finding: Finding) -> Iterator[str]:
    """The first wrong token of each answer."""
    for choice, tokens in enumerate(finding.checked):
        for one in tokens.differing[:1]:
            where = f"{finding.request.line}{f' [{choice}]' if choice else ''}, token {one.index} ({one.token})"
            more = f"; {len(tokens.differing)} wrong tokens in all" if len(tokens.differing) > 1 else ""
            yield f"wrong: request {where}: {one.gap:.4f} below the best logit without speculation{more}"


def _logprobs(finding: Finding, told: NextToken | None) -> str:
    if told is None:
        return "not told"
    *values, gap = finding.logprobs(told)
    return ", ".join(f"{value:.4f}" for value in values) + f" (gap {gap:.4f})"


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else f"{value:.1e}"
