"""The two kinds of run: the sweep over prompt sets, and recorded traffic."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_eagle31.tools.bench import arms as arms_of
from sglang_eagle31.tools.bench import replay
from sglang_eagle31.tools.bench.options import Options, about, conditions
from sglang_eagle31.tools.bench.plan import Cell
from sglang_eagle31.tools.bench.prompts import PromptSet, load
from sglang_eagle31.tools.bench.results import Results
from sglang_eagle31.tools.bench.run import Identity, Measured, folder_of, sweep
from sglang_eagle31.tools.bench.serving import Client, client
from sglang_eagle31.tools.bench.turns import Serve, turns
from sglang_eagle31.tools.shared.client import chat
from sglang_eagle31.tools.shared.demo_model import no_head, prepare_model
from sglang_eagle31.tools.shared.prompts import Renderer
from sglang_eagle31.tools.shared.same_answers import logits
from sglang_eagle31.tools.shared.same_answers.ties import tie_rule
from sglang_eagle31.tools.shared.server_process import serve_sglang


def run(options: Options, argv: Sequence[str], serve: Serve = serve_sglang) -> Results:
    """Measure the sweep or the traffic; the results are in ``options.out`` after every cell.

    Raises:
        ValueError: options that cannot work.
        ServerFailed: a server that does not come up or dies.
        RuntimeError: a request that a living server does not answer.
    """
    return (_sweep if options.replay is None else _replay)(options, argv, serve)


@dataclass(frozen=True)
class Chats:
    """The `run.Sender` of a sweep."""

    client: Client
    sets: Mapping[str, PromptSet]
    options: Options

    def warm(self, url: str) -> object:
        """A short chat."""
        return chat(url, [{"role": "user", "content": "Name one colour."}], 16)

    def measure(self, url: str, cell: Cell) -> Measured:
        """The first prompts of the set, the same for every arm."""
        rows = self.sets[cell.prompts].rows(self.options.count(cell.concurrency), self.options.tokens)
        return Measured(self.client.measure(url, rows, cell.concurrency))


@dataclass(frozen=True)
class Traffic:
    """The `run.Sender` of recorded requests."""

    traffic: Sequence[replay.Recorded]
    speed: float

    def warm(self, url: str) -> object:
        """The first request."""
        return replay.play(url, self.traffic[:1], 1)

    def measure(self, url: str, cell: Cell) -> Measured:
        """All of them, and what the greedy ones were answered."""
        found, answers = replay.play(url, self.traffic, cell.concurrency, self.speed)
        return Measured(found, {"answers": answers})


def _sweep(options: Options, argv: Sequence[str], serve: Serve) -> Results:
    model = options.model or prepare_model()
    rule = tie_rule(options.dtype, best_logit=logits.of_target(model, options.dtype))
    found, left_out = _arms(options, model)
    renderer = Renderer.load(model)
    most = max(options.identity, *(options.count(n) for n in options.concurrency))
    sets = [load(item, renderer, options.long_tokens, most, options.speed_category) for item in options.prompts]
    by_name = {prompts.name: prompts for prompts in sets}
    longest = max(max(prompts.tokens) for prompts in sets) + options.tokens
    flags = options.server_flags(longest)
    told = conditions(options, argv, model, found, flags, {p.name: about(p) for p in sets}, left_out)
    results = _results(options, found[0].name, told)
    asker = Identity(by_name, found[0].name, options.identity, options.tokens, rule)
    folder = folder_of(options.out)
    with client(model, folder) as sends, turns(model, flags, folder, options.kept, serve) as taken:
        sweep(
            found,
            list(by_name),
            options.concurrency,
            options.rounds,
            turns=taken,
            sender=Chats(sends, by_name, options),
            results=results,
            asker=asker if options.identity else None,
        )
    return results


def _arms(options: Options, model: Path) -> tuple[list[arms_of.Arm], dict[str, str]]:
    """The arms, the one without speculation first, and why others are left out."""
    names, left_out = list(options.arms), {}
    if arms_of.NONE not in names:
        raise ValueError(f"--arms {','.join(names)}: every ratio is to none; fix: --arms none,{','.join(names)}")
    if not (options.head / "config.json").is_file():
        raise ValueError(no_head(options.head))
    if "eagle3" in names and (why := arms_of.stock_can_read(options.head, model)):
        names.remove("eagle3")
        left_out["eagle3"] = f"stock SGLang does not run this head as it was trained; {why}"
    return arms_of.built_in(names, options.head, options.shape), left_out


def _results(options: Options, baseline: str, told: dict[str, Any]) -> Results:
    results = Results(options.out, baseline, told)
    if options.resume:
        results.resume()
    return results


def _replay(options: Options, argv: Sequence[str], serve: Serve) -> Results:
    assert options.replay is not None
    traffic = replay.read(options.replay, options.limit)
    model = options.model or prepare_model()
    name = options.replay.stem
    timed = traffic[0].at is not None
    if not timed and 0 in options.concurrency:
        raise ValueError(
            f"--concurrency 0: {options.replay} has no times (at) to keep to; fix: a number of requests at a time"
        )
    digest = hashlib.sha256(options.replay.read_bytes()).hexdigest()[:16]
    flags = options.server_flags(longest=options.long_tokens + options.tokens)
    facts = {name: {"count": len(traffic), "digest": digest, "speed": options.speed}}
    told = conditions(options, argv, model, options.replay_arms, flags, facts, {})
    results = _results(options, options.replay_arms[0].name, told)
    folder = folder_of(options.out)
    with turns(model, flags, folder, options.kept, serve) as taken:
        sweep(
            options.replay_arms,
            [name],
            options.concurrency,
            options.rounds,
            turns=taken,
            sender=Traffic(traffic, options.speed),
            results=results,
            asker=None,
        )
    _compare(results, name, options)
    return results


def _compare(results: Results, name: str, options: Options) -> None:
    """Greedy answers of each arm against the first one's, at the lowest concurrency."""
    lowest = min(options.concurrency)
    base = results.rounds.get((results.baseline, name, lowest), [])
    for arm in options.replay_arms:
        if arm.name != results.baseline:
            raws = results.rounds.get((arm.name, name, lowest), [])
            results.compared(name, arm.name, replay.differing(raws, base))
