"""Requests that SGLang's own verification answers differently: EAGLE31 answers as a server without speculation.

Every repair is asked of a server without speculation and without its overlap schedule (which counts penalties a step
late), of stock EAGLE3 and of EAGLE31, in one run: stock must differ, EAGLE31 must not, token for token in float32.
Penalties are computed by hand as well, and repetition penalties, which SGLang compiles, by hand only.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import by_hand
import models
import pytest
import requests
from conftest import ANSWER, COMMON, Models, speculate
from scipy.stats import chi2
from selection import core
from tokenizers import Tokenizer
from tokenizers import models as tokenizer_models
from transformers import PreTrainedTokenizerFast

from sglang_eagle31.server.cpu import standin

TREES = {"chain": (3, 1, 4), "tree": (5, 4, 16)}
TOKENS = 44
EOS = 2
FLAGS = [flag for flag in COMMON if flag != "--skip-tokenizer-init"] + ["--enable-custom-logit-processor"]
MIN_P, HOT, DRAWS = 0.3, 4.0, 200
FLAT = [215] * 12
"""Several tokens are likely after it."""
START, END, NEWLINE = 100, 101, 102
"""Tokens of the thinking-budget processor."""


@dataclass(frozen=True)
class Job:
    """A request: its prompt, its sampling parameters and its processor."""

    prompt: list[int]
    sampling: dict[str, Any]
    processor: str | None = None

    def body(self) -> dict[str, Any]:
        sampling = {"temperature": 0, **self.sampling}
        body = {"input_ids": self.prompt, "sampling_params": sampling, "return_logprob": True, "top_logprobs_num": 2}
        return body | ({"custom_logit_processor": self.processor} if self.processor else {})


def job(seed: int, processor: str | None = None, start: int | None = None, **sampling: Any) -> Job:
    """A job on 30 random tokens of its own, and ``start`` after them."""
    draw = random.Random(seed)
    tokens = [draw.randrange(3, models.VOCAB) for _ in range(30)] + ([] if start is None else [start])
    return Job(tokens, {"max_new_tokens": TOKENS, "ignore_eos": True, **sampling}, processor)


def processors() -> dict[str, str]:
    """SGLang's own, as strings; the budget's token ids are made to fit the vocabulary."""
    standin.prepare()
    from sglang.srt.sampling import custom_logit_processor as given

    ids = {"THINKING_START_TOKEN_ID": START, "THINKING_END_TOKEN_ID": END, "NEW_LINE_TOKEN_ID": NEWLINE}
    # Of ``__main__``, so that it travels by value: the server cannot import this file.
    budget: Any = type("Budget", (given.ThinkingBudgetLogitProcessor,), {**ids, "__module__": "__main__"})
    return {
        "disallow": given.DisallowedTokensLogitsProcessor.to_str(),
        "no repeat": given.DeepseekOCRNoRepeatNGramLogitProcessor.to_str(),
        "budget": budget.to_str(),
    }


@pytest.fixture(scope="module")
def jobs(spoken: Path) -> dict[str, Job]:
    """By the repair that each needs; ``plain`` needs none."""
    likely = by_hand.greedy(spoken, job(1).prompt, job(1).sampling)
    once = list(dict.fromkeys(likely))  # what the target says if nothing keeps it from it
    given = processors()
    stops = {"stop_token_ids": once[3:12], "ignore_eos": False}
    return {
        "plain": job(1),
        "frequency": job(9, frequency_penalty=1.3),
        "presence": job(9, presence_penalty=1.9, max_new_tokens=100),
        "both": job(7, frequency_penalty=1.6, presence_penalty=1.2),
        "repetition": job(1, repetition_penalty=1.7),
        "all three": job(13, frequency_penalty=0.3, presence_penalty=0.8, repetition_penalty=1.3),
        "min new": job(1, **stops, min_new_tokens=13),
        "disallow": job(1, given["disallow"], custom_params={"token_ids": once[2:9]}),
        "no repeat": job(4, given["no repeat"], custom_params={"ngram_size": 1, "window_size": 40}),
        "budget": job(5, given["budget"], START, custom_params={"thinking_budget": 11}),
        "together": job(
            6,
            given["no repeat"],
            custom_params={"ngram_size": 2, "window_size": 80},
            frequency_penalty=0.9,
            logit_bias={str(once[2]): -4.0, "77": 6.0},
        ),
        "grammar": job(
            7,
            given["no repeat"],
            custom_params={"ngram_size": 3, "window_size": 60},
            regex="(b[0-9][0-9] ?)+",
            presence_penalty=1.5,
            ignore_eos=False,
        ),
    }


BY_HAND = ("plain", "frequency", "presence", "both", "repetition", "all three", "min new")
COMPILED = ("repetition", "all three")
"""SGLang's sampler compiles these, and the servers of the tests have no compiler."""


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny target with a tokenizer, whose end token ``min_new_tokens`` asks for."""
    folder = models.write_target(tmp_path_factory.mktemp("spoken") / "target")
    words = {f"{'ab'[index % 2]}{index:02d} ": index for index in range(models.VOCAB)}
    inner = Tokenizer(tokenizer_models.WordLevel(words, unk_token="a00 "))
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="a02 ", unk_token="a00 ").save_pretrained(folder)
    return folder


def ask(url: str, job: Job) -> dict[str, Any]:
    response = requests.post(f"{url}/generate", json=job.body(), timeout=ANSWER)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def ask_together(url: str, jobs: dict[str, Job]) -> dict[str, dict[str, Any]]:
    """All of them while they join and leave one batch."""
    answers: dict[str, dict[str, Any]] = {}

    def later(place: int, name: str) -> None:
        time.sleep(0.03 * place)
        answers[name] = ask(url, jobs[name])

    threads = [threading.Thread(target=later, args=item) for item in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


@pytest.fixture(scope="module")
def plain(start: Any, spoken: Path, jobs: dict[str, Job]) -> dict[str, dict[str, Any]]:
    """One after the other, without speculation."""
    with start("repairs-plain", "--disable-overlap-schedule", common=FLAGS, target=spoken) as server:
        return {name: ask(server.url, job) for name, job in jobs.items() if name not in COMPILED}


@pytest.fixture(scope="module")
def expected(plain: dict[str, dict[str, Any]], spoken: Path, jobs: dict[str, Job]) -> dict[str, list[int]]:
    """Tokens without speculation; what was computed by hand is what the server says."""
    hand = {name: by_hand.greedy(spoken, jobs[name].prompt, jobs[name].sampling, EOS) for name in BY_HAND}
    said = ids(plain)
    assert {name: hand[name] for name in hand if name in said} == {name: said[name] for name in hand if name in said}
    return {name: said.get(name) or hand[name] for name in jobs}


@dataclass(frozen=True)
class Both:
    """Answers of stock and ours by job, and what each drew with and without min-p."""

    stock: dict[str, dict[str, Any]]
    ours: dict[str, dict[str, Any]]
    stock_drawn: list[list[list[int]]]
    ours_drawn: list[list[list[int]]]
    tree: tuple[int, int, int]


def draw(url: str, min_p: float) -> list[list[int]]:
    """Three sampled tokens of many requests in one batched request."""
    sampling = {"temperature": HOT, "min_p": min_p, "max_new_tokens": 3, "ignore_eos": True}
    body = {"input_ids": [FLAT] * DRAWS, "sampling_params": sampling}
    response = requests.post(f"{url}/generate", json=body, timeout=ANSWER)
    response.raise_for_status()
    return [answer["output_ids"] for answer in response.json()]


@pytest.fixture(scope="module", params=core(TREES, ["tree"]))
def both(request: pytest.FixtureRequest, start: Any, tiny: Models, spoken: Path, jobs: dict[str, Job]) -> Any:
    """Answers of stock EAGLE3 and of EAGLE31 with the same tree."""
    answers, drawn = [], []
    for name, head in (("EAGLE3", tiny.eagle3), ("EAGLE31", tiny.eagle31)):
        flags = speculate(name, head, *TREES[request.param])
        with start(f"repairs-{name}-{request.param}", *flags, common=FLAGS, target=spoken) as server:
            answers.append(ask_together(server.url, jobs))
            drawn.append([draw(server.url, min_p) for min_p in ((MIN_P, 0.0) if name == "EAGLE31" else (MIN_P,))])
    return Both(*answers, *drawn, TREES[request.param])


def ids(answers: dict[str, dict[str, Any]]) -> dict[str, list[int]]:
    return {name: answer["output_ids"] for name, answer in answers.items()}


def test_eagle31_answers_as_without_speculation_and_stock_does_not(both: Both, expected: dict[str, list[int]]) -> None:
    stock, ours = both.stock, both.ours
    assert ids(ours) == {name: expected[name] for name in ours} and len(ours) == len(expected)
    assert [name for name, tokens in ids(stock).items() if tokens == expected[name]] == ["plain"]


def test_log_probabilities_are_those_of_the_adjusted_logits(both: Both, plain: dict[str, dict[str, Any]]) -> None:
    ours = both.ours
    for name, answer in plain.items():
        for field in ("output_token_logprobs", "output_top_logprobs"):
            wanted, found = answer["meta_info"][field], ours[name]["meta_info"][field]
            assert tokens_of(found) == tokens_of(wanted), (name, field)
            assert values_of(found) == pytest.approx(values_of(wanted), abs=1e-4), (name, field)


def tokens_of(logprobs: Any) -> list[int]:
    return [token for _, token, _ in flat(logprobs)]


def values_of(logprobs: Any) -> list[float]:
    return [max(value, -1e4) for value, _, _ in flat(logprobs)]


def flat(logprobs: Any) -> list[Any]:
    """(log probability, token, text) in order, of one list or of a list per token."""
    return [entry for item in logprobs for entry in (item if isinstance(item[0], list) else [item])]


def test_the_rate_is_over_the_depth(both: Both, expected: dict[str, list[int]]) -> None:
    stock, ours, (steps, _, nodes) = both.stock, both.ours, both.tree
    for name, answer in ours.items():
        meta = answer["meta_info"]
        rounds, accepted = meta["spec_verify_ct"], meta["spec_num_correct_drafts"]
        offered = meta["spec_num_proposed_drafts"]
        # The first token is the prefill's; each round adds a bonus token, which a cut round does not show.
        whole = len(expected[name]) - 1 == accepted + rounds
        assert whole or len(expected[name]) == accepted + rounds, name
        assert offered == rounds * steps if whole else (rounds - 1) * steps < offered <= rounds * steps, name
        assert meta["spec_accept_rate"] == pytest.approx(accepted / offered)
        assert sum(a * times for a, times in enumerate(meta["spec_correct_drafts_histogram"])) == accepted
        assert "spec_cap_length" not in meta
    meta = stock["plain"]["meta_info"]
    assert meta["spec_num_proposed_drafts"] == meta["spec_verify_ct"] * (nodes - 1)
    assert ours["plain"]["meta_info"]["spec_num_correct_drafts"] > 0


def test_min_p_is_honoured(both: Both, spoken: Path) -> None:
    """Tokens two and three, which verification gives; the law is computed by hand."""
    assert max(p_values(spoken, both.stock_drawn[0])) < 1e-6
    assert min(p_values(spoken, both.ours_drawn[0])) > 1e-4
    assert p_values(spoken, both.ours_drawn[1]) == [0.0, 0.0]  # without it, tokens are drawn that it forbids


def p_values(target: Path, drawn: list[list[int]]) -> list[float]:
    """Of the second and of the third token; 0 if one is drawn that min-p forbids."""
    return [p_value(target, [answer[:at] for answer in drawn], [answer[at] for answer in drawn]) for at in (1, 2)]


def p_value(target: Path, before: list[list[int]], after: list[int]) -> float:
    """Of a chi-square test of the tokens ``after``, over all contexts; cells that expect less than 5 are one."""
    seen, expected, observed = Counter(map(tuple, before)), [0.0], [0]
    law = by_hand.min_p_law(target, [[*FLAT, *context] for context in seen], HOT, MIN_P)
    for (context, times), probs in zip(seen.items(), law, strict=True):
        said = Counter(token for start, token in zip(before, after, strict=True) if tuple(start) == context)
        if any(probs[token] == 0 for token in said):
            return 0.0
        for token in probs.nonzero()[:, 0].tolist():
            cell = len(expected) if times * float(probs[token]) >= 5 else 0
            expected += [0.0] * (cell == len(expected))
            observed += [0] * (cell == len(observed))
            expected[cell] += times * float(probs[token])
            observed[cell] += said[token]
    cells = [(o, e) for o, e in zip(observed, expected, strict=True) if e > 0]
    statistic = sum((o - e) ** 2 / e for o, e in cells)
    return float(chi2.sf(statistic, len(cells) - 1))
