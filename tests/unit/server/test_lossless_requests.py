"""Requests of the repairs: what is remembered of them while the host is a round behind, and what processors see."""

from __future__ import annotations

import gc
from array import array
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_eagle31.server.lossless import processors
from sglang_eagle31.server.lossless.asks import ALL_TOKENS, Asks, padded, stop_tokens
from sglang_eagle31.server.lossless.ledger import Ledgers

VOCAB = 12


class Request:
    """What is read of SGLang's ``Req``."""

    def __init__(self, prompt: list[int], output: list[int], committed: int, processor: str | None = "p") -> None:
        self.origin_input_ids, self.output_ids = array("q", prompt), array("q", output)
        self.kv = SimpleNamespace(kv_committed_len=committed)
        self.retraction_count, self.custom_logit_processor = 0, processor
        self.rid = "r1"


def counts_of(ledgers: Ledgers, req: Request) -> list[int]:
    return ledgers.counts([req], VOCAB, torch.device("cpu"))[0].tolist()


@pytest.mark.parametrize("read", [[], [3]])
def test_the_prefill_s_token_is_the_root_whether_the_host_has_read_it_or_not(read: list[int]) -> None:
    req = Request([1, 2], read, committed=2)
    assert Ledgers().find(req).read() == []


def test_a_ledger_is_ahead_of_the_host() -> None:
    ledgers, req = Ledgers(), Request([1, 2], [], committed=2)
    assert counts_of(ledgers, req) == [0] * VOCAB
    ledgers.commit([req], [1], torch.tensor([[9, 9, 9], [3, 4, -1]]))
    ledgers.commit([req], [0], torch.tensor([[4, -1, -1]]))
    assert req.output_ids == array("q") and ledgers.find(req).read() == [3, 4, 4]
    assert counts_of(ledgers, req) == [0, 0, 0, 1, 2, *[0] * 7]


def test_requests_join_and_leave() -> None:
    ledgers = Ledgers()
    first, second = Request([1], [], 1), Request([1], [], 1)
    ledgers.counts([first], VOCAB, torch.device("cpu"))
    ledgers.commit([first], [0], torch.tensor([[5]]))
    ledgers.counts([second, first], VOCAB, torch.device("cpu"))
    ledgers.commit([second, first], [0, 2], torch.tensor([[6], [0], [7]]))
    assert counts_of(ledgers, first)[5:8] == [1, 0, 1] and counts_of(ledgers, second)[5:8] == [0, 1, 0]
    assert len(ledgers) == 2
    del first
    gc.collect()
    assert len(ledgers) == 1


def test_a_retracted_request_starts_from_what_it_had() -> None:
    ledgers, req = Ledgers(), Request([1, 2], [], committed=2)
    counts_of(ledgers, req)
    ledgers.commit([req], [0], torch.tensor([[8, 8]]))  # this round is lost: the host never reads it
    req.retraction_count, req.output_ids = 1, array("q", [7, 6])
    req.kv.kv_committed_len = 4
    assert ledgers.find(req).read() == [7, 6]
    assert counts_of(ledgers, req) == [*[0] * 6, 1, 1, *[0] * 4]


def test_without_a_processor_no_tokens_are_kept() -> None:
    ledgers, req = Ledgers(), Request([1], [], 1, processor=None)
    counts_of(ledgers, req)
    ledgers.commit([req], [0], torch.tensor([[5, 5]]))
    assert ledgers.find(req)._pending == [] and counts_of(ledgers, req)[5] == 2


def test_a_node_s_request_has_its_path_and_nothing_reaches_the_real_one() -> None:
    req = Request([1, 2], [3], committed=2)
    params = {"budget": 4, processors.REQUEST: req}
    one, two = processors.params_at_nodes(params, req, [5, 6], [[7], [7, 8]])
    view = two[processors.REQUEST]
    assert view.output_ids == array("q", [5, 6, 7, 8]) and one[processors.REQUEST].output_ids == array("q", [5, 6, 7])
    assert [*view.origin_input_ids, *view.output_ids] == [1, 2, 5, 6, 7, 8]
    assert view.origin_input_ids + view.output_ids == array("q", [1, 2, 5, 6, 7, 8])
    view.output_ids.append(0)
    view.note = 1
    two["budget"] = 0
    assert req.output_ids == array("q", [3]) and not hasattr(req, "note") and params["budget"] == 4
    assert view.rid == "r1" and view.note == 1
    with pytest.raises(AttributeError):
        _ = view.missing


@pytest.mark.parametrize("params", [None, {"token_ids": [3]}])
def test_params_without_the_request_are_handed_on(params: Any) -> None:
    assert processors.params_at_nodes(params, None, [], [[1], [1, 2]]) == [params, params]


def test_a_path_is_read_from_the_root() -> None:
    assert processors.root_first([9, 4, 2, -1]) == [2, 4, 9]


def test_a_processor_changes_its_own_requests_only() -> None:
    logits = torch.zeros(6, 4)  # three requests of two nodes
    seen: list[Any] = []

    def processor(given: torch.Tensor, params: list[Any]) -> torch.Tensor:
        seen.extend(params)
        return given + torch.arange(1, len(params) + 1).unsqueeze(1)

    processors.run(logits, 2, processor, torch.tensor([0, 2]), [["a", "b"], ["c", "d"]])
    assert seen == ["a", "b", "c", "d"] and logits[:, 0].tolist() == [1, 2, 0, 0, 3, 4]


def params(**changes: Any) -> SimpleNamespace:
    plain = {
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_new_tokens": 0,
        "top_k": ALL_TOKENS,
        "top_p": 1.0,
        "min_p": 0.0,
        "stop_token_ids": None,
    }
    return SimpleNamespace(**{**plain, **changes})


def test_what_a_batch_asks_for() -> None:
    asked = [
        params(),
        params(frequency_penalty=-0.1),
        params(presence_penalty=0.5, min_p=0.1, top_k=1),
        params(repetition_penalty=1.1, min_new_tokens=3),
        params(min_p=0.1),
        params(top_k=40),
        params(top_k=40, top_p=0.9),
        params(min_new_tokens=2),
    ]
    reqs = [SimpleNamespace(sampling_params=one, output_ids=[5, 5]) for one in asked]
    entry = SimpleNamespace(rows=[0, 6])
    info = SimpleNamespace(
        has_custom_logit_processor=True,
        custom_logit_processor={1: entry},
        acc_additive_penalties=None,
        acc_scaling_penalties=None,
    )
    found = Asks.of(reqs, info)
    assert found == Asks(counted=[1, 2, 3], short=[3], processed=[0, 6], filtered=[4, 6])
    assert found.remembered() == [0, 1, 2, 3, 6] and not found.none(info)
    info.has_custom_logit_processor = False
    assert Asks.of([reqs[0], reqs[5], reqs[7]], info).none(info)
    info.acc_additive_penalties = "SGLang's own"
    assert not Asks.of([reqs[0], reqs[5], reqs[7]], info).none(info)


def test_stop_tokens_are_those_of_request_model_and_tokenizer() -> None:
    tokenizer = SimpleNamespace(additional_stop_token_ids={4}, eos_token_id=None)
    req = SimpleNamespace(sampling_params=params(stop_token_ids={7, 99}), eos_token_ids={2}, tokenizer=tokenizer)
    assert stop_tokens(req, 50) == [2, 4, 7]
    req.tokenizer = None
    assert stop_tokens(req, 50) == [2, 7]
    assert padded([[1, 2], [3], []]) == [[1, 2], [3, 3], [-1, -1]]
