"""Long contexts: the question at the end of real text, cut to a number of tokens."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from sglang_eagle31.tools.shared import texts
from sglang_eagle31.tools.shared.conditions import context_name
from sglang_eagle31.tools.shared.prompts import Case, Messages, Renderer

TOLERANCE = 0.9
"""A prompt belongs to a bucket of L tokens if it has 0.9 L to L tokens."""

PYTHON = "the language reference in Python's help()"


class Filler:
    """Lines of a text with their lengths in tokens; each question gets them from a place of its own on."""

    def __init__(self, text: str, renderer: Renderer, seed: int) -> None:
        self.lines = [part for line in text.splitlines() for part in textwrap.wrap(line, 160)]
        self.sizes = renderer.sizes([f"{line}\n" for line in self.lines]) if self.lines else []
        self.renderer = renderer
        self.shift = random.Random(seed).random()

    @classmethod
    def of_python(cls, renderer: Renderer, seed: int) -> Filler:
        """About 460,000 characters of English prose with some code, the same for one version of Python.

        Raises ValueError for a Python without them.
        """
        try:
            from pydoc_data.topics import topics
        except ImportError as error:
            raise ValueError(f"this Python comes without its help texts ({error}); fix: --filler FILE") from error
        return cls("\n".join(topics[name] for name in sorted(topics)), renderer, seed)

    @classmethod
    def of_file(cls, path: Path, renderer: Renderer, seed: int) -> Filler:
        """A text file. Raises ValueError if it is no text or has none."""
        try:
            filler = cls(path.read_text(encoding="utf-8"), renderer, seed)
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"--filler {path}: {error}; fix: a UTF-8 text file") from error
        if not filler.lines:
            raise ValueError(f"--filler {path}: no text in it; fix: a text of some thousand tokens")
        return filler

    def case(self, tokens: int, index: int, messages: Messages) -> Case | None:
        """Question ``index`` as `chat` has it, in token ids."""
        chat = self.chat(tokens, index, messages)
        return None if chat is None else Case(context_name(tokens), index, self.renderer.chat(chat))

    def chat(self, tokens: int, index: int, messages: Messages) -> Messages | None:
        """Question ``index`` with so much text that the prompt has at most ``tokens`` tokens.

        None if it does not fit, or if the text is too short for the bucket.
        """
        order = self._from(index)
        room = tokens - len(self.renderer.chat(self._filled(messages, [])))
        ends = accumulate(self.sizes[line] for line in order)
        count = sum(end <= room for end in ends)
        while count > 0:
            chat = self._filled(messages, [self.lines[line] for line in order[:count]])
            length = len(self.renderer.chat(chat))
            if length <= tokens:  # lengths of lines on their own do not add up exactly
                break
            count -= 1
        if count == 0 or length < TOLERANCE * tokens:
            return None
        return chat

    def cases(self, tokens: int, chats: Sequence[Messages]) -> list[Case]:
        """The bucket of ``tokens``."""
        found = [self.case(tokens, index, chat) for index, chat in enumerate(chats)]
        return [case for case in found if case is not None]

    def _from(self, index: int) -> list[int]:
        """All lines once, from a place on that is far from those of other questions (steps of the golden section)."""
        first = int(len(self.lines) * ((self.shift + index * 0.618034) % 1.0))
        return [*range(first, len(self.lines)), *range(first)]

    def _filled(self, messages: Messages, lines: Sequence[str]) -> Messages:
        text = texts.FILLER_HEAD + "\n".join(lines) + texts.FILLER_TAIL + str(messages[-1]["content"])
        return [*messages[:-1], {**messages[-1], "content": text}]
