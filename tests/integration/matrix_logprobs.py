"""Rows of log probabilities: same tokens and texts, values equal to 1e-4."""

from __future__ import annotations

from typing import Any

from matrix_case import Ask, Case, greedy
from matrix_model import Folders
from matrix_sampling import prompts


def _asked(**more: Any) -> list[Ask]:
    return [greedy(prompt, 24, return_logprob=True, **more) for prompt in prompts(3, seed=21)]


def _chosen(folders: Folders) -> list[Ask]:
    return _asked()


def _top(folders: Folders) -> list[Ask]:
    return [*_asked(top_logprobs_num=5), *_asked(top_logprobs_num=1)]


def _input(folders: Folders) -> list[Ask]:
    return [ask for start in (0, 7, 29) for ask in _asked(logprob_start_len=start, top_logprobs_num=3)]


def _named(folders: Folders) -> list[Ask]:
    return _asked(token_ids_logprob=[5, 77, 300])


def _adjusted(folders: Folders) -> list[Ask]:
    """Log probabilities of logits with a bias and a penalty."""
    return _asked(top_logprobs_num=2, logit_bias={"77": 6.0}, presence_penalty=1.1)


def _streamed(folders: Folders) -> list[Ask]:
    return _asked(top_logprobs_num=2, stream=True)


def _complete(answers: Any) -> bool:
    return all(len(answer["output_token_logprobs"]) == len(answer["ids"]) for answer in answers)


CASES = (
    Case("Log probabilities", "of the chosen tokens", "default", _chosen, holds=_complete),
    Case(
        "Log probabilities",
        "top 1 and top 5",
        "default",
        _top,
        holds=lambda a: len(a[0]["output_top_logprobs"][3]) == 5,
    ),
    Case(
        "Log probabilities",
        "of the input, from three starts",
        "default",
        _input,
        holds=lambda a: len(a[0]["input_token_logprobs"]) == 30,
    ),
    Case(
        "Log probabilities",
        "of named tokens",
        "default",
        _named,
        holds=lambda a: len(a[0]["output_token_ids_logprobs"][2]) == 3,
    ),
    Case("Log probabilities", "with a bias and a penalty", "default", _adjusted, holds=_complete),
    Case("Log probabilities", "streamed", "default", _streamed),
)
