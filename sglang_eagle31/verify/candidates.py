"""Ask both servers about the tokens at which their answers first differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import requests

from sglang_eagle31.demo.client import next_token
from sglang_eagle31.demo.compare import Difference, first_difference
from sglang_eagle31.verify.identity import Candidates, candidates_of
from sglang_eagle31.verify.replay import Answer, prompt_ids
from sglang_eagle31.verify.requests_file import Request

Key = tuple[int, int]
"""Line of the request, and which of its answers."""
Found = dict[Key, Candidates]


def differences(
    found: Sequence[Request], ours: Sequence[Answer], theirs: Sequence[Answer]
) -> Iterator[tuple[Request, Answer, int, Difference]]:
    """Greedy requests whose answers part at two tokens: request, the baseline's answer, which of its answers, where."""
    for request, a, b in zip(found, ours, theirs, strict=True):
        for choice, (one, other) in enumerate(zip(a.sequences, b.sequences, strict=False)):
            difference = first_difference(other.token_ids, one.token_ids)
            if request.greedy and difference and None not in (difference.plain, difference.speculative):
                yield request, b, choice, difference


def ask(
    url: str, found: Sequence[Request], ours: Sequence[Answer], theirs: Sequence[Answer], timeout: float
) -> tuple[Found, list[str]]:
    """What a server says of the tokens at every difference, and notes on those it does not tell.

    The prompt is sent again with the tokens that both answers share; what came before in its cache is not computed
    again. A ``logit_bias`` of the request is kept; what looks at the answer (penalties, grammars, processors) is not.
    Raises ValueError where the server is gone.
    """
    told: Found = {}
    notes = []
    for request, answer, choice, difference in differences(found, ours, theirs):
        assert difference.plain is not None and difference.speculative is not None
        wanted = (difference.speculative, difference.plain)
        more = {key: request.sampling[key] for key in ("logit_bias",) if request.sampling.get(key)}
        try:
            prefix = prompt_ids(url, request, answer, timeout) + answer.sequences[choice].token_ids[: difference.index]
            told[request.line, choice] = candidates_of(next_token(url, prefix, wanted, 1, more), difference)
        except (requests.HTTPError, KeyError, IndexError, TypeError) as error:
            notes.append(f"request {request.line}: {url} does not tell log-probabilities ({error})")
        except requests.RequestException as error:
            raise ValueError(f"{url}: is gone ({error}), at request {request.line}; fix: see its log") from error
    return told, notes
