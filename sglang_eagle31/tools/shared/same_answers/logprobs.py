"""Ask a server what it says of the tokens of an answer, each after the tokens before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import requests

TIMEOUT = 600.0
"""Seconds for an answer."""


class NotTold(RuntimeError):
    """A server that runs does not give the log-probabilities that it is asked for."""


@dataclass(frozen=True)
class NextToken:
    """Log-probabilities of the token at one place; their differences are those of the logits."""

    best: float
    """Of the most probable token."""
    told: Mapping[int, float]
    """By token id."""

    def gap(self, *tokens: int) -> float:
        """From the best token to the worst of ``tokens``."""
        return self.best - min(self.told[token] for token in tokens)


def teacher_forced(
    url: str,
    prompt: Sequence[int],
    answer: Sequence[int],
    wanted: Sequence[int] = (),
    bias: Mapping[int, float] | None = None,
    timeout: float = TIMEOUT,
    cache: str | None = None,
) -> list[NextToken]:
    """What the server says at each place of ``answer``, of one prefill: the token there, and ``wanted`` at every place.

    SGLang's prefix cache gives nothing behind ``logprob_start_len``, so the whole answer is computed; ``cache`` names
    a part of it that others do not use. ``bias`` is the ``logit_bias`` of the request, which input log-probabilities
    are without. Raises NotTold where the server refuses or tells of other tokens, requests.RequestException where it
    is gone.
    """
    if not answer:
        return []
    bias = bias or {}
    named = sorted({*wanted, *bias})
    body = {
        "input_ids": [*prompt, *answer],
        "sampling_params": {"temperature": 0, "max_new_tokens": 1},
        "return_logprob": True,
        "logprob_start_len": len(prompt) - 1,
        "top_logprobs_num": 1 + len(bias),  # so that one of them is without bias
        **({"token_ids_logprob": named} if named else {}),
        **({"extra_key": cache} if cache else {}),
    }
    response = requests.post(f"{url}/generate", json=body, timeout=timeout)
    if not response.ok:
        raise NotTold(
            f"{url}: does not take prompt and answer, {len(prompt)} + {len(answer)} tokens, to check them (status "
            f"{response.status_code}: {response.text[:300]}); fix: shorter answers, or a server with a larger "
            "--context-length or --max-total-tokens"
        )
    try:
        return _places(url, response.json()["meta_info"], answer, bias, bool(named))
    except (KeyError, TypeError, ValueError) as error:
        raise NotTold(
            f"{url}: does not tell log-probabilities of its input ({error!r}); fix: SGLang 0.5.23 or later"
        ) from error


def _places(
    url: str, meta: Mapping[str, Any], answer: Sequence[int], bias: Mapping[int, float], named: bool
) -> list[NextToken]:
    """The first row of each of the server's lists is the prompt's last token, which it tells nothing of."""
    own, top = meta["input_token_logprobs"][1:], meta["input_top_logprobs"][1:]
    more = meta["input_token_ids_logprobs"][1:] if named else [[]] * len(own)
    _check_aligned(url, [row[1] for row in own], answer)
    found = []
    for token, (value, *_), *others in zip(answer, own, top, more, strict=True):
        pairs = [(name, float(told)) for row in others for told, name, *_ in row] + [(token, float(value))]
        biased = [(name, told + bias.get(name, 0.0)) for name, told in pairs]
        found.append(NextToken(max(told for _, told in biased), dict(biased)))
    return found


def _check_aligned(url: str, told: Sequence[int], answer: Sequence[int]) -> None:
    """SGLang names the last token of its vocabulary 0."""
    right = sum(name in (token, 0) for name, token in zip(told, answer, strict=False))
    if not len(told) == right == len(answer):
        raise NotTold(
            f"{url}: tells of other tokens than it was sent ({len(told)}, {right} of them right, for an answer of "
            f"{len(answer)}); fix: start it without --allow-auto-truncate, and without a proxy that changes requests"
        )


class OneByOne:
    """What the server says of an answer whose tokens are sent one by one, with all before them in its cache.

    This is how they are decoded, so a wide product of a prefill does not round them. Raises as `teacher_forced` does.
    """

    def __init__(
        self, url: str, prompt: Sequence[int], answer: Sequence[int], bias: Mapping[int, float] | None, timeout: float
    ) -> None:
        self.url, self.prompt, self.answer, self.bias, self.timeout = url, prompt, answer, bias, timeout
        self.cache = uuid4().hex
        self.told: list[NextToken] = []

    def __call__(self, index: int) -> NextToken:
        """At an index of the answer."""
        for end in range(len(self.told), index + 1):
            prefix, token = [*self.prompt, *self.answer[:end]], self.answer[end]
            self.told += teacher_forced(self.url, prefix, [token], (), self.bias, self.timeout, self.cache)
        return self.told[index]
