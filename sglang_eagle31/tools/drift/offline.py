"""The probe without a server: a head and its target in torch, over given prompts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_eagle31.server.probe import attention, states
from sglang_eagle31.server.probe.record import Record
from sglang_eagle31.tools.drift.draft import Row, draft, prefill
from sglang_eagle31.tools.drift.head import Head
from sglang_eagle31.tools.drift.target import TargetModel


@dataclass(frozen=True)
class Settings:
    """What an offline probe does.

    Attributes:
        steps: rows drafted in a round; a server with ``--speculative-num-steps S`` drafts S - 1.
        topk: branches a step.
        rounds: rounds of each prompt, from places drawn in its answer.
        answer_tokens: the answer's length at most.
        seed: of the places.
    """

    steps: int = 8
    topk: int = 1
    rounds: int = 16
    answer_tokens: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("--steps", self.steps), ("--topk", self.topk), ("--rounds", self.rounds)):
            if value < 1:
                raise ValueError(f"{name} {value}: expected at least 1; fix: {name} 1")
        if self.answer_tokens < 1:
            raise ValueError(f"--answer-tokens {self.answer_tokens}: expected at least 1; fix: --answer-tokens 128")


def probe(
    head: Head, target: TargetModel, prompt: Sequence[int], settings: Settings, starts: Sequence[int] | None = None
) -> Record:
    """One prompt, answered greedily by the target.

    Args:
        head: the draft head.
        target: its target.
        prompt: token ids.
        settings: how deep, how wide, how often.
        starts: committed lengths from which to draft; drawn from the answer without.

    Raises:
        ValueError: the target's first token ends the answer.
    """
    answer = target.answer(prompt, settings.answer_tokens, ignore_eos=starts is not None)
    if not answer:
        raise ValueError(f"the target answers nothing to a prompt of {len(prompt)} tokens; fix: leave it out")
    ids = [*prompt, *answer]
    if starts is None:
        places = range(len(prompt), len(ids))
        starts = sorted(random.Random(settings.seed).sample(places, min(settings.rounds, len(places))))
    captured = target.states(ids[:-1], head.spec)
    return probe_states(head, captured, ids, len(prompt), starts, settings)


def probe_states(
    head: Head, captured: Tensor, ids: Sequence[int], prompt: int, starts: Sequence[int], settings: Settings
) -> Record:
    """The rounds of one sequence whose target states are known.

    Args:
        head: the draft head.
        captured: ``[n - 1, k * target width]`` of every token but the last.
        ids: prompt and answer, ``[n]``.
        prompt: the prompt's length.
        starts: committed lengths, ``prompt <= length < n``: the target has read so many tokens, and said one more.
        settings: how deep and how wide.
    """
    record = Record()
    located = attention.sink_rows(prompt)
    watched = [*located, *(length - 1 for length in starts)]
    cache, rows = prefill(head, captured, torch.tensor(ids[1:]), watched)
    sink = _sink([rows[row] for row in located])
    record.located(sink)
    for length in starts:
        start = rows[length - 1]
        columns = torch.arange(length)
        kind = attention.kinds(columns, sink, prompt, length)
        _attention(record, 0, start.weights, start.visible, kind, columns[-1:])
        record.add(0, captured_rms(head, captured[length - 1]))
        _states(record, 0, start.g.unsqueeze(0), start.feedback.unsqueeze(0))
        for step in draft(head, cache, start, settings.steps, settings.topk):
            kind = attention.kinds(step.columns, sink, prompt, length)
            _attention(record, step.depth, step.out.weights, step.out.visible, kind, step.own)
            _states(record, step.depth, step.fed, step.out.feedback)
    return record


def captured_rms(head: Head, captured: Tensor) -> dict[str, list[float]]:
    """RMS of the target's state at each boundary: ``[k * target width]``."""
    spec = head.spec
    names = spec.boundaries if spec.use_aux_hidden_state else ("final",)
    sizes = states.rms(captured.view(len(names), -1)).tolist()
    return {f"rms_captured_{name}": [size] for name, size in zip(names, sizes, strict=True)}


def _sink(rows: Sequence[Row]) -> int:
    """The key with the largest mean weight over heads, layers and rows of a prefill, of those that all rows see."""
    width = min(row.column for row in rows) + 1
    means = [weight[..., :width].mean(dim=(0, 1)) for row in rows for weight in row.weights]
    return int(torch.stack(means).mean(0).argmax())


def _attention(
    record: Record, depth: int, weights: Sequence[Tensor], visible: Tensor, kind: Tensor, own: Tensor
) -> None:
    for weight in weights:
        measured = attention.measure(weight, visible, kind, own)
        if depth == 0:
            measured |= attention.near(weight, own)
        record.add(depth, {name: values.tolist() for name, values in measured.items()})


def _states(record: Record, depth: int, fed: Tensor, handed: Tensor) -> None:
    sizes = {"rms_fed": states.rms(fed), "rms_handed": states.rms(handed), "cosine": states.cosine(fed, handed)}
    record.add(depth, {name: values.tolist() for name, values in sizes.items()})
