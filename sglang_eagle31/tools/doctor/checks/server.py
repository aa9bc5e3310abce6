"""A running server: is it EAGLE31, of which version, and do its settings fit its head."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from sglang_eagle31.server.options import asked
from sglang_eagle31.tools.doctor.facts import DOCTOR, ROBUST, VERIFY, Head, Line, Server, Software

line = partial(Line, "server")
PLAIN = 3
"""Draft steps that any EAGLE head was trained for: the least of the trainers' defaults."""


def answers(server: Server) -> Line:
    """Is there a server."""
    if server.error:
        text, _, fix = server.error.partition("; fix: ")
        return line("answers", "FAIL", text, fix or "start it, or correct the address")
    model = server.info.get("served_model_name") or server.info.get("model_path")
    return line("answers", "ok", f"{server.url} serves {model}")


def marker(server: Server) -> Line:
    """The key ``eagle31`` in ``/server_info``: without it, stock SGLang runs, whatever was asked for."""
    if server.ours:
        facts = server.ours
        return line(
            "EAGLE31",
            "ok",
            f"{facts.get('variant')} head {facts.get('head')}, captured {facts.get('captured_boundaries')}",
        )
    runs = f"this server runs {server.algorithm or 'without speculation'}, and has no key eagle31 in /server_info"
    if _asked_for(server.info):
        text = f"{runs}, though its command line asks for EAGLE31: it fell back to stock SGLang"
        return line(
            "EAGLE31", "FAIL", text, "doctor on the server's machine; its log names the plugin that failed to load"
        )
    if server.algorithm is None:
        return line("EAGLE31", "warn", runs, "--speculative-algorithm EAGLE31 --speculative-draft-model-path HEAD")
    fix = "--speculative-algorithm EAGLE31" if server.algorithm == "EAGLE3" else ""
    return line("EAGLE31", "warn", f"{runs}: it is stock SGLang", fix or "nothing, if that is what you meant")


def _asked_for(info: Mapping[str, Any]) -> bool:
    found = re.search(r"--speculative-algorithm[= ]+(\S+)", str(info.get("launch_command")))
    return found is not None and asked(found[1])


def schedulers(server: Server) -> Line | None:
    """Our part in each scheduler process, where acceptance is counted."""
    if not server.ours:
        return None
    with_us = sum("eagle31" in state for state in server.states)
    if server.states and with_us == len(server.states):
        return line("schedulers", "ok", f"{with_us} of {with_us} count acceptance")
    text = f"{with_us} of {len(server.states)} schedulers count acceptance: our hooks are not in the others"
    return line("schedulers", "FAIL", text, "the log of the scheduler; restart the server")


def version(server: Server, software: Software) -> Line:
    """The server's SGLang and sglang-eagle31 against those here, by which the files were judged."""
    theirs, ours = server.info.get("version"), server.ours.get("version", software.ours)
    if theirs is None:
        return line("version", "skip", "the server does not state its version", "pip show sglang, on its machine")
    if (theirs, ours) != (software.sglang, software.ours):
        text = f"the server has SGLang {theirs}{f', sglang-eagle31 {ours}' if server.ours else ''}"
        here = f"here are {software.sglang or 'none'} and {software.ours}, for which seams and audit are judged"
        return line("version", "warn", f"{text}; {here}", "run doctor in the server's environment")
    return line("version", "ok", f"SGLang {theirs}, as here")


def tree(server: Server) -> Line | None:
    """Can every drafted depth be verified; a verify step checks ``draft tokens - 1`` of them."""
    steps, topk, tokens = shape(server.info)
    if server.algorithm is None or steps is None or tokens is None:
        return None
    text = f"steps {steps}, topk {topk}, draft tokens {tokens}"
    if tokens - 1 < steps:
        fix = f"--speculative-num-steps {tokens - 1}, or --speculative-num-draft-tokens {steps + 1}"
        if (topk or 1) > 1:
            return line("tree", "FAIL", f"{text}: SGLang's verification fails on a tree that is deeper than that", fix)
        return line("tree", "warn", f"{text}: the last {steps - tokens + 1} steps are drafted and never verified", fix)
    return line("tree", "ok", text)


def shape(info: Mapping[str, Any]) -> tuple[int | None, int | None, int | None]:
    """Steps, topk and draft tokens."""
    return tuple(info.get(f"speculative_{name}") for name in ("num_steps", "eagle_topk", "num_draft_tokens"))  # type: ignore[return-value]


def depth(server: Server, head: Head | None) -> Line | None:
    """An EAGLE-3 head falls off beyond the steps that it was trained with; post-norm feedback reaches further."""
    steps, _, _ = shape(server.info)
    if server.algorithm is None or steps is None:
        return None
    trained = server.depth or (head.depth if head is not None else None)
    if trained is None and steps <= PLAIN:
        return line("trained depth", "ok", f"{steps} steps: within what every trainer unrolls by default")
    if trained is None:
        text = f"{steps} steps, and the head's files do not say with how many it was trained (trainers: 3 to 7)"
        return line(
            "trained depth",
            "skip",
            text,
            f"acceptance by depth below, or {ROBUST}",
        )
    text = f"{steps} steps, trained with {trained}"
    if steps <= trained:
        return line("trained depth", "ok", text)
    if (server.ours.get("spec") or {}).get("feedback") == "post":
        return line(
            "trained depth", "ok", f"{text}: further, as heads with post-norm feedback can; see acceptance by depth"
        )
    return line("trained depth", "warn", f"{text}: acceptance falls off beyond", f"--speculative-num-steps {trained}")


def context(server: Server) -> Line | None:
    """The server's context against the head's positions."""
    if server.algorithm is None:
        return None
    longest = longest_context(server)
    if longest is None or server.positions is None:
        text = f"head: {server.positions or 'no limit known'}; server: {longest or 'not known'}"
        return line("context", "skip", text, DOCTOR)
    text = f"the server takes {longest} tokens, the head was made for {server.positions} positions"
    if longest <= server.positions:
        return line("context", "ok", text)
    fix = f"--context-length {server.positions}; to measure it: {ROBUST}"
    return line("context", "warn", f"{text}: acceptance falls beyond them", fix)


def longest_context(server: Server) -> int | None:
    """Tokens of prompt and answer that one request may have."""
    stated = (server.ours.get("target") or {}).get("context_length") or server.info.get("context_length")
    return stated or server.info.get("max_req_input_len")


def window(server: Server) -> Line | None:
    """A draft window that is not the one of training."""
    flag, trained = (
        server.info.get("speculative_draft_window_size"),
        (server.ours.get("spec") or {}).get("sliding_window"),
    )
    if not server.ours or (flag is None and trained is None):
        return None
    if flag is None or flag + 1 == trained:
        return line("window", "ok", f"a drafted token sees {trained} keys, as trained")
    text = f"--speculative-draft-window-size {flag} shows {flag + 1} keys, the head was trained with {trained or 'all'}"
    fix = f"--speculative-draft-window-size {trained - 1}" if trained else f"measure it: {ROBUST}"
    return line("window", "warn", text, fix)


def attention(server: Server) -> Line | None:
    """On a CPU, two backends serve EAGLE."""
    if server.algorithm is None:
        return None
    device, backend = server.info.get("device"), server.info.get("attention_backend")
    text = f"{backend} on {device}"
    if device == "cpu" and backend not in ("torch_native", "intel_amx"):
        return line("attention", "warn", f"{text}: not tested with EAGLE", "leave --attention-backend to SGLang")
    return line("attention", "ok", text)


def pool(server: Server) -> Line | None:
    """Does one request of full length fit in the KV cache."""
    tokens, longest = server.info.get("max_total_num_tokens"), longest_context(server)
    if tokens is None or longest is None:
        return None
    text = f"the KV cache holds {tokens} tokens, a request may have {longest}"
    if tokens >= longest:
        return line("KV cache", "ok", text)
    return line(
        "KV cache", "warn", f"{text}: long ones are refused", "--context-length, --max-total-tokens or more memory"
    )


def tested(server: Server) -> Line:
    """Settings of the server with which this package was not tested."""
    info = server.info
    found = [f"{name} {info[name]}" for name in ("tp_size", "dp_size", "pp_size") if (info.get(name) or 1) > 1]
    if info.get("quantization"):
        found.append(f"quantization {info['quantization']}")
    if info.get("kv_cache_dtype") not in (None, "auto"):
        found.append(f"kv_cache_dtype {info['kv_cache_dtype']}")
    if info.get("speculative_adaptive"):
        found.append("speculative_adaptive")
    if found:
        text = f"{', '.join(found)}: with speculation, compare answers and acceptance before you rely on it"
        return line("settings", "warn", text, VERIFY)
    return line("settings", "ok", "one rank, no quantisation, KV cache in the model's dtype")
