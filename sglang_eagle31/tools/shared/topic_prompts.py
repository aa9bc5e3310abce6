"""Prompts: own templates over ``topics.json``, a user's JSONL, and what a corpus gives; each text once.

A topic, a corpus category or a conversation is either trained on or held out, never both.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sglang_eagle31.tools.shared.jsonl import read_jsonl


def plain_text(text: str) -> str:
    """Words in lower case: prompts that differ in punctuation, spacing or case alone are the same prompt."""
    return " ".join(re.findall(r"\w+", text.casefold()))


@dataclass(frozen=True)
class Prompt:
    """A conversation that waits for the assistant."""

    id: str
    source: str
    topic: str
    messages: list[dict[str, str]]
    held_out: bool

    def line(self) -> str:
        """One line of JSONL."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @property
    def text(self) -> str:
        """By which two prompts are the same: every message in lower case, without punctuation."""
        return "\n".join(f"{m['role']} {plain_text(m['content'])}" for m in self.messages)


def bucket(text: str, buckets: int) -> int:
    """A number below ``buckets`` that depends on ``text`` alone."""
    return int.from_bytes(hashlib.sha1(text.encode()).digest()[:4], "big") % buckets


def single_turn(source: str, topic: str, text: str, held_out: bool) -> Prompt:
    """A prompt of one user message; its id depends on source and text."""
    name = f"{source}-{hashlib.sha1(text.encode()).hexdigest()[:10]}"
    return Prompt(name, source, topic, [{"role": "user", "content": text}], held_out)


def template_prompts() -> Iterator[Prompt]:
    """Every template applied to every topic of its kind; one topic in twelve is held out."""
    spec = json.loads(Path(__file__).with_name("topics.json").read_text())
    for kind, templates in spec["templates"].items():
        for entry in spec[kind]:
            x, y = entry if isinstance(entry, list) else (entry, "")
            topic = f"{kind}/{x}"
            for template in templates:
                yield single_turn("template", topic, template.format(x=x, y=y), bucket(topic, 12) == 0)


def followups() -> list[str]:
    """Second user turns that fit any first answer."""
    lines: list[str] = json.loads(Path(__file__).with_name("topics.json").read_text())["followups"]
    return lines


def follow_up(prompt: Prompt, answer: str) -> Prompt:
    """The same conversation with the target's answer and a second question; its id is ``ID-2``."""
    lines = followups()
    more = [
        {"role": "assistant", "content": answer},
        {"role": "user", "content": lines[bucket(prompt.id, len(lines))]},
    ]
    return Prompt(f"{prompt.id}-2", prompt.source, prompt.topic, [*prompt.messages, *more], prompt.held_out)


def file_prompts(path: Path, held_out_share: int = 0) -> list[Prompt]:
    """A user's JSONL. Of lines without ``held_out`` one topic in ``held_out_share`` is held out (0: none)."""
    prompts = []
    for number, entry in enumerate(read_jsonl(path)):
        name = str(entry.get("id", f"{path.stem}-{number}"))
        topic = str(entry.get("topic", name))
        held_out = entry.get("held_out", held_out_share > 0 and bucket(topic, held_out_share) == 0)
        prompts.append(Prompt(name, str(entry.get("source", path.stem)), topic, entry["messages"], bool(held_out)))
    return prompts


def gather(prompts: Iterable[Prompt], seed: int) -> tuple[list[Prompt], list[Prompt]]:
    """``(train, held out)`` in a seeded order, each text once; a text or topic that is held out is not trained on."""
    found: dict[str, Prompt] = {}
    for prompt in sorted(prompts, key=lambda p: (not p.held_out, p.id)):
        found.setdefault(prompt.text, prompt)
    order = sorted(found.values(), key=lambda p: p.id)
    random.Random(seed).shuffle(order)
    held_out = [p for p in order if p.held_out]
    topics = {(p.source, p.topic) for p in held_out}
    return [p for p in order if not p.held_out and (p.source, p.topic) not in topics], held_out


def spread(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """The first ``count`` prompts, the sources in turn: a small held-out set still has every source."""
    queues: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        queues.setdefault(prompt.source, []).append(prompt)
    turns = sorted(((i, source) for source, queue in queues.items() for i in range(len(queue))))
    return [queues[source][i] for i, source in turns[:count]]
