"""One case of the feature matrix: what is asked of a server, and when two servers' answers count as the same."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matrix_answers
import requests
from matrix_model import Folders

ANSWER = 400.0
TOGETHER = 24
LOGPROB = 1e-4
"""Log probabilities may differ by this much: a token's row in a larger batch sums in another order. Tokens may not."""

Body = dict[str, Any]


@dataclass(frozen=True)
class Ask:
    """One HTTP request; with ``stream`` in the body its events are put together."""

    body: Body
    route: str = "/generate"


@dataclass
class Place:
    """A server, and what it counted."""

    url: str
    folders: Folders
    log: Path
    speculative: bool = False
    meta: list[Body] = field(default_factory=list)

    def post(self, route: str, body: Body | None = None, **more: Any) -> requests.Response:
        """A request as it is."""
        return requests.post(self.url + route, json=body, timeout=ANSWER, **more)

    def ask(self, ask: Ask) -> Any:
        """The answer without what differs between any two runs: `matrix_answers`."""
        response = self.post(ask.route, ask.body, stream=bool(ask.body.get("stream")))
        if response.status_code != 200:
            return {"refused": response.status_code, "message": matrix_answers.message(response)}
        return matrix_answers.read(ask.route, ask.body, response, self.meta)

    def flush(self) -> None:
        """Empty the cache, once the scheduler has let go of the last answers."""
        self.post("/flush_cache?timeout=60").raise_for_status()

    def generate(self, prompt: Sequence[int], tokens: int, **more: Any) -> Body:
        """One greedy answer to token ids, with SGLang's facts under ``meta``."""
        response = self.post("/generate", greedy(prompt, tokens, **more).body)
        response.raise_for_status()
        answer = response.json()
        self.meta.append(answer["meta_info"])
        return {"ids": answer["output_ids"], "meta": answer["meta_info"]}

    def together(self, asked: Sequence[Ask]) -> list[Any]:
        """Answers in order, to requests that join and leave one batch."""

        def later(item: tuple[int, Ask]) -> Any:
            time.sleep(0.01 * (item[0] % TOGETHER))
            return self.ask(item[1])

        with ThreadPoolExecutor(TOGETHER) as pool:
            return list(pool.map(later, enumerate(asked)))


@dataclass(frozen=True)
class Case:
    """One row.

    Attributes:
        feature: what a reader looks for.
        name: of the row.
        flags: of the servers, a key of ``matrix_run.GROUPS``.
        requests: what is sent together in one batch, or a function that uses a server and returns what is compared.
        compare: ``same`` answers, or the ``law`` of sampled ones.
        holds: whether the answer shows that the feature did something; asked of every server's.
        refused: what SGLang says instead, in part, by mode (``chain``, ``tree``).
        acts: whether ``requests`` uses the server itself.
        long: whether only `make features` has the time for it.
    """

    feature: str
    name: str
    flags: str
    requests: Callable[[Folders], list[Ask]] | Callable[[Place], Any]
    compare: str = "same"
    holds: Callable[[Any], bool] = bool
    refused: Mapping[str, str] = field(default_factory=dict)
    acts: bool = False
    long: bool = False

    def answer(self, place: Place) -> Any:
        """What a server answers."""
        if self.acts:
            return self.requests(place)  # type: ignore[arg-type]
        asked: Any = self.requests(place.folders)  # type: ignore[arg-type]
        return place.together(asked)


def greedy(prompt: Sequence[int], tokens: int = 40, **more: Any) -> Ask:
    """Greedy on token ids; ``more`` goes to the sampling parameters, or beside them if it is a field of a request."""
    fields = {key: more.pop(key) for key in list(more) if key in FIELDS}
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **more}
    return Ask({"input_ids": list(prompt), "sampling_params": sampling, **fields})


FIELDS = (
    "return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob", "custom_logit_processor", "stream",
    "session_params", "lora_path", "rid",
)  # fmt: skip


def difference(wanted: Any, found: Any, at: str = "") -> str:
    """Where two answers differ first, and how; empty if nowhere."""
    if isinstance(wanted, dict) and isinstance(found, dict) and wanted.keys() == found.keys():
        return next((text for key in wanted if (text := difference(wanted[key], found[key], f"{at}.{key}"))), "")
    if isinstance(wanted, list) and isinstance(found, list):
        pairs = enumerate(zip(wanted, found, strict=False))
        first = next((text for i, (w, f) in pairs if (text := difference(w, f, f"{at}[{i}]"))), "")
        return first or ("" if len(wanted) == len(found) else f"{at}: {len(found)} items, not {len(wanted)}")
    if isinstance(wanted, float) and isinstance(found, float):
        return "" if wanted == found or abs(wanted - found) <= LOGPROB else f"{at}: {found}, not {wanted}"
    return "" if wanted == found else f"{at}: {json.dumps(found)[:200]}, not {json.dumps(wanted)[:200]}"


def in_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Start ``work`` now; the function that is returned waits for it and gives its result."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(work()))
    thread.start()

    def wait() -> Any:
        thread.join(ANSWER)
        if not result:
            raise RuntimeError("a request of the case failed")
        return result[0]

    return wait
