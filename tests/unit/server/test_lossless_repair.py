"""The repairs in rounds of a toy engine whose host reads every round one round late, as SGLang's overlap schedule does.

The toy target's logits are a table by the last token; drafts are random trees. Requests join, leave, are retracted and
are mixed into a prefill, and every answer is compared with a loop that takes one token at a time.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_lossless import random_trees

from sglang_eagle31.server.lossless import paths, repair
from sglang_eagle31.server.lossless.prefill import repaired

VOCAB, NODES, DEPTH, STOP = 14, 8, 8, 3
TABLE = 3 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(0))
TABLE[:, STOP] += 4  # often wanted, so that it matters when it is forbidden
MODE = SimpleNamespace(is_idle=lambda: False)


class Request:
    """What is read of SGLang's ``Req``; ``said`` is the answer, ``output_ids`` what the host has read of it."""

    def __init__(self, seed: int, processed: bool = False, **asked: float) -> None:
        self.origin_input_ids = array("q", [random.Random(seed).randrange(4, VOCAB), 1 + seed % 3])
        self.output_ids, self.said = array("q"), list[int]()
        plain = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_new_tokens": 0}
        limits = {"top_k": 1, "top_p": 1.0, "min_p": 0.0, "stop_token_ids": {STOP}}
        self.sampling_params = SimpleNamespace(**plain, **limits)
        self.sampling_params.__dict__.update(asked)
        self.eos_token_ids, self.tokenizer = None, None
        self.custom_logit_processor = "p" if processed else None
        self.kv, self.retraction_count = SimpleNamespace(kv_committed_len=2), 0
        self.truth: list[int] = []

    @property
    def base(self) -> int:
        """Tokens in the KV cache: prompt and answer without the root."""
        return len(self.origin_input_ids) + len(self.said) - 1

    def read(self) -> None:
        """The host catches up."""
        self.output_ids = array("q", self.said)
        self.kv.kv_committed_len = self.base


@dataclass
class Info:
    """What is read of SGLang's ``SamplingBatchInfo``; the penalties are wrong unless they are replaced."""

    has_custom_logit_processor: bool
    custom_logit_processor: Any
    custom_params: Any
    acc_additive_penalties: Any
    acc_scaling_penalties: Any = None
    logit_bias: Any = None
    is_all_greedy: bool = True


def never_thrice(logits: torch.Tensor, params: list[Any]) -> torch.Tensor:
    """A processor that forbids what is in the output twice."""
    for row, one in zip(logits, params, strict=True):
        row[[token for token, times in Counter(one["__req__"].output_ids).items() if times > 1]] = float("-inf")
    return logits


def batch_of(reqs: list[Request], **more: Any) -> Any:
    rows = [row for row, req in enumerate(reqs) if req.custom_logit_processor]
    entry = SimpleNamespace(rows=rows, indices=torch.tensor(rows, dtype=torch.long), processor=never_thrice)
    params = [{"__req__": req} if req.custom_logit_processor else None for req in reqs]
    wrong = 1e3 * torch.randn(len(reqs), VOCAB, generator=torch.Generator().manual_seed(len(reqs)))
    info = Info(bool(rows), {1: entry}, params, wrong)
    lengths = torch.tensor([req.base for req in reqs])
    return SimpleNamespace(reqs=reqs, sampling_info=info, seq_lens=lengths, forward_mode=MODE, **more)


def expected(req: Request, length: int) -> list[int]:
    """One token at a time; what was computed before is kept."""
    out = req.truth
    asked = req.sampling_params
    while len(out) < length:
        logits = TABLE[([*req.origin_input_ids, *out])[-1]].clone()
        for token, times in Counter(out).items():
            value = float(logits[token]) - asked.frequency_penalty * times - asked.presence_penalty
            logits[token] = value * asked.repetition_penalty if value < 0 else value / asked.repetition_penalty
            if req.custom_logit_processor and times > 1:
                logits[token] = float("-inf")
        if len(out) < asked.min_new_tokens:
            logits[STOP] = float("-inf")
        out.append(int(logits.argmax()))
    return out[:length]


def walk(verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any) -> Any:
    """SGLang's greedy verification."""
    penalties = batch.sampling_info.acc_additive_penalties
    logits = logits_output.next_token_logits.view(len(batch.reqs), NODES, VOCAB)
    choice = (logits if penalties is None else logits + penalties.unsqueeze(1)).argmax(-1)
    parents = paths.parents(verify_input.retrieve_next_token, verify_input.retrieve_next_sibling)
    tokens, index = verify_input.draft_token.view(-1, NODES), torch.full((len(batch.reqs), DEPTH), -1)
    for row in range(len(batch.reqs)):
        here, place = 0, 0
        while True:
            index[row, place], place = row * NODES + here, place + 1
            children = [n for n in range(NODES) if parents[row, n] == here and tokens[row, n] == choice[row, here]]
            if not children:
                break
            here = children[0]
    return choice.flatten(), (index >= 0).sum(1), index


def penalised(asked: Any) -> bool:
    """Whether SGLang makes penalties for a batch with it, for as long as it runs."""
    return bool(
        asked.frequency_penalty or asked.presence_penalty or asked.min_new_tokens or asked.repetition_penalty != 1.0
    )


def verify_round(reqs: list[Request], seed: int) -> None:
    """Draft a tree, verify it, and add what was accepted to the answers."""
    _, child, sibling = random_trees(len(reqs), NODES, seed)
    tokens = torch.randint(VOCAB, (len(reqs), NODES), generator=torch.Generator().manual_seed(seed))
    tokens[:, 0] = torch.tensor([req.said[-1] for req in reqs])
    parents = paths.parents(child, sibling)
    for row, req in enumerate(reqs):  # some drafts are right, so that paths are walked
        for node in range(1, NODES):
            if node % 3 and parents[row, node] == node - 1:
                path = [int(token) for token in paths.path_tokens(tokens, parents, DEPTH)[row, node - 1] if token >= 0]
                tokens[row, node] = expected(req, len(req.said) + len(path))[-1]
    given = SimpleNamespace(
        draft_token=tokens.flatten(),
        draft_token_num=NODES,
        retrieve_next_token=child,
        retrieve_next_sibling=sibling,
        max_tree_depth=DEPTH,
    )
    batch, output = batch_of(reqs), SimpleNamespace(next_token_logits=TABLE[tokens.flatten()].clone())
    info = batch.sampling_info
    if not any(penalised(req.sampling_params) for req in reqs):
        info.acc_additive_penalties = None
    predict, lengths, index = repair.verify(walk, given, batch, output)
    assert batch.sampling_info is info
    for row, req in enumerate(reqs):
        req.said += predict[index[row, : lengths[row]]].tolist()


def prefill(new: list[Request], tails: Sequence[Request] = ()) -> None:
    """SGLang's prefill: one token by its sampler, whose penalties start at zero."""
    reqs = [*new, *tails]
    last = [([*req.origin_input_ids, *req.said])[-1] for req in reqs]
    ids = [token for req in new for token in (*req.origin_input_ids, *req.said)] + [req.said[-1] for req in tails]
    batch = batch_of(reqs, input_ids=torch.tensor(ids), decoding_reqs=list(tails) or None)
    batch.seq_lens = torch.tensor([len(req.origin_input_ids) + len(req.said) for req in reqs])
    for row, req in enumerate(reqs):
        batch.sampling_info.acc_additive_penalties[row] = 0.0
        short = req.sampling_params.min_new_tokens > 0
        batch.sampling_info.acc_additive_penalties[row, STOP] = float("-inf") if short else 0.0
    with repaired(batch):
        info = batch.sampling_info
        logits = TABLE[torch.tensor(last)] + info.acc_additive_penalties
        if info.acc_scaling_penalties is not None:
            scale = info.acc_scaling_penalties
            logits = torch.where(logits < 0, logits * scale, logits / scale)
        for entry in info.custom_logit_processor.values():
            logits[entry.rows] = entry.processor(logits[entry.rows], [info.custom_params[row] for row in entry.rows])
    for row, req in enumerate(reqs):
        req.said.append(int(logits[row].argmax()))


ASKED: list[dict[str, Any]] = [
    {"frequency_penalty": 0.8},
    {"presence_penalty": 2.5, "processed": True},
    {"frequency_penalty": 0.3, "repetition_penalty": 1.6, "min_new_tokens": 11},
    {"processed": True},
    {"min_new_tokens": 9},
    {},
]


def check(reqs: list[Request]) -> None:
    for req in reqs:
        assert req.said == expected(req, len(req.said))


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_batches_of_any_kind_are_exact(seed: int, late: bool) -> None:
    """Requests join one by one and leave, with the host one round behind or not."""
    draw, waiting = random.Random(seed), [Request(10 * seed + i, **asked) for i, asked in enumerate(ASKED)]
    done, running = waiting.copy(), list[Request]()
    for step in range(18):
        if waiting and not step % 2:
            prefill(waiting[:1])
            running.append(waiting.pop(0))
        before = [(req, list(req.said), req.base) for req in running]
        verify_round(running, 1000 * seed + step)
        for req, said, base in before:
            req.output_ids, req.kv.kv_committed_len = array("q", said), base
            if not late:
                req.read()
        if len(running) > 3 and draw.random() < 0.2:
            running.pop(draw.randrange(len(running)))
    check(done)
    assert sum(len(req.said) for req in done) > 100


@pytest.mark.parametrize("late", [True, False])
def test_mixed_into_a_prefill_and_retracted(late: bool) -> None:
    reqs = [Request(i, **asked) for i, asked in enumerate(ASKED)]
    prefill(reqs)
    for step in range(3):
        for req in reqs:
            req.output_ids = array("q", req.said[: len(req.said) - late])
            req.kv.kv_committed_len = len(req.origin_input_ids) + max(len(req.output_ids) - 1, 0)
        prefill([Request(20 + step)], reqs)
        check(reqs)
        verify_round(reqs, step)
        check(reqs)
    for epoch in range(1, 6):
        for req in reqs:
            if late:  # the last round is lost
                req.said = list(req.output_ids)
            req.read()
            req.retraction_count, req.kv.kv_committed_len = epoch, len(req.origin_input_ids) + len(req.said)
        prefill([*reqs, Request(30 + epoch)])
        check(reqs)
        for req in reqs:
            req.read()
        verify_round(reqs, 50 + epoch)
        check(reqs)


def test_a_minimum_that_is_reached_forbids_no_more() -> None:
    """SGLang's own count is a token a round, so its penalties still forbid the stop tokens then."""
    reqs = [Request(seed, min_new_tokens=2) for seed in range(4)]
    prefill(reqs)
    for step in range(12):
        verify_round(reqs, 70 + step)
        for req in reqs:
            req.read()
    check(reqs)


def test_a_batch_that_asks_for_nothing_goes_straight_through() -> None:
    batch = batch_of([Request(0), Request(1)])
    batch.sampling_info.acc_additive_penalties = None
    seen: list[Any] = []
    answer = repair.verify(
        lambda *args, **kwargs: seen.append((args, kwargs)) or "it", "tree", batch, "out", "mask", k=1
    )
    assert answer == "it" and seen == [(("tree", batch, "out", "mask"), {"k": 1})]
