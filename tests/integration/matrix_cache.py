"""Rows of memory: chunks of a prompt, the prefix cache, pages, the context's limit, and requests that are put back."""

from __future__ import annotations

from typing import Any

from matrix_case import Ask, Case, Place, greedy
from matrix_model import EOS, Folders
from matrix_sampling import prompts

CONTEXT, CHUNK, PAGE, RESERVED = 1024, 256, 16, 8

PAGED = {"tree": "speculative_eagle_topk > 1 with page_size > 1 is only supported on"}
"""By the backends that SGLang lists, none of which is for a CPU."""
TOO_LONG = dict.fromkeys(("chain", "tree"), "context length")


def _chunks(folders: Folders) -> list[Ask]:
    lengths = (CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 700, 950)
    long = [greedy(prompts(1, length, seed=length)[0], 30) for length in lengths]
    return [ask for pair in zip([greedy(p, 60) for p in prompts(6, seed=31)], long, strict=True) for ask in pair]


def _prefixes(count: int) -> Any:
    """Hits of every length that leaves another rest of a page, one after the other."""

    def run(place: Place) -> list[Any]:
        first = prompts(1, 64, seed=32 + count)[0]
        place.flush()
        said = [place.generate(first, 40)]
        for length in range(30, 30 + count):
            rest = prompts(1, 9, seed=length)[0]
            said.append(place.generate([*first[:length], *rest], 10))
        # what was generated is in the cache as well
        whole = first + said[0]["ids"]
        said += [place.generate(whole[:length], 10) for length in range(64, 64 + count)]
        hits = [one["meta"]["cached_tokens"] for one in said]
        assert hits[0] == 0 and min(hits[1:]) >= 16, hits
        return [one["ids"] for one in said]

    return run


def _sized(sizes: tuple[tuple[int, int], ...], seed: int) -> list[Ask]:
    return [greedy(prompts(1, length, seed=seed + i)[0], tokens) for i, (length, tokens) in enumerate(sizes)]


def _limit(folders: Folders) -> list[Ask]:
    """Of SGLang's context it keeps the largest tree's tokens for drafts."""
    room = CONTEXT - RESERVED
    return _sized(((room - 1, 1), (room - 2, 2), (room - 9, 9), (room - 40, 40), (room - 300, 300)), 40)


def _reserved(folders: Folders) -> list[Ask]:
    """What fits without speculation only."""
    return _sized(((CONTEXT - 7, 7), (CONTEXT - 40, 40)), 50)


def _beyond(folders: Folders) -> list[Ask]:
    return _sized(((CONTEXT, 1), (CONTEXT + 60, 4), (CONTEXT - 10, 40)), 55)


def _unlimited(folders: Folders) -> list[Ask]:
    """No number of tokens is given: the answer ends at the limit."""
    return [
        Ask({"input_ids": p, "sampling_params": {"temperature": 0, "ignore_eos": True, "max_new_tokens": None}})
        for p in prompts(2, CONTEXT - 60, seed=60)
    ]


def _under_pressure(place: Place) -> list[Any]:
    """More tokens than memory holds: some requests must be put back and computed again.

    With ``ignore_eos`` SGLang reserves memory for the whole answer, so the end token is forbidden by a bias instead.
    """
    before, sampling = len(place.meta), {"ignore_eos": False, "logit_bias": {str(EOS): -1000.0}}
    answers = place.together([greedy(prompt, 150, **sampling) for prompt in prompts(10, seed=70)])
    put_back = sum(meta["num_retractions"] for meta in place.meta[before:])
    assert put_back > 0, "no request was retracted"
    return answers


def _plain_pages(folders: Folders) -> list[Ask]:
    return [greedy(prompt, 50) for length in (15, 16, 17, 31, 33) for prompt in prompts(2, length, seed=length)]


def _refused(answers: Any) -> bool:
    return all("context" in answer.get("message", "") for answer in answers)


def _to_the_end(answers: Any) -> bool:
    return [answer["completion_tokens"] for answer in answers] == [1, 2, 9, 40, 300]


CASES = (
    Case("Chunked prefill", "prompts around multiples of the chunk, while others decode", "default", _chunks),
    Case(
        "Prefix cache", "hits of 1 to 16 more tokens, of prompts and of answers", "default", _prefixes(PAGE), acts=True
    ),
    Case("Context limit", "prompts and answers that just fit", "default", _limit, holds=_to_the_end),
    Case("Context limit", "the last tokens, which SGLang keeps for drafts", "default", _reserved, refused=TOO_LONG),
    Case("Context limit", "no `max_new_tokens`: the answer ends at the limit", "default", _unlimited),
    Case("Context limit", "one token too many", "default", _beyond, holds=_refused, refused=TOO_LONG),
    Case("Page size 16", "prompts around multiples of the page", "pages", _plain_pages, refused=PAGED),
    Case(
        "Page size 16",
        "prefix hits of every length mod page size",
        "pages",
        _prefixes(PAGE + 1),
        acts=True,
        refused=PAGED,
    ),
    Case(
        "Page size 16", "requests retracted under memory pressure", "pages", _under_pressure, acts=True, refused=PAGED
    ),
    Case("Retraction", "requests retracted under memory pressure", "pressure", _under_pressure, acts=True),
)
