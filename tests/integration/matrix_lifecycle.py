"""Rows of what happens to requests and servers: aborts, pauses, flushes, new weights, sessions, programs."""

from __future__ import annotations

import json
import uuid
from typing import Any

import matrix_answers
import requests
from matrix_case import ANSWER, Ask, Case, Place, greedy, in_thread
from matrix_sampling import prompts

LONG, OTHERS = 200, 30
NO_EMBEDDINGS = dict.fromkeys(("chain", "tree"), "does not appear to be an embedding model")


def _stream(place: Place, ask: Ask, stop_after: int, then: Any) -> dict[str, Any]:
    """The last event of a stream; ``then`` is called once, when it has given ``stop_after`` tokens."""
    last: dict[str, Any] = {}
    called = False
    with place.post(ask.route, ask.body, stream=True) as response:
        for line in response.iter_lines():
            if line.startswith(b"data: {"):
                last = json.loads(line[6:])
                if not called and len(last["output_ids"]) >= stop_after:
                    called = True
                    if then(response) == "leave":
                        break
    return last


def _abort(place: Place) -> Any:
    """One of five is aborted while it is streamed; the others and the next are as ever."""
    prompt, *others = prompts(5, seed=81)
    whole = place.generate(prompt, LONG)["ids"]
    rest = in_thread(lambda: place.together([greedy(p, OTHERS * 2) for p in others]))
    rid = uuid.uuid4().hex
    ask = greedy(prompt, LONG, stream=True, rid=rid)
    last = _stream(place, ask, 12, lambda _: place.post("/abort_request", {"rid": rid}))
    assert last["meta_info"]["finish_reason"]["type"] == "abort", last["meta_info"]["finish_reason"]
    said = last["output_ids"]
    assert 12 <= len(said) < LONG and said == whole[: len(said)]
    return [whole, rest(), place.generate(prompt, OTHERS)["ids"]]


def _disconnect(place: Place) -> Any:
    """The same, but the client goes away."""
    prompt, *others = prompts(5, seed=82)
    whole = place.generate(prompt, LONG)["ids"]
    rest = in_thread(lambda: place.together([greedy(p, OTHERS * 2) for p in others]))
    last = _stream(place, greedy(prompt, LONG, stream=True), 12, lambda _: "leave")
    said = last["output_ids"]
    assert said == whole[: len(said)]
    return [whole, rest(), place.generate(prompt, OTHERS)["ids"]]


def _pause(mode: str, flush: bool = False) -> Any:
    """A pause in the middle of four answers; with ``flush`` what is cached is dropped meanwhile."""

    def run(place: Place) -> Any:
        prompt, *others = prompts(4, seed=83)
        rest = in_thread(lambda: place.together([greedy(p, LONG) for p in others]))

        def pause(_: requests.Response) -> None:
            place.post("/pause_generation", {"mode": mode}).raise_for_status()
            if flush:
                place.post("/flush_cache").raise_for_status()
            place.post("/continue_generation", {}).raise_for_status()

        last = _stream(place, greedy(prompt, LONG, stream=True), 12, pause)
        return [last["output_ids"], rest()]

    return run


def _pause_abort(place: Place) -> Any:
    """A pause that ends what runs: what was said until then is the beginning of the answer."""
    prompt = prompts(1, seed=84)[0]
    whole = place.generate(prompt, LONG)["ids"]
    ended = []

    def pause(_: requests.Response) -> None:
        ended.append(place.post("/pause_generation", {"mode": "abort"}).status_code)

    said = _stream(place, greedy(prompt, LONG, stream=True), 12, pause)["output_ids"]
    place.post("/continue_generation", {}).raise_for_status()
    assert ended == [200] and len(said) < LONG and said == whole[: len(said)]
    return [whole, place.generate(prompt, OTHERS)["ids"]]


def _flush(place: Place) -> Any:
    """The same prompt from a full and from an empty cache."""
    prompt = prompts(1, 90, seed=85)[0]
    said = [place.generate(prompt, OTHERS), place.generate(prompt, OTHERS)]
    place.flush()
    said.append(place.generate(prompt, OTHERS))
    assert said[1]["meta"]["cached_tokens"] > 80 and said[2]["meta"]["cached_tokens"] == 0
    return [one["ids"] for one in said]


def _weights(place: Place) -> Any:
    """The same weights again, others, and the first again."""
    asked = [greedy(p, OTHERS) for p in prompts(4, seed=86)]
    said = [place.together(asked)]
    for folder in (place.folders.target, place.folders.other, place.folders.target):
        place.flush()
        place.post("/update_weights_from_disk", {"model_path": str(folder)}).raise_for_status()
        said.append(place.together(asked))
    assert said[0] == said[1] == said[3] and said[2] != said[0]
    return said


def _session(place: Place) -> Any:
    """Three turns, and a second answer to the second turn."""
    name = place.post("/open_session", {"capacity_of_str_len": 4000}).json()
    said: list[Any] = []
    rid: str | None = None
    turns = prompts(4, 20, seed=87)
    for at, turn in enumerate(turns):
        ask = greedy(turn, OTHERS, session_params={"id": name, "rid": rid})
        answer = place.post("/generate", ask.body).json()
        said.append([answer["output_ids"], answer["meta_info"]["prompt_tokens"]])
        rid = answer["meta_info"]["id"] if at < 2 else rid
    place.post("/close_session", {"session_id": name}).raise_for_status()
    assert said[1][1] > said[0][1] and said[3][1] > said[1][1]
    return said


def _program(place: Place) -> Any:
    """`sgl.function`: generate, fork in three, join, select."""
    from sglang_eagle31.server.cpu import standin

    standin.prepare()
    import sglang as sgl

    @sgl.function  # type: ignore[untyped-decorator]
    def program(s: Any, question: str) -> None:
        s += "Q: " + question + "\nA: "
        s += sgl.gen("answer", max_tokens=20, temperature=0)
        forks = s.fork(3)
        for i, fork in enumerate(forks):
            fork += f"\nReason {i}: "
            fork += sgl.gen("reason", max_tokens=16, temperature=0, stop="\n")
        forks.join()
        s += "\n" + "; ".join(fork["reason"] for fork in forks)
        s += "\nVerdict: " + sgl.select("verdict", choices=["agreed", "refused", "in part"])

    backend = sgl.RuntimeEndpoint(place.url)
    questions = [{"question": text} for text in ("Who is the licensor?", "Which works?")]
    states = program.run_batch(questions, backend=backend, num_threads=2)
    return [[state.text(), state["answer"], state["verdict"]] for state in states]


def _embeddings(place: Place) -> Any:
    """Requests for embeddings between others: a server of a language model refuses them and goes on."""
    rest = in_thread(lambda: place.together([greedy(p, OTHERS * 2) for p in prompts(4, seed=88)]))
    routes = (("/encode", {"text": "a"}), ("/v1/embeddings", {"model": "default", "input": "a"}))
    refused = []
    for route, body in routes:
        response = requests.post(place.url + route, json=body, timeout=ANSWER)
        refused.append([response.status_code, matrix_answers.message(response)])
    return {"refused": refused[0][0], "message": refused[0][1], "others": rest(), "all": refused}


CASES = (
    Case("Abort", "mid-stream, by `/abort_request`", "default", _abort, acts=True),
    Case("Abort", "mid-stream, the client disconnects", "default", _disconnect, acts=True, long=True),
    Case("Pause and continue", "`in_place`", "default", _pause("in_place"), acts=True, long=True),
    Case("Pause and continue", "`retract`", "default", _pause("retract"), acts=True, long=True),
    Case(
        "Pause and continue", "`retract`, with a flush meanwhile", "default", _pause("retract", flush=True), acts=True
    ),
    Case("Pause and continue", "`abort`", "default", _pause_abort, acts=True, long=True),
    Case("Flush", "the same prompt from a full and from an empty cache", "default", _flush, acts=True),
    Case("Sessions", "turns, and two answers to one", "default", _session, acts=True),
    Case("`sgl.function`", "generate, fork, join, select", "default", _program, acts=True),
    Case("Embeddings", "requested between others", "default", _embeddings, acts=True, refused=NO_EMBEDDINGS),
    Case("Weight update", "`/update_weights_from_disk`: the same, others, and back", "default", _weights, acts=True),
)
