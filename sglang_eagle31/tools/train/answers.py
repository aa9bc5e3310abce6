"""From prompts to conversations: the target answers, the answers are filtered, one JSONL file a batch is written.

A file appears under its name only when complete, and files that are there are not made again, so a stopped run goes on
where it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from sglang_eagle31.tools.shared.topic_prompts import Prompt, bucket, follow_up
from sglang_eagle31.tools.train.data import Sample, render_chat
from sglang_eagle31.tools.train.filters import Answers, loop_start
from sglang_eagle31.tools.train.generate import Engine, Reply

MIN_ANSWER = 12
"""Shorter answers (in tokens, also after a loop was cut off) are dropped."""
FOLLOWED = 3
"""At most one conversation in so many goes on to a second turn."""


@dataclass(frozen=True)
class AnswerOptions:
    """How the target answers."""

    batch: int = 64
    """Prompts answered together."""
    max_new_tokens: int = 192
    sampled: float = 0.25
    """Share of the prompts (by their id) that is answered at temperature 1; the others are answered greedily."""
    second_turns: bool = True

    def __post_init__(self) -> None:
        for name in ("batch", "max_new_tokens"):
            if getattr(self, name) < 1:
                flag = f"--{name.replace('_', '-')}"
                raise ValueError(f"{flag} {getattr(self, name)}: too small; fix: a number of at least 1")
        if not 0 <= self.sampled <= 1:
            raise ValueError(f"--sampled {self.sampled}: not a share; fix: a number from 0 to 1")

    def temperature(self, prompt: Prompt) -> float:
        """0 or 1, by the prompt's id."""
        return 1.0 if bucket(f"temperature {prompt.id}", 1000) < 1000 * self.sampled else 0.0


def answer_prompts(
    make_engine: Callable[[], Engine], tokenizer: Any, prompts: Sequence[Prompt], out: Path, options: AnswerOptions
) -> None:
    """Write ``out/NNNN.jsonl`` (first turns) and ``out/NNNN-2.jsonl`` (second turns of some).

    The engine is asked for only if something is left to answer; who made it ends it.
    """
    out.mkdir(parents=True, exist_ok=True)
    groups = [prompts[i : i + options.batch] for i in range(0, len(prompts), options.batch)]
    suffixes = ("", "-2") if options.second_turns else ("",)
    left = [i for i in range(len(groups)) if not all((out / f"{i:04d}{s}.jsonl").exists() for s in suffixes)]
    if not left:
        return
    engine = make_engine()
    with tqdm(total=len(groups), initial=len(groups) - len(left), unit="batch") as bar:
        bar.set_description(f"answers ({engine.name})")
        for number in left:
            first = out / f"{number:04d}.jsonl"
            if not first.exists():
                _write(first, _answer(engine, tokenizer, list(groups[number]), options, first.stem))
            if options.second_turns:
                second = first.with_name(f"{number:04d}-2.jsonl")
                _write(second, _answer(engine, tokenizer, _second_turns(first), options, second.stem))
            bar.update()


def _answer(
    engine: Engine, tokenizer: Any, prompts: list[Prompt], options: AnswerOptions, key: str
) -> Iterator[dict[str, Any]]:
    if not prompts:
        return
    rendered = [render_chat(tokenizer, p.messages) for p in prompts]
    heat = [options.temperature(p) for p in prompts]
    replies = engine.answer(rendered, heat, options.max_new_tokens, key)
    for prompt, ids, temperature, reply in zip(prompts, rendered, heat, replies, strict=True):
        yield _line(tokenizer, prompt, ids, temperature, reply)


def _line(tokenizer: Any, prompt: Prompt, ids: list[int], temperature: float, reply: Reply) -> dict[str, Any]:
    cut = reply.ids[: loop_start(reply.ids)]
    text = tokenizer.decode(cut, skip_special_tokens=True).strip()
    return {
        "id": prompt.id,
        "source": prompt.source,
        "topic": prompt.topic,
        "temperature": temperature,
        "held_out": prompt.held_out,
        "finished": reply.finished,
        "looped": len(cut) < len(reply.ids),
        "messages": [*prompt.messages, {"role": "assistant", "content": text}],
        "ids": [*ids, *cut],
        "prompt_length": len(ids),
    }


def _write(path: Path, lines: Iterator[dict[str, Any]]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    partial.rename(path)


def _second_turns(first: Path) -> list[Prompt]:
    """Follow-up questions to greedy answers that ended by themselves."""
    lines = [json.loads(line) for line in first.read_text(encoding="utf-8").splitlines()]
    good = [
        x for x in lines if x["finished"] and not x["looped"] and x["temperature"] == 0 and x["messages"][-1]["content"]
    ]
    prompts = [Prompt(x["id"], x["source"], x["topic"], x["messages"][:-1], x["held_out"]) for x in good]
    asked = [follow_up(p, x["messages"][-1]["content"]) for p, x in zip(prompts, good, strict=True)]
    return asked[: max(1, len(lines) // FOLLOWED)]


@dataclass
class Kept:
    """What the filters left of the answers."""

    samples: list[Sample]
    answers: int = 0
    short: int = 0
    looped: int = 0
    alike: int = 0

    def to_dict(self) -> dict[str, int]:
        """Counts, for the provenance file; looped answers that were long enough before the loop are kept."""
        return {
            "answers": self.answers,
            "kept": len(self.samples),
            "too_short": self.short,
            "loops_cut": self.looped,
            "near_identical": self.alike,
        }


def read_answers(folder: Path, max_length: int = 0) -> Kept:
    """Samples (without the target's states) of the answers in ``folder``; short and near-identical ones left out.

    Raises ValueError where there are none.
    """
    kept, seen = Kept([]), Answers()
    for path in sorted(folder.glob("*.jsonl")):
        for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            ids, start = line["ids"][: max_length or None], line["prompt_length"]
            kept.answers += 1
            kept.looped += line["looped"]
            if len(ids) - start < MIN_ANSWER:
                kept.short += 1
            elif not seen.add(ids[start:]):
                kept.alike += 1
            else:
                info = {name: line[name] for name in ("id", "source", "topic", "temperature")}
                kept.samples.append(Sample.bare(ids, [i >= start for i in range(len(ids))], info))
    if not kept.answers:
        raise ValueError(f"{folder}: no answers in it; fix: make them (python -m sglang_eagle31 data --out ...)")
    return kept
