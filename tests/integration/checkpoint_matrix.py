"""One row of the matrix: what `audit` says of a head, what EAGLE31 and stock SGLang do with it on a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from checkpoint_cases import Case
from checkpoint_run import Seen, plain, serve
from forked import ForkParent

from sglang_eagle31.head.check import resolve
from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.target import read_target
from sglang_eagle31.tools.audit.engines import Outcome, compare, effective_sglang
from sglang_eagle31.tools.audit.engines.sglang_fields import VERSION
from sglang_eagle31.tools.audit.report import Report, audit

SAME_FIRST = "final_norm: runs True, trained with False"
"""A norm with a gain of one divides all logits by one number: wrong probabilities, and the same first token."""


def row(case: Case, parent: ForkParent, target: Path, folder: Path) -> dict[str, Any]:
    """Everything about one case, as JSON."""
    head = case.write(folder / case.name)
    told = audit(str(head), str(target), dict(case.overrides))
    stock = predicted(case, head, target, told)
    seen = serve(parent, target, head, case.algorithm, {}, folder, f"{case.name}-stock")
    return {
        "name": case.name,
        "kind": case.kind,
        "title": case.title,
        "reports": list(case.reports),
        "ours": ours(case, parent, head, target, folder),
        "sglang": {
            "algorithm": case.algorithm,
            **seen.to_json(),
            "predicted": stock.kind,
            "reasons": [plain(reason, (head, target)) for reason in stock.reasons],
        },
        "vllm": {
            "predicted": told.elsewhere["vllm"].kind,
            "reasons": [plain(reason, (head, target)) for reason in told.elsewhere["vllm"].reasons],
        },
    }


def ours(case: Case, parent: ForkParent, head: Path, target: Path, folder: Path) -> dict[str, Any]:
    """The verdict on the files alone, what a server does with them, and with what their user has to say."""
    bare, told = audit(str(head), str(target)), audit(str(head), str(target), dict(case.overrides))
    found: dict[str, Any] = {"verdict": bare.verdict, "producer": bare.producer, "told": told.verdict}
    served = serve(parent, target, head, "EAGLE31", {}, folder, f"{case.name}-ours")
    found["alone"] = served.to_json()
    if case.overrides:
        found["overrides"] = dict(case.overrides)
        again = serve(parent, target, head, "EAGLE31", case.overrides, folder, f"{case.name}-told")
        found["with_overrides"] = again.to_json()
    return found


def problems(case: Case, found: dict[str, Any]) -> list[str]:
    """What is wrong with how EAGLE31 treats a case: nothing if it runs as trained or is refused before weights load."""
    alone = Seen(**found["alone"])
    final = Seen(**found["with_overrides"]) if case.overrides else alone
    refused = alone.outcome == "stops at start" and not alone.loaded and "fix:" in alone.error
    wrong = []
    if found["verdict"] == "exact" and not case.long_context:
        if alone.outcome != "healthy" and case.kind != "untold":
            wrong.append(f"called exact, and the server {alone}")
    elif not refused:
        wrong.append(f"not exact by its files alone, and not refused in time with a fix: {alone}")
    if found["told"] == "exact" and final.outcome != "healthy":
        wrong.append(f"called exact with {case.overrides}, and the server {final}")
    if case.overrides and found["told"] != "exact":
        wrong.append(f"{found['told']} with {case.overrides}")
    return wrong


def predicted(case: Case, head: Path, target: Path, told: Report) -> Outcome:
    """What `audit` says of stock SGLang; under another algorithm than EAGLE3, the same reading for that one."""
    if case.algorithm == "EAGLE3":
        return told.elsewhere["sglang"]
    files, facts = Checkpoint.read(head), read_target(str(target))
    reading, _ = resolve(files, facts, case.overrides)
    effect = effective_sglang(files, facts, algorithm=case.algorithm, embedding_is_copy=True)
    return compare(effect, reading.spec(), VERSION)


def disagreement(found: dict[str, Any]) -> str:
    """How the prediction for stock SGLang and its server differ; empty if they do not, or if it needs a GPU."""
    outcome, said, reasons = found["outcome"], found["predicted"], found["reasons"]
    if outcome == "needs a GPU" or said == "unknown" or outcome == _expected(said, reasons):
        return ""
    return f"predicted {said} ({'; '.join(reasons[:2])}), and the server: {outcome}, {found.get('error', '')}"


def _expected(said: str, reasons: list[str]) -> str:
    if said == "stops":
        return "fails at first request" if reasons[0].startswith("at first request") else "stops at start"
    same_first = all(reason.startswith(SAME_FIRST) for reason in reasons)
    return "low acceptance" if said == "wrong" and not same_first else "healthy"
