"""Mixed requests to a tiny server, and what their answers say of acceptance: a count that shares nothing with ours."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import requests
from conftest import ANSWER, prompt

from sglang_eagle31.tools.shared.server_process import Server

BOS = 1
STARTS = {"none": [], "bos": [BOS], "double": [BOS, BOS]}
"""Three templates: what a prompt begins with."""
LENGTHS = {"0-511": (4, 200), "512-1023": (600, 900), "1024-2047": (1100, 1500)}
"""Context buckets, and lengths of prompts whose answers stay in them; the last are prefilled in chunks of 256."""


@dataclass(frozen=True)
class Asked:
    """One answer, with the bucket and the template of its prompt."""

    bucket: str
    start: str
    answer: dict[str, Any]

    @property
    def meta(self) -> dict[str, Any]:
        return self.answer["meta_info"]

    @property
    def reason(self) -> str:
        return self.meta["finish_reason"]["type"]

    @property
    def committed(self) -> int:
        """Tokens from verify rounds: all but the one that the prefill samples."""
        return max(0, len(self.answer["output_ids"]) - 1)


def ask(server: Server, index: int, seed: int) -> list[Asked]:
    """Request number ``index``, of one of ten kinds."""
    chance = random.Random(f"{seed}-{index}")
    kind = index % 10
    bucket = "512-1023" if kind == 7 else "1024-2047" if kind == 8 else "0-511"
    start = chance.choice(sorted(STARTS))
    ids = STARTS[start] + prompt(chance.randint(*LENGTHS[bucket]), chance.randrange(10**6))
    sampling: dict[str, Any] = {"temperature": 0, "max_new_tokens": chance.randint(16, 48), "ignore_eos": kind != 3}
    body: dict[str, Any] = {"sampling_params": sampling, "rid": f"acceptance-{seed}-{index}"}
    if kind in (1, 2):  # a prefix that is shared with others
        ids = STARTS[start] + prompt(300, 7) + prompt(20, index)
    elif kind == 3:  # ends in the middle of a path
        sampling |= {"max_new_tokens": 60, "stop_token_ids": chance.sample(range(3, 512), 60)}
    elif kind == 4:
        sampling["max_new_tokens"] = chance.randint(1, 4)
    elif kind == 5:
        sampling["n"] = chance.randint(2, 3)
        del body["rid"]
    elif kind == 6:  # aborted while it runs
        sampling["max_new_tokens"] = 150
        threading.Thread(target=abort, args=(server, body["rid"], chance.uniform(0.02, 0.4))).start()
    response = requests.post(f"{server.url}/generate", json={"input_ids": ids, **body}, timeout=ANSWER)
    response.raise_for_status()
    found = response.json()
    return [Asked(bucket, start, answer) for answer in (found if isinstance(found, list) else [found])]


def abort(server: Server, rid: str, after: float) -> None:
    time.sleep(after)
    requests.post(f"{server.url}/abort_request", json={"rid": rid}, timeout=ANSWER).raise_for_status()


def traffic(server: Server, count: int, seed: int = 0) -> list[Asked]:
    """``count`` requests, eight at a time."""
    with ThreadPoolExecutor(8) as pool:
        return [asked for batch in pool.map(lambda index: ask(server, index, seed), range(count)) for asked in batch]


@dataclass(frozen=True)
class Recount:
    """Sums over answers."""

    rounds: int
    used: int
    offered: int
    committed: int
    histogram: dict[int, int]


def recount(asked: Iterable[Asked]) -> Recount:
    """From SGLang's fields of each answer and from its tokens."""
    answers = [one for one in asked if "spec_verify_ct" in one.meta]
    histogram: Counter[int] = Counter()
    for one in answers:
        histogram.update(dict(enumerate(one.meta["spec_correct_drafts_histogram"])))
    return Recount(
        rounds=sum(one.meta["spec_verify_ct"] for one in answers),
        used=sum(one.meta["spec_num_correct_drafts"] for one in answers),
        offered=sum(one.meta["spec_num_proposed_drafts"] for one in answers),
        committed=sum(one.committed for one in answers),
        histogram={accepted: count for accepted, count in histogram.items() if count},
    )
