"""What is to be known before speculation goes into production: what the facts answer, and the questions that are left.

A question names the command that answers it.
"""

from __future__ import annotations

from functools import partial

from sglang_eagle31.server.metrics.rules import MIN_TRIALS
from sglang_eagle31.tools.doctor.checks import acceptance
from sglang_eagle31.tools.doctor.facts import BENCH, ROBUST, VERIFY, Facts, Line
from sglang_eagle31.tools.shared.acceptance_of_server import collect
from sglang_eagle31.tools.shared.counters import guards

line = partial(Line, "checklist")
LONG = 16384
"""Tokens of context from which heads are known to need a look of their own."""
BUSY = 32
"""Requests at a time from which the verify step is no longer cheap."""


def family(facts: Facts) -> Line:
    """Tokenizer, vocabulary, widths and layers of head and target."""
    name = "1 same family"
    if facts.server is not None and facts.server.ours:
        return line(name, "ok", "head and target fit: the server started, which EAGLE31 refuses otherwise")
    if facts.head is not None and facts.head.target is not None:
        if facts.head.report.get("verdict") == "exact":
            return line(name, "ok", "head and target fit, by audit")
        return line(name, "FAIL", "the head does not pass its audit on this target", "see the line audit")
    question = "was the head trained for exactly this target, tokenizer and all?"
    return line(name, "skip", question, "python -m sglang_eagle31 audit HEAD --target TARGET")


def same_output(facts: Facts) -> Line:
    """Tools, JSON, streaming, stops."""
    question = "are answers, tool calls and JSON the same with and without speculation?"
    return line("2 same output", "skip", question, VERIFY)


def monitored(facts: Facts) -> Line:
    """Acceptance over time."""
    name, server = "3 monitored", facts.server
    if server is None or server.error:
        return line(name, "skip", "is acceptance watched by depth, with an alarm?", "--enable-metrics; docs/metrics.md")
    if not server.info.get("enable_metrics"):
        return line(name, "warn", "metrics are off", "--enable-metrics, and launch/grafana.json")
    if not server.ours:
        text = "SGLang's gauges tell one mean of the last interval, and nothing by depth"
        return line(name, "warn", text, "--speculative-algorithm EAGLE31 counts by depth")
    return line(name, "ok", "counters by depth, context and template are in /metrics")


def templates(facts: Facts) -> Line:
    """Other templates and system prompts than those of the training."""
    question = "what do other chat templates, system prompts and tool definitions cost in acceptance?"
    return line("4 templates", "skip", question, ROBUST)


def long_context(facts: Facts) -> Line:
    """Acceptance beyond 16k tokens."""
    name, server = "5 long context", facts.server
    record = None if server is None else collect(server.info)
    if record is None:
        question = "what is acceptance at the context lengths that you serve?"
        return line(name, "skip", question, f"{ROBUST} --contexts 2048,8192,16384")
    parts = [part for label, part in record["by_context"].items() if int(label.split("-")[0].rstrip("+")) >= LONG]
    drafts = sum(part["drafts"] for part in parts)
    if drafts < MIN_TRIALS:
        text = f"contexts of {LONG} tokens and more: {drafts} drafts were that long"
        return line(name, "skip", text, f"{ROBUST} --contexts 2048,8192,16384, if you serve them")
    mean = 1 + sum(part["accepted_tokens"] for part in parts) / drafts
    text = f"contexts of {LONG} tokens and more: {mean:.2f} tokens a round over {drafts} drafts"
    if record["alarm"]["cause"] == "context":
        return line(name, "FAIL", f"{text}, and the alarm is raised for them", "--speculative-draft-window-size 1024")
    return line(name, "ok", text)


def latency(facts: Facts) -> Line:
    """Time to first token, time per token, throughput and fallbacks together, against no speculation."""
    question = "at your concurrency, what are TTFT, TPOT and tokens per second with and without speculation?"
    return line("6 speed", "skip", question, BENCH)


def fallback(facts: Facts) -> Line:
    """What happens when acceptance is low or the batch is large."""
    server, question = facts.server, "what ends speculation when it does not pay?"
    acting = [one["mode"] == "on" for one in guards(server.info)] if server is not None else []
    if acting and all(acting):
        return line("7 fallback", "ok", "the guard does (docs/guard.md)")
    if server is not None and (server.info.get("max_running_requests") or 0) >= BUSY:
        question += f" This server takes {BUSY} requests at a time or more, where it often does not"
    alert = "--eagle31-guard on; or an alert on sglang:eagle31_spec_decode_acceptance_alarm, and a server without"
    return line("7 fallback", "skip", question, alert)


def rollout(facts: Facts) -> Line:
    """A share of the traffic first, and a way back."""
    question = "has recorded traffic been replayed, and does a share of the traffic go first, with a way back?"
    return line("8 roll-out", "skip", question, f"{VERIFY}; the way back is a server without flags")


def domain(facts: Facts) -> Line:
    """Texts unlike the head's training."""
    question = "was acceptance measured on your own prompts, not on a benchmark?"
    fix = f"{ROBUST} --prompts FILE.jsonl; where it is low, train --init HEAD on your texts"
    return line("9 own texts", "skip", question, fix)


def sampling(facts: Facts) -> Line:
    """Acceptance falls as temperature rises."""
    question = "was acceptance measured at the temperature that you serve? It falls as the temperature rises"
    watch = "send your own requests, read the lines of acceptance; what pays: python -m sglang_eagle31 tune --simulate"
    return line("10 sampling", "skip", question, watch)


def drifting(facts: Facts) -> Line:
    """Does the head drift as it drafts deeper."""
    name, found = "11 drift", None if facts.server is None else acceptance.drift(facts.server)
    if found is not None and found.status != "skip":
        return line(name, "ok", "the drift probe is on: see the line drift")
    question = "does the head drift with depth?"
    return line(
        name, "skip", question, "python -m sglang_eagle31 drift HEAD --target TARGET, or --eagle31-drift-sample 0.01"
    )


ITEMS = (
    family,
    same_output,
    monitored,
    templates,
    long_context,
    latency,
    fallback,
    rollout,
    domain,
    sampling,
    drifting,
)
