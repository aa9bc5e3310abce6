"""A head and its target, by their files."""

from __future__ import annotations

from functools import partial

from sglang_eagle31.tools.doctor.facts import DOCTOR, Head, Line, Server

line = partial(Line, "head")


def audited(head: Head | None) -> Line:
    """Would EAGLE31 run it as it was trained."""
    if head is None:
        return line("audit", "skip", "no head was given", DOCTOR)
    if head.error:
        text, _, fix = head.error.partition("; fix: ")
        return line("audit", "FAIL", text, fix or "python -m sglang_eagle31 audit HEAD --target TARGET")
    what = f"{head.report['variant'] or 'variant not known'} ({head.report['producer']})"
    reasons = "; ".join(head.report["reasons"])
    if head.report["verdict"] == "needs-override":
        return line("audit", "FAIL", f"{what}: its files leave open {reasons}", "--eagle31-override, as the text says")
    if head.report["verdict"] == "refused":
        return line("audit", "FAIL", f"{what}: {reasons}", "as the text says; docs/guide.md has every refusal")
    if head.target is None:
        text = f"{what}: exact as far as its own files say; without a target it was not compared with one"
        return line("audit", "warn", text, "--target TARGET")
    return line("audit", "ok", f"{what}: runs exactly as trained on this target")


def elsewhere(head: Head | None, server: Server | None) -> Line | None:
    """What stock SGLang computes with it; that matters where stock SGLang is what serves."""
    found = head.report.get("elsewhere", {}).get("sglang") if head is not None else None
    if found is None:
        return None
    stock = server is not None and server.algorithm == "EAGLE3"
    reasons = "; ".join(found["reasons"])
    if found["outcome"] == "exact":
        return line("on stock SGLang", "ok", "--speculative-algorithm EAGLE3 computes the same")
    if found["outcome"] == "unknown":
        return line("on stock SGLang", "skip", reasons, "python -m sglang_eagle31 audit HEAD --target TARGET")
    text = f"--speculative-algorithm EAGLE3 {'computes something else' if found['outcome'] == 'wrong' else 'stops'}"
    return line("on stock SGLang", "FAIL" if stock else "warn", f"{text}: {reasons}", "--speculative-algorithm EAGLE31")


def context(head: Head | None) -> Line | None:
    """Positions of head and target."""
    if head is None or head.positions is None:
        return None
    if head.context is None:
        return line("context", "skip", f"the head was made for {head.positions} positions", "--target TARGET")
    text = f"the head was made for {head.positions} positions, the target for {head.context}"
    if head.positions >= head.context:
        return line("context", "ok", text)
    fix = f"--context-length {head.positions}, or --eagle31-override max_position_embeddings={head.context}"
    return line("context", "warn", f"{text}: EAGLE31 refuses the longer context", fix)
