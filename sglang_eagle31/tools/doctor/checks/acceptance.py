"""Acceptance of a running server: alarm, accept length, by depth, templates and contexts in use, drift."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from sglang_eagle31.server.metrics.counters import CONTEXTS
from sglang_eagle31.server.metrics.rules import ALIVE, DEAD, MIN_TRIALS
from sglang_eagle31.tools.doctor.facts import ROBUST, Line, Server
from sglang_eagle31.tools.drift.served import collect as collect_drift
from sglang_eagle31.tools.drift.verdict import judge
from sglang_eagle31.tools.shared.acceptance_of_server import collect

line = partial(Line, "acceptance")
LOW = 1.5
"""Tokens a round below which speculation hardly pays: a round costs a verify step and the draft."""
RARE = 0.02
"""Share of drafts; a depth that fewer reach is not worth its step."""
NOTED = 0.1
"""Share of rounds from which a template counts."""
ROUNDS = "send a few hundred tokens of your own requests, and run doctor again"


def alarm(server: Server) -> Line | None:
    """The server's own alarm, with its cause."""
    record = collect(server.info)
    if record is None:
        return None
    found = record["alarm"]
    if found["cause"]:
        text, _, fix = str(found["text"]).partition("; fix: ")
        return line("alarm", "FAIL", f"{found['cause']}: {text}", fix)
    if found["times"]:
        text = f"over now, but it was raised {found['times']} times since the start"
        return line("alarm", "warn", text, "the server's log names the causes (docs/metrics.md)")
    return line("alarm", "ok", "none was raised")


def length(server: Server) -> Line | None:
    """Tokens a round, the target's own included; of a stock server only SGLang's average is known."""
    if server.algorithm is None:
        return None
    record = collect(server.info)
    if record is None:
        return _stock(server)
    total = record["total"]
    drafts, first = total["drafts"], (total["accepted_by_depth"] or [0])[0]
    text = f"{total['accept_length'] or 1.0:.2f} tokens a round over {drafts} drafts"
    if drafts < MIN_TRIALS:
        return line("length", "skip", f"{text}: too few to judge", ROUNDS)
    share = f"{text}; {first / drafts:.0%} of the first drafted tokens accepted"
    if first / drafts < DEAD:
        return line("length", "FAIL", share, "python -m sglang_eagle31 audit HEAD --target TARGET")
    if first / drafts < ALIVE or total["accept_length"] < LOW:
        return line("length", "warn", f"{share}: it hardly pays", ROBUST)
    return line("length", "ok", share)


def _stock(server: Server) -> Line:
    lengths = [float(state["avg_spec_accept_length"]) for state in server.states if "avg_spec_accept_length" in state]
    if not lengths:
        return line(
            "length",
            "skip",
            "SGLang has no average yet, which it brings up to date every --decode-log-interval rounds",
            ROUNDS,
        )
    mean = sum(lengths) / len(lengths)
    text = f"{mean:.2f} tokens a round (SGLang's average since the start, number of rounds not known)"
    if mean < 1 + DEAD:
        fix = f"if it has served more than its warm-up, the head is dead: python -m sglang_eagle31 audit; else {ROUNDS}"
        return line("length", "FAIL", text, fix)
    if mean < LOW:
        return line("length", "warn", f"{text}: it hardly pays", ROBUST)
    return line("length", "ok", text)


def depths(server: Server) -> Line | None:
    """The share of drafts that is accepted up to each depth."""
    record = collect(server.info)
    if record is None or record["total"]["drafts"] < MIN_TRIALS:
        return None
    pairs = zip(record["total"]["accepted_by_depth"], record["total"]["proposed_by_depth"], strict=True)
    shares = [accepted / proposed for accepted, proposed in pairs if proposed]
    text = "accepted to depth 1, 2, ...: " + ", ".join(f"{share:.0%}" for share in shares)
    worth = max([depth for depth, share in enumerate(shares, 1) if share >= RARE], default=1)
    if worth < len(shares):
        text += f": beyond {worth} hardly any"
        return line("by depth", "warn", text, f"--speculative-num-steps {worth}")
    return line("by depth", "ok", text)


def templates(server: Server) -> Line | None:
    """Prompts without any special token, or with a doubled one at the start, are not as heads were trained."""
    record = collect(server.info)
    if record is None or record["total"]["drafts"] < MIN_TRIALS:
        return None
    if server.info.get("skip_tokenizer_init"):
        text = "the server has no tokenizer, so that special tokens are not known"
        return line("templates", "skip", text, ROBUST)
    parts, rounds = record["by_template"], record["total"]["rounds"]
    shares = {str(part["pattern"]): part["rounds"] / rounds for part in parts.values()}
    odd = {pattern: why for pattern in shares if (why := _odd(pattern)) and shares[pattern] >= NOTED}
    if odd:
        text = "; ".join(
            f"{shares[pattern]:.0%} of the rounds are of {why} ({pattern})" for pattern, why in odd.items()
        )
        fix = f"send prompts through the target's chat template; what it costs: {ROBUST}"
        return line("templates", "warn", text, fix)
    return line("templates", "ok", f"{len(shares)} in use, each with special tokens")


def _odd(pattern: str) -> str:
    words = pattern.split()
    if words in ([], ["..."]):
        return "prompts without special tokens"
    return "prompts with a doubled first token" if len(words) > 1 and words[0] == words[1] else ""


def contexts(server: Server) -> Line | None:
    """Rounds beyond the positions of the head."""
    record = collect(server.info)
    if record is None or server.positions is None:
        return None
    parts: Mapping[str, Any] = record["by_context"]
    beyond = sum(
        parts[name]["rounds"] for name in CONTEXTS if name in parts and int(name.split("-")[0]) >= server.positions
    )
    share = beyond / record["total"]["rounds"] if beyond else 0.0
    text = f"{share:.0%} of the rounds begin beyond the head's {server.positions} positions"
    if beyond:
        return line("contexts", "warn", text, f"--context-length {server.positions}, or a head that was trained longer")
    return line("contexts", "ok", text)


def drift(server: Server) -> Line | None:
    """The probe's verdict, if rounds are sampled."""
    if server.algorithm is None:
        return None
    try:
        record, _ = collect_drift(server.info, server.url)
    except ValueError as error:
        text, _, fix = str(error).partition("; fix: ")
        return line("drift", "skip", text.removeprefix(f"--url {server.url}: "), fix)
    verdict = judge(record)
    text = "; ".join(verdict.text)
    if verdict.drift in ("unclear", "unknown"):
        return line(
            "drift",
            "skip",
            text,
            f"more requests, or more steps; then python -m sglang_eagle31 drift --url {server.url}",
        )
    if verdict.drift == "none":
        return line("drift", "ok", text)
    fix = "fewer steps, or an EAGLE 3.1 head (post-norm feedback); docs/drift-probe.md"
    return line("drift", "warn", f"{verdict.drift} drifts: {text}", fix)
