"""The end of a request with several stops in one accepted run, on SGLang's own request."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_eagle31.patches.req_update_finish_state import SEAM, earliest

LETTERS = "abcd."


class Letters:
    """A tokenizer whose tokens are letters; token 4 ends a text."""

    eos_token_id = 4
    additional_stop_token_ids = None

    def decode(self, ids: Any) -> str:
        return "".join(LETTERS[token] for token in ids)


class Grammar:
    """One that has seen a run and says that it is complete."""

    def is_terminated(self) -> bool:
        return True


def request(stops: list[str], patterns: list[str], most: int, grammar: Grammar | None = None) -> Any:
    from sglang.srt.managers.schedule_batch import Req

    req = Req.__new__(Req)
    params = SimpleNamespace(
        stop_strs=stops,
        stop_regex_strs=patterns,
        stop_str_max_len=max(map(len, stops), default=0),
        stop_regex_max_len=4 if patterns else 0,
        stop_token_ids=None,
        ignore_eos=False,
        max_new_tokens=most,
    )
    given = {"sampling_params": params, "tokenizer": Letters(), "output_ids": [], "decoded_text": "", "rid": "r"}
    state = {"finished_reason": None, "finished_len": None, "to_finish": None, "eos_token_ids": None, "vocab_size": 5}
    for name, value in {**given, **state, "grammar": grammar}.items():
        setattr(req, name, value)
    return req


def end(req: Any, runs: list[list[int]], update: Any) -> tuple[str | None, int | None]:
    """The reason and the length with which a request ends that is given its tokens in these runs."""
    for run in runs:
        req.output_ids.extend(run)
        update(req, len(run))
        if req.finished():
            return str(req.finished_reason.to_json()), req.finished_len or len(req.output_ids)
    return None, None


@pytest.fixture(scope="module")
def stock() -> Any:
    from sglang.srt.managers.schedule_batch import Req

    return getattr(Req.update_finish_state, "__wrapped__", Req.update_finish_state)


def repaired(stock: Any) -> Any:
    return lambda req, length: earliest(stock, req, length)


def test_the_first_stop_in_the_text_ends_it_and_not_the_first_in_the_list(stock: Any) -> None:
    run = [2, 1, 3, 0]  # "cbda" with stops "d" and "b"
    assert end(request(["d", "b"], [], 99), [run], stock)[1] == 3, "SGLang ends it at the right place now"
    req = request(["d", "b"], [], 99)
    assert end(req, [run], repaired(stock))[1] == 2
    assert req.output_ids == run


def test_a_stop_token_before_a_stop_string_ends_the_request(stock: Any) -> None:
    run = [0, 4, 1, 0]
    assert end(request(["b"], [], 99), [run], stock)[1] == 3
    assert end(request(["b"], [], 99), [run], repaired(stock))[1] == 2


def test_a_complete_grammar_ends_it_with_the_last_token_of_the_run(stock: Any) -> None:
    req = request(["dd"], [], 99, Grammar())
    reason, length = end(req, [[0, 1, 2]], repaired(stock))
    assert length == 3 and reason is not None and req.output_ids == [0, 1, 2] and req.grammar is not None


@pytest.mark.parametrize(("stops", "most", "length"), [([], 4, 4), (["c"], 9, 3), ([], 9, 5)])
def test_an_aborted_request_keeps_its_reason_and_ends_where_it_would_have(
    stock: Any, stops: list[str], most: int, length: int
) -> None:
    req = request(stops, [], most)
    req.to_finish = broken_off = SimpleNamespace(to_json=lambda: {"type": "abort"})
    assert end(req, [[0, 1, 2, 3, 3]], repaired(stock)) == ("{'type': 'abort'}", length)
    assert req.finished_reason is broken_off and req.to_finish is None
    req = request(stops, [], most)
    req.to_finish = broken_off
    assert end(req, [[0, 1, 2, 3, 3]], stock)[1] == 5  # SGLang gives all of the run


def test_any_runs_end_where_single_tokens_end(stock: Any) -> None:
    rng, ended = random.Random(0), 0
    for _ in range(600):
        stops = ["".join(rng.choices("abcd", k=rng.randint(1, 3))) for _ in range(rng.randint(0, 3))]
        patterns = rng.sample(["[ab]c", "d+", "a$"], rng.randint(0 if stops else 1, 2))
        tokens = rng.choices(range(5), [4, 4, 4, 4, 1], k=24)
        cuts = [0, *sorted(rng.sample(range(1, 24), 6)), 24]
        runs = [tokens[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]
        most = rng.choice([6, 15, 99])
        alone = end(request(stops, patterns, most), [[token] for token in tokens], stock)
        assert end(request(stops, patterns, most), runs, repaired(stock)) == alone, (stops, patterns, runs)
        ended += alone[1] is not None
    assert ended > 400


def test_the_seam_is_on_the_method() -> None:
    assert SEAM.target.endswith("Req.update_finish_state") and SEAM.group == "eagle31"
