"""Rows of the sampling parameters: what ends an answer, what changes its logits, several answers, and chance."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import models
from matrix_case import Ask, Case, Place, greedy
from matrix_model import EOS, Folders

DRAWS = 320
LAW_PROMPT = [random.Random(65).randrange(7, models.VOCAB) for _ in range(12)]
"""Several tokens are likely at each of the first positions."""
HOT = {"temperature": 3.0, "ignore_eos": True, "max_new_tokens": 4}
THINK, THOUGHT = 3, 4
"""Tokens of ``<think>`` and ``</think>``."""


def prompts(count: int, length: int = 30, seed: int = 0) -> list[list[int]]:
    """Random ids, none of them special."""
    draw = random.Random(seed)
    return [[draw.randrange(7, models.VOCAB) for _ in range(length + 3 * i)] for i in range(count)]


@cache
def processors() -> dict[str, str]:
    """SGLang's own, as strings; the budget's token ids are made to fit the vocabulary."""
    from sglang_eagle31.server.cpu import standin

    standin.prepare()
    from sglang.srt.sampling import custom_logit_processor as given

    ids = {"THINKING_START_TOKEN_ID": THINK, "THINKING_END_TOKEN_ID": THOUGHT, "NEW_LINE_TOKEN_ID": 205}
    # Of ``__main__``, so that it travels by value: the server cannot import this file.
    budget: Any = type("Budget", (given.ThinkingBudgetLogitProcessor,), {**ids, "__module__": "__main__"})
    return {
        "disallow": given.DisallowedTokensLogitsProcessor.to_str(),
        "no repeat": given.DeepseekOCRNoRepeatNGramLogitProcessor.to_str(),
        "budget": budget.to_str(),
    }


def _pieces(folders: Folders) -> list[str]:
    """Parts of what the target says that a stop string may be: inside a token, over two, and over several."""
    text = folders.text
    return [
        text[at : at + size] for at, size in ((8, 1), (12, 2), (17, 4), (23, 7), (9, 3)) if "�" not in text[at:][:size]
    ]


def _stop_strings(folders: Folders) -> list[Ask]:
    stops: list[Any] = [*_pieces(folders), ["nowhere in it", *_pieces(folders)[2:]], "nowhere in it"]
    plain = [greedy(folders.prompt, 50, stop=stop) for stop in stops]
    return plain + [greedy(folders.prompt, 50, stop=stop, no_stop_trim=True) for stop in stops]


def _stop_tokens(folders: Folders) -> list[Ask]:
    never = [token for token in range(300, models.VOCAB) if token not in folders.said][:2]
    ends = [[token] for token in folders.said[:9]] + [folders.said[20:30], never]
    return [greedy(folders.prompt, 50, stop_token_ids=end, ignore_eos=False) for end in ends]


def _end(folders: Folders) -> list[Ask]:
    """The end token becomes likely by a bias, and counts or not."""
    return [
        greedy(prompt, 40, logit_bias={str(EOS): bias}, ignore_eos=ignore)
        for prompt in prompts(3, seed=2)
        for bias in (40.0, 60.0, 80.0)
        for ignore in (True, False)
    ]


def _few(folders: Folders) -> list[Ask]:
    return [greedy(prompt, tokens) for tokens in (1, 2, 3, 4, 5) for prompt in prompts(3, seed=3)]


def _several(folders: Folders) -> list[Ask]:
    return [greedy(prompt, 30, n=n) for n, prompt in zip((2, 3, 5), prompts(3, seed=4), strict=True)]


def _biased(folders: Folders) -> list[Ask]:
    likely, other = folders.said[3], folders.said[11]
    biases: list[dict[str, float]] = [{str(likely): -100.0}, {"77": 8.0, str(other): -5.0}, {"300": 100.0}]
    return [greedy(folders.prompt, 40, logit_bias=bias) for bias in biases]


def _penalised(folders: Folders) -> list[Ask]:
    given: list[dict[str, Any]] = [
        {"frequency_penalty": 1.3},
        {"presence_penalty": 1.9},
        {"frequency_penalty": 0.6, "presence_penalty": 1.2},
        {"frequency_penalty": -0.8},
    ]
    return [greedy(prompt, 60, **penalty) for penalty in given for prompt in prompts(2, seed=5)]


def _repetition(folders: Folders) -> list[Ask]:
    return [greedy(prompt, 60, repetition_penalty=value) for value in (1.3, 1.8) for prompt in prompts(2, seed=6)]


def _minimum(folders: Folders) -> list[Ask]:
    ends = {"stop_token_ids": folders.said[3:24], "ignore_eos": False}
    return [greedy(folders.prompt, 50, min_new_tokens=least, **ends) for least in (0, 2, 9, 17)]


def _processed(folders: Folders) -> list[Ask]:
    given = processors()
    return [
        greedy(
            folders.prompt,
            40,
            custom_logit_processor=given["disallow"],
            custom_params={"token_ids": folders.said[2:9]},
        ),
        greedy(
            folders.prompt,
            60,
            custom_logit_processor=given["no repeat"],
            custom_params={"ngram_size": 2, "window_size": 50},
        ),
        greedy(
            [*folders.prompt, THINK],
            40,
            custom_logit_processor=given["budget"],
            custom_params={"thinking_budget": 11},
        ),
    ]


def _mixed(folders: Folders) -> list[Ask]:
    """All kinds in one batch, greedy ones among sampled ones."""
    sampled = [Ask({"input_ids": prompt, "sampling_params": HOT}) for prompt in prompts(6, seed=7)]
    asked = [*_biased(folders), *_penalised(folders), *_few(folders)[:6], *_processed(folders)]
    return [ask for pair in zip(asked, (sampled * 9)[: len(asked)], strict=True) for ask in pair]


def law(name: str, **more: Any) -> Case:
    """A row of sampled answers."""
    processor = {"custom_logit_processor": more.pop("processor")} if "processor" in more else {}
    one = more.pop("n", 1)
    sampling = {**HOT, **more, **({"n": one} if one > 1 else {})}

    def draw(place: Place) -> list[list[int]]:
        texts = processors() if processor else {}
        fields = {key: texts[value] for key, value in processor.items()}
        body = {"input_ids": [LAW_PROMPT] * (DRAWS // one), "sampling_params": sampling, **fields}
        response = place.post("/generate", body)
        response.raise_for_status()
        place.meta.extend(answer["meta_info"] for answer in response.json())
        return [answer["output_ids"] for answer in response.json()]

    short = name == "a regex"
    return Case("Sampled answers", name, "default", draw, "law", acts=True, long=not short)


def _ends_with_text(answers: Any) -> bool:
    return sum(answer["finish"]["type"] == "stop" for answer in answers) >= 8


def _some_stop(answers: Any) -> bool:
    kinds = {answer["finish"]["type"] for answer in answers}
    return kinds == {"stop", "length"}


def _greedy_only(place: Place) -> Any:
    """Of the mixed batch, what is not left to chance."""
    return place.together(_mixed(place.folders))[::2]


CASES = (
    Case(
        "Stop strings",
        "inside a token, over several, among others, kept and cut",
        "default",
        _stop_strings,
        holds=_ends_with_text,
    ),
    Case("Stop token ids", "one and several", "default", _stop_tokens, holds=_some_stop),
    Case("`ignore_eos`", "the end token counts or not", "default", _end, holds=_some_stop),
    Case(
        "`max_new_tokens`",
        "1, 2, 3, 4, 5",
        "default",
        _few,
        holds=lambda a: [len(x["ids"]) for x in a][::3] == [1, 2, 3, 4, 5],
    ),
    Case(
        "`n` > 1",
        "2, 3 and 5 answers to one prompt",
        "default",
        _several,
        holds=lambda a: [len(x) for x in a] == [2, 3, 5],
    ),
    Case("`logit_bias`", "for and against tokens", "default", _biased),
    Case("Penalties", "frequency and presence", "default", _penalised),
    Case("Penalties", "repetition", "default", _repetition),
    Case(
        "`min_new_tokens`", "0, 2, 9 and 17", "default", _minimum, holds=lambda a: len({len(x["ids"]) for x in a}) > 2
    ),
    Case("Custom logit processors", "forbidden tokens, no repeated n-gram, thinking budget", "default", _processed),
    Case("Mixed batches", "greedy requests of all kinds between sampled ones", "default", _greedy_only, acts=True),
    law("temperature"),
    law("top-k and top-p", temperature=4.0, top_k=12, top_p=0.6),
    law("min-p", temperature=4.0, min_p=0.3),
    law("`n` of 40", n=40),
    law("`logit_bias`", logit_bias={"77": 9.0, "300": 9.0}),
    law("penalties", frequency_penalty=2.0, presence_penalty=2.0),
    law("a custom processor", processor="disallow", custom_params={"token_ids": list(range(7, 200))}),
    law("a regex", regex="[a-h ]{0,40}", ignore_eos=False),
)
