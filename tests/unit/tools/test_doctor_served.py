"""Every outcome of the checks of a head, a server and its acceptance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from doctor_facts import (
    ACCEPTANCE,
    FACTS,
    HEAD,
    REPORT,
    SERVER,
    SOFTWARE,
    TOTAL,
    counted,
    guarded,
    marked,
    served,
    stock,
)

from sglang_eagle31.server.probe.record import Record
from sglang_eagle31.tools.doctor.checks import acceptance, checklist, guard, head, server
from sglang_eagle31.tools.doctor.facts import Head, Line, Server

DOWN = Server("http://x", "--url http://x: refused; fix: start it")


def audited(**changes: Any) -> Head:
    return replace(HEAD, report={**REPORT, **changes})


def on_stock(outcome: str) -> Head:
    return audited(elsewhere={"sglang": {"outcome": outcome, "reasons": ["norms are dropped"]}})


def drifting(growth: float, steps: int = 4, errors: bool = True) -> Server:
    """A server whose probe has seen states that grow by a factor a step."""
    record = Record()
    for depth in range(steps + 1):
        spread = (0.99, 1.01) if errors else (0.2, 1.8)
        sizes = [growth**depth * one for one in spread] * 20
        shares = {"mass_sink": [0.5] * 40, "mass_drafted": [0.1] * 40}
        record.add(depth, {"rms_fed": sizes, **shares})
    probe = {"record": record.to_json(), "rounds": 40, "rate": 1.0, "heads": 2, "layers_not_seen": 0}
    return served(internal_states=[{"eagle31": {"acceptance": ACCEPTANCE, "drift": probe}}])


def templates(*patterns: str) -> dict[str, Any]:
    part = {**TOTAL, "rounds": TOTAL["rounds"] // len(patterns)}
    return {str(index): {"pattern": pattern, **part} for index, pattern in enumerate(patterns)}


OFTEN = {"rounds": {"plain": 900, "drafted": 100}}
OFF = {"running": {"1": "0,1,1", "4": "0,1,1"}}
OBSERVE = {"mode": "observe", "rounds": {"plain": 0, "drafted": 1000}}
UNGUARDED = served(internal_states=[{"eagle31": {"acceptance": ACCEPTANCE}}])
ALARM = {"cause": "dead", "text": "only 0.01 are accepted; fix: audit it", "times": 1}
LONG = {"0-511": TOTAL, "8192-16383": {**TOTAL, "rounds": 100}}
VERY_LONG = {"16384-32767": TOTAL}
CASES = [
    (head.audited(HEAD), "ok", "exactly as trained"),
    (head.audited(None), "skip", "no head"),
    (head.audited(Head("/x", error="/x holds no config.json; fix: give the folder")), "FAIL", "no config.json"),
    (head.audited(audited(verdict="refused", reasons=["d2t is missing"])), "FAIL", "d2t is missing"),
    (head.audited(audited(verdict="needs-override", reasons=["feedback"])), "FAIL", "leave open feedback"),
    (head.audited(replace(HEAD, target=None)), "warn", "without a target"),
    (head.elsewhere(HEAD, None), "ok", "computes the same"),
    (head.elsewhere(on_stock("wrong"), SERVER), "warn", "something else: norms are dropped"),
    (head.elsewhere(on_stock("wrong"), stock()), "FAIL", "something else"),
    (head.elsewhere(on_stock("stops"), None), "warn", "stops"),
    (head.elsewhere(on_stock("unknown"), None), "skip", "norms are dropped"),
    (head.context(HEAD), "ok", "8192 positions"),
    (head.context(replace(HEAD, context=None)), "skip", "8192 positions"),
    (head.context(replace(HEAD, context=32768)), "warn", "refuses"),
    (server.answers(SERVER), "ok", "/target"),
    (server.answers(DOWN), "FAIL", "refused"),
    (server.marker(SERVER), "ok", "EAGLE 3.1 head /head"),
    (server.marker(stock()), "warn", "stock SGLang"),
    (server.marker(stock(speculative_algorithm="NGRAM")), "warn", "runs NGRAM"),
    (server.marker(stock(speculative_algorithm=None)), "warn", "without speculation"),
    (server.marker(stock(launch_command="--speculative-algorithm=eagle3.1")), "FAIL", "fell back"),
    (
        server.marker(stock(launch_command="--speculative-algorithm EAGLE31", speculative_algorithm=None)),
        "FAIL",
        "fell",
    ),
    (server.marker(stock(launch_command="--speculative-draft-model-path EAGLE31")), "warn", "stock SGLang"),
    (server.schedulers(SERVER), "ok", "1 of 1"),
    (server.schedulers(served(internal_states=[{"eagle31": {}}, {}])), "FAIL", "1 of 2"),
    (server.version(SERVER, SOFTWARE), "ok", "as here"),
    (server.version(served(version="0.5.24"), SOFTWARE), "warn", "SGLang 0.5.24"),
    (server.version(marked(version="0.2.0"), SOFTWARE), "warn", "sglang-eagle31 0.2.0"),
    (server.version(served(version=None), SOFTWARE), "skip", "does not state"),
    (server.tree(SERVER), "ok", "steps 3, topk 1, draft tokens 4"),
    (server.tree(served(speculative_num_steps=6)), "warn", "last 3 steps"),
    (server.tree(served(speculative_num_steps=6, speculative_eagle_topk=2)), "FAIL", "verification fails"),
    (server.depth(SERVER, None), "ok", "trained with 5"),
    (server.depth(served(speculative_num_steps=7), None), "ok", "post-norm"),
    (server.depth(replace(stock(speculative_num_steps=7), depth=5), None), "warn", "falls off"),
    (server.depth(replace(stock(speculative_num_steps=7), depth=None), HEAD), "warn", "trained with 5"),
    (server.depth(replace(SERVER, depth=None), None), "ok", "every trainer"),
    (server.depth(replace(stock(speculative_num_steps=7), depth=None), None), "skip", "do not say"),
    (server.context(SERVER), "ok", "8192"),
    (server.context(marked(target={"context_length": 32768})), "warn", "falls beyond"),
    (server.context(replace(stock(), positions=4096)), "warn", "takes 8000 tokens"),
    (server.context(replace(SERVER, positions=None)), "skip", "no limit known"),
    (server.window(marked(spec={"sliding_window": 2048})), "ok", "2048 keys"),
    (
        server.window(
            replace(
                marked(spec={"sliding_window": 2048}),
                info={**marked(spec={"sliding_window": 2048}).info, "speculative_draft_window_size": 512},
            )
        ),
        "warn",
        "shows 513 keys",
    ),
    (server.window(served(speculative_draft_window_size=512)), "warn", "trained with all"),
    (server.attention(SERVER), "ok", "torch_native on cpu"),
    (server.attention(served(attention_backend="flashinfer")), "warn", "not tested"),
    (server.pool(SERVER), "ok", "16000"),
    (server.pool(served(max_total_num_tokens=100)), "warn", "refused"),
    (server.tested(SERVER), "ok", "one rank"),
    (server.tested(served(tp_size=2, kv_cache_dtype="fp8_e4m3")), "warn", "tp_size 2, kv_cache_dtype fp8_e4m3"),
    (server.tested(served(quantization="fp8", speculative_adaptive=True)), "warn", "quantization fp8, spec"),
    (acceptance.alarm(SERVER), "ok", "none"),
    (acceptance.alarm(counted(alarm=ALARM)), "FAIL", "dead: only 0.01"),
    (acceptance.alarm(counted(alarm={"cause": None, "times": 2})), "warn", "2 times"),
    (acceptance.length(SERVER), "ok", "2.50 tokens a round"),
    (acceptance.length(counted({"drafts": 20})), "skip", "too few"),
    (acceptance.length(counted({"drafts": 0, "accept_length": None, "accepted_by_depth": []})), "skip", "1.00 tokens"),
    (acceptance.length(counted({"accepted_by_depth": [10, 0, 0], "accepted_tokens": 10})), "FAIL", "1% of the first"),
    (acceptance.length(counted({"accepted_by_depth": [300, 50, 0], "accepted_tokens": 350})), "warn", "hardly pays"),
    (acceptance.length(stock()), "ok", "2.50 tokens"),
    (acceptance.length(stock(internal_states=[{"avg_spec_accept_length": 1.02}])), "FAIL", "1.02 tokens"),
    (acceptance.length(stock(internal_states=[{"avg_spec_accept_length": 1.3}])), "warn", "hardly pays"),
    (acceptance.length(stock(internal_states=[{}])), "skip", "no average yet"),
    (acceptance.depths(SERVER), "ok", "70%, 50%, 30%"),
    (acceptance.depths(counted({"accepted_by_depth": [700, 100, 3]})), "warn", "beyond 2"),
    (acceptance.templates(SERVER), "ok", "1 in use"),
    (
        acceptance.templates(counted(by_template=templates("...", "<s> ..."))),
        "warn",
        "50% of the rounds are of prompts without",
    ),
    (acceptance.templates(counted(by_template=templates("<s> <s> ...", "<s> ..."))), "warn", "doubled"),
    (acceptance.templates(served(skip_tokenizer_init=True)), "skip", "no tokenizer"),
    (acceptance.contexts(SERVER), "ok", "0%"),
    (acceptance.contexts(counted(by_context=LONG)), "warn", "10%"),
    (acceptance.drift(SERVER), "skip", "no drift probe"),
    (acceptance.drift(drifting(1.0)), "ok", "stays"),
    (acceptance.drift(drifting(1.3)), "warn", "magnitude drifts"),
    (acceptance.drift(drifting(1.05, errors=False)), "skip", "may change"),
    (guard.guard(SERVER), "ok", "on, 10% of 1000 rounds"),
    (guard.guard(UNGUARDED), "warn", "off: nothing ends"),
    (guard.guard(guarded({"rounds": {"plain": 90, "drafted": 9}}, {})), "ok", "on, 17% of 1099 rounds"),
    (guard.guard(guarded({"rounds": {"plain": 190, "drafted": 9}})), "skip", "on, 199 rounds: too few"),
    (guard.guard(guarded({"rounds": {"plain": 500, "drafted": 500}})), "ok", "50%"),
    (guard.guard(guarded(OFTEN | OFF)), "warn", "90% of 1000 rounds without a draft: 70% of the first drafted tokens"),
    (guard.guard(guarded(OFTEN | OFF)), "warn", "does not pay for a draft here"),
    (guard.guard(guarded(OFTEN | {"hit": [[99.0], [0.0], [0.0]]})), "warn", "10% of the first drafted tokens are"),
    (guard.guard(guarded(OFTEN | {"hit": [[99.0], [0.0], [0.0]]})), "warn", "the head is dead"),
    (guard.guard(guarded(OFTEN | {"tried": [[0.0]], "hit": [[0.0]]})), "warn", "no request let it draft"),
    (guard.guard(guarded(OFTEN | {"running": {"1": "3,1,4", "4": "0,1,1"}})), "warn", "up to the range from 1 request"),
    (guard.guard(guarded(OFTEN)), "warn", "does not pay for a draft here"),
    (guard.guard(guarded(OBSERVE)), "ok", "no shape is predicted to be faster"),
    (
        guard.guard(guarded(OBSERVE | {"predicted": {"3,1,4": 0.8, "0,1,1": 1.0}})),
        "warn",
        "0,1,1 is predicted to give 1.25x",
    ),
    (guard.guard(guarded(OBSERVE | {"predicted": {"3,1,4": 0.96, "0,1,1": 1.0}})), "ok", "no shape"),
    (guard.guard(guarded(OBSERVE | {"predicted": {"0,1,1": 1.0}})), "skip", "can predict nothing"),
    (
        guard.guard(guarded(OBSERVE, OBSERVE | {"predicted": {"3,1,4": 0.5, "1,1,2": 1.1}})),
        "warn",
        "1,1,2 is predicted to give 2.20x",
    ),
    (checklist.family(FACTS), "ok", "server started"),
    (checklist.family(replace(FACTS, server=None)), "ok", "by audit"),
    (checklist.family(replace(FACTS, server=None, head=audited(verdict="refused"))), "FAIL", "does not pass"),
    (checklist.family(replace(FACTS, server=None, head=None)), "skip", "exactly this target"),
    (checklist.same_output(FACTS), "skip", "without speculation?"),
    (checklist.monitored(FACTS), "ok", "by depth"),
    (checklist.monitored(replace(FACTS, server=None)), "skip", "watched"),
    (checklist.monitored(replace(FACTS, server=served(enable_metrics=False))), "warn", "off"),
    (checklist.monitored(replace(FACTS, server=stock())), "warn", "last interval"),
    (checklist.templates(FACTS), "skip", "templates"),
    (checklist.long_context(FACTS), "skip", "0 drafts were that long"),
    (checklist.long_context(replace(FACTS, server=None)), "skip", "context lengths"),
    (checklist.long_context(replace(FACTS, server=counted(by_context=VERY_LONG))), "ok", "2.50 tokens a round"),
    (
        checklist.long_context(
            replace(FACTS, server=counted(by_context=VERY_LONG, alarm={**ALARM, "cause": "context"}))
        ),
        "FAIL",
        "alarm",
    ),
    (checklist.latency(FACTS), "skip", "TTFT"),
    (checklist.fallback(FACTS), "ok", "the guard does"),
    (checklist.fallback(replace(FACTS, server=None)), "skip", "does not pay?"),
    (checklist.fallback(replace(FACTS, server=guarded({}, {"mode": "observe"}))), "skip", "does not pay?"),
    (checklist.fallback(replace(FACTS, server=stock(max_running_requests=64))), "skip", "takes 32 requests"),
    (checklist.rollout(FACTS), "skip", "replayed"),
    (checklist.domain(FACTS), "skip", "own prompts"),
    (checklist.sampling(FACTS), "skip", "temperature"),
    (checklist.drifting(FACTS), "skip", "drift with"),
    (checklist.drifting(replace(FACTS, server=drifting(1.0))), "ok", "probe is on"),
]


@pytest.mark.parametrize(("line", "status", "text"), CASES, ids=[str(index) for index in range(len(CASES))])
def test_an_outcome(line: Line | None, status: str, text: str) -> None:
    assert line is not None and (line.status, text in line.text) == (status, True), line
    assert bool(line.fix) == (status != "ok"), line


NOTHING = stock(speculative_algorithm=None)


@pytest.mark.parametrize(
    "line",
    [
        head.elsewhere(None, SERVER),
        head.elsewhere(audited(elsewhere={}), SERVER),
        head.context(None),
        server.schedulers(stock()),
        server.window(SERVER),
        server.window(stock(speculative_draft_window_size=512)),
        server.pool(served(max_total_num_tokens=None)),
        *(check(NOTHING) for check in (server.tree, server.context, server.attention)),
        *(check(NOTHING) for check in (acceptance.alarm, acceptance.length, acceptance.depths, acceptance.templates)),
        *(check(NOTHING) for check in (acceptance.contexts, acceptance.drift, guard.guard)),
        server.depth(NOTHING, HEAD),
        acceptance.depths(counted({"drafts": 20})),
        acceptance.templates(counted({"drafts": 20})),
        acceptance.contexts(replace(SERVER, positions=None)),
    ],
)
def test_what_does_not_apply_gives_no_line(line: Line | None) -> None:
    assert line is None
