"""Questions as token ids under each condition, by the target's tokenizer and chat template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_eagle31.tools.shared import texts
from sglang_eagle31.tools.shared.conditions import BASE

Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """One question under one condition."""

    condition: str
    prompt: int
    """Index of the question; the same for every condition and head."""
    ids: tuple[int, ...]


@dataclass(frozen=True)
class StartToken:
    """The token at position 0 that "no BoS" leaves out."""

    id: int | None
    text: str
    kind: str
    """``bos`` (the tokenizer's BoS, once, in front), ``template`` (the special token with which the template begins,
    used for every turn, as in ChatML) or ``none``."""

    def describe(self) -> str:
        """For people."""
        if self.kind == "bos":
            return f"{self.text!r}, the tokenizer's BoS"
        if self.kind == "template":
            return f"{self.text!r}, with which the template begins (there is no separate BoS)"
        return "none: prompts of this template begin with no special token, so the conditions without BoS are left out"


class Renderer:
    """The target's tokenizer with what was found out about its template."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.start = find_start(tokenizer)
        hello = [{"role": "user", "content": "Hello."}]
        self.systems = self._keeps([{"role": "system", "content": "Be kind."}, *hello], "Be kind.")
        self.tools = self._keeps_tools()

    @classmethod
    def load(cls, folder: Path | str) -> Renderer:
        """From the target's folder. Raises ValueError where there is no tokenizer or no chat template."""
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(folder)
        except (OSError, ValueError) as error:
            raise ValueError(f"--model {folder}: holds no tokenizer ({error}); fix: the target's folder") from error
        if not getattr(tokenizer, "chat_template", None):
            raise ValueError(
                f"--model {folder}: its tokenizer has no chat template, and every condition but two needs one; "
                "fix: the folder of the instruction-tuned model"
            )
        return cls(tokenizer)

    def ids(self, condition: str, messages: Messages) -> tuple[int, ...] | None:
        """Token ids of a question under ``condition``; None where the tokenizer makes the condition meaningless."""
        if condition == BASE:
            return self.chat(messages)
        if condition == "no_bos":
            return None if self.start.id is None else self.chat(messages)[1:]
        if condition == "no_template":
            front = () if self.start.id is None else (self.start.id,)
            return (*front, *self.bare(messages))
        if condition == "no_bos_no_template":
            return None if self.start.id is None else self.bare(messages)
        if condition == "swapped_system":
            return self.chat(self.with_system(messages, texts.SWAPPED_SYSTEM))
        if condition == "long_system":
            return self.chat(self.with_system(messages, texts.LONG_SYSTEM))
        if condition == "tool_calls":
            return self.with_tool(messages)
        if condition == "multi_turn":
            return self.chat(self.insert(messages, earlier_turns()))
        raise ValueError(f"no condition {condition!r}")

    def notes(self) -> list[str]:
        """How the conditions are made with this tokenizer, where that depends on it."""
        found = [f"start token (left out under no_bos): {self.start.describe()}"]
        if not self.systems:
            found.append("the template has no system role: system prompts go in front of the first user message")
        if self.tools is None:
            found.append("the template knows no tools: tool_calls writes tool, call and result as text")
        return found

    def chat(self, messages: Messages, tools: list[dict[str, Any]] | None = None) -> tuple[int, ...]:
        """The chat template with the opening of the assistant's turn."""
        return tuple(self.encode(self._text(messages, tools)))

    def bare(self, messages: Messages) -> tuple[int, ...]:
        """The texts of all messages, each with an empty line after it, without any special token.

        Without the last empty line a chat model takes the message for unfinished or for complete, and ends at once.
        """
        return tuple(self.encode("".join(f"{message['content']}\n\n" for message in messages)))

    def sizes(self, lines: list[str]) -> list[int]:
        """Number of tokens of each text."""
        return [len(ids) for ids in self.tokenizer(lines, add_special_tokens=False)["input_ids"]]

    def insert(self, messages: Messages, turns: Messages) -> Messages:
        """``turns`` between the system prompt, if there is one, and the rest."""
        head = [message for message in messages[:1] if message["role"] == "system"]
        return [*head, *turns, *messages[len(head) :]]

    def with_system(self, messages: Messages, system: str) -> Messages:
        """``system`` as the only system prompt, or in front of the first user message if the template has none."""
        rest = [message for message in messages if message["role"] != "system"]
        if self.systems:
            return [{"role": "system", "content": system}, *rest]
        first = {**rest[0], "content": f"{system}\n\n{rest[0]['content']}"}
        return [first, *rest[1:]]

    def with_tool(self, messages: Messages) -> tuple[int, ...]:
        """A tool definition and a call with its result before the question."""
        if self.tools is not None:
            return self.chat(self.insert(messages, tool_turns(self.tools)), [texts.TOOL])
        return self.chat(self.insert(messages, text_tool_turns()))

    def _text(self, messages: Messages, tools: list[dict[str, Any]] | None = None) -> str:
        more = {"tools": tools} if tools else {}
        text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **more)
        return text

    def encode(self, text: str) -> list[int]:
        """Token ids without any that the tokenizer would add."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _keeps(self, messages: Messages, *parts: str) -> bool:
        """Whether the template takes ``messages`` and writes all ``parts``."""
        return _written(lambda: self._text(messages), parts)

    def _keeps_tools(self) -> bool | None:
        """Whether arguments of a call are given as a text (True) or an object (False); None without tools."""
        parts = ("get_weather", "Current weather of a city", "Lisbon", "partly cloudy")
        for as_text in (False, True):
            messages = [*tool_turns(as_text), {"role": "user", "content": "Hello."}]
            if _written(lambda messages=messages: self._text(messages, [texts.TOOL]), parts):
                return as_text
        return None


def find_start(tokenizer: Any) -> StartToken:
    """What "BoS" means for this tokenizer and template (see :class:`StartToken`)."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hello."}], tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if not ids or ids[0] not in tokenizer.all_special_ids:
        return StartToken(None, "", "none")
    only_bos = ids[0] == tokenizer.bos_token_id and ids.count(ids[0]) == 1
    return StartToken(ids[0], tokenizer.decode([ids[0]]), "bos" if only_bos else "template")


def earlier_turns() -> Messages:
    """Three turns of user and assistant."""
    pairs = [(("user", question), ("assistant", answer)) for question, answer in texts.EARLIER_TURNS]
    return [{"role": role, "content": text} for pair in pairs for role, text in pair]


def tool_turns(arguments_as_text: bool) -> Messages:
    """A question, the call of a tool, its result and the answer, as templates with tools take them."""
    arguments: Any = json.dumps(texts.TOOL_ARGUMENTS) if arguments_as_text else texts.TOOL_ARGUMENTS
    call = {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": "call00001", "name": "get_weather"}
    return [
        {"role": "user", "content": texts.TOOL_QUESTION},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {**result, "content": json.dumps(texts.TOOL_RESULT)},
        {"role": "assistant", "content": texts.TOOL_ANSWER},
    ]


def text_tool_turns() -> Messages:
    """The same for templates without tools: definition, call and result as text of the user and the assistant."""
    call = json.dumps({"name": "get_weather", "arguments": texts.TOOL_ARGUMENTS})
    question = f"You can call this tool:\n{json.dumps(texts.TOOL)}\n\n{texts.TOOL_QUESTION}"
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": f"<tool_call>\n{call}\n</tool_call>"},
        {"role": "user", "content": f"<tool_response>\n{json.dumps(texts.TOOL_RESULT)}\n</tool_response>"},
        {"role": "assistant", "content": texts.TOOL_ANSWER},
    ]


def read_prompts(path: Path, limit: int | None) -> list[Messages]:
    """Chats of a JSONL file; an answer at the end of one is left off, for the target is to give it.

    Raises ValueError naming the line that is no chat, and for a limit below 1 or a file without prompts.
    """
    from sglang_eagle31.tools.shared.jsonl import read_jsonl

    if limit is not None and limit < 1:
        raise ValueError(f"--limit {limit}: expected at least 1 prompt; fix: for example --limit 20")
    chats = []
    for number, entry in enumerate(read_jsonl(path), 1):
        messages: Messages = list(entry["messages"])
        while messages and messages[-1].get("role") == "assistant":
            messages.pop()
        if not messages or not all(isinstance(message.get("content"), str) for message in messages):
            raise ValueError(
                f'{path}: prompt {number} has no user message as text; fix: {{"role": "user", "content": "..."}}'
            )
        chats.append(messages)
        if len(chats) == limit:
            break
    if not chats:
        raise ValueError(f'{path}: no prompts; fix: lines of {{"messages": [{{"role": "user", "content": ...}}]}}')
    return chats


def condition_cases(renderer: Renderer, condition: str, chats: Sequence[Messages]) -> list[Case]:
    """Every question under one condition; empty where the tokenizer makes it meaningless."""
    rendered = [(index, renderer.ids(condition, chat)) for index, chat in enumerate(chats)]
    return [Case(condition, index, ids) for index, ids in rendered if ids]


def _written(render: Any, parts: Sequence[str]) -> bool:
    from jinja2 import TemplateError

    try:
        text = render()
    except (TemplateError, TypeError, KeyError, ValueError):  # what templates raise for roles they do not have
        return False
    return all(part in text for part in parts)
