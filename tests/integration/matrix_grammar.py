"""Rows of constrained output."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import models
from matrix_case import Ask, Case, greedy
from matrix_model import Folders
from matrix_sampling import prompts
from transformers import AutoTokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{2,7}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
        "home": {"anyOf": [{"type": "null"}, {"enum": ["Rome", "Oslo"]}]},
    },
    "required": ["name", "age", "tags", "home"],
    "additionalProperties": False,
}
REGEXES = (
    r"[a-c]{6}",
    r"(yes|no|maybe), (yes|no)\.",
    r"\d{1,3}(\.\d{1,3}){3}",
    r"([A-Z][a-z]+ ){2,6}end",
    "é{2}[à-ü]{1,4}",
)
EBNF = """root ::= pair (", " pair)* "."
pair ::= key "=" value
key ::= "alpha" | "beta" | "gamma"
value ::= [0-9] [0-9]? | "(" pair ")"
"""
TAGGED = {
    "type": "structural_tag",
    "structures": [
        {
            "begin": "<tool_call>",
            "schema": {
                "type": "object",
                "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"enum": [1, 2, 3]}},
                "required": ["city", "days"],
            },
            "end": "</tool_call>",
        }
    ],
    "triggers": ["<tool_call>"],
}


def constrained(tokens: int, **grammar: str) -> list[Ask]:
    """Three prompts of one grammar."""
    return [greedy(prompt, tokens, **grammar, ignore_eos=False) for prompt in prompts(3, seed=11)]


def _regexes(folders: Folders) -> list[Ask]:
    return [ask for regex in REGEXES for ask in constrained(60, regex=regex)]


def _schemas(folders: Folders) -> list[Ask]:
    return constrained(160, json_schema=json.dumps(PERSON))


def _ebnf(folders: Folders) -> list[Ask]:
    return constrained(60, ebnf=EBNF)


def _tags(folders: Folders) -> list[Ask]:
    """Free text in which the tag begins by itself: the target says it after this prompt, or a bias makes it likely."""
    tag, brief = json.dumps(TAGGED), briefly(folders.target)
    return [
        greedy(folders.prompt, 90, structural_tag=tag, logit_bias={"5": bias, **brief}, ignore_eos=False)
        for bias in (0.0, 25.0, 45.0)
    ]


@cache
def briefly(target: Path) -> dict[str, float]:
    """A bias against white space, and less against commas: the target would put any number into a call's JSON."""
    tokenizer = AutoTokenizer.from_pretrained(target)
    texts = {token: tokenizer.decode([token]) for token in range(models.VOCAB)}
    spaces = {str(token): -2000.0 for token, text in texts.items() if any(sign.isspace() for sign in text)}
    return {str(token): -1000.0 for token, text in texts.items() if "," in text} | spaces


def _adjusted(folders: Folders) -> list[Ask]:
    """A grammar with a penalty, a bias and a minimum length at once."""
    more: dict[str, Any] = {"frequency_penalty": 0.9, "logit_bias": {"90": 4.0}}
    return [greedy(p, 60, regex=r"([a-h] ?)+", ignore_eos=False, **more) for p in prompts(3, seed=12)]


def _beside_free(folders: Folders) -> list[Ask]:
    """Constrained and free requests in one batch."""
    free = [greedy(prompt, 60) for prompt in prompts(6, seed=13)]
    return [ask for pair in zip([*_schemas(folders), *_ebnf(folders)], free, strict=True) for ask in pair]


def _match(answers: Any) -> bool:
    texts = [answer["text"] for answer in answers]
    return all(re.fullmatch(REGEXES[i // 3], text) for i, text in enumerate(texts) if "end" not in REGEXES[i // 3])


def _are_people(answers: Any) -> bool:
    return all(set(json.loads(answer["text"])) == set(PERSON["required"]) for answer in answers)


def _has_tag(answers: Any) -> bool:
    found = [re.findall(r"<tool_call>(.*?)</tool_call>", answer["text"], re.S) for answer in answers]
    return any(found) and all(json.loads(text)["city"] in ("Rome", "Oslo") for texts in found for text in texts)


CASES = (
    Case("Regex", "five expressions", "default", _regexes, holds=_match),
    Case("JSON schema", "strings, numbers, arrays, alternatives", "default", _schemas, holds=_are_people),
    Case("EBNF", "a recursive grammar", "default", _ebnf),
    Case("Structural tags", "free text and tagged JSON", "default", _tags, holds=_has_tag),
    Case("Grammar and others", "with a penalty and a bias", "default", _adjusted),
    Case("Grammar and others", "beside free requests in one batch", "default", _beside_free),
)
