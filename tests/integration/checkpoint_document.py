"""docs/checkpoints.md as text, from the results of the matrix alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]

INTRO = """# Draft heads, and what becomes of them

Generated from [results/checkpoints.json](results/checkpoints.json); do not edit.

Each row is one draft head on disk, served by EAGLE31 and by stock SGLang {sglang} (`--speculative-algorithm EAGLE3`) on
the same files. The numbers are **accept lengths**: tokens for each verification, with 3 steps, topk 1 and 4 draft
tokens. **4.0** means that the head runs exactly as it was trained, **1.0** that every draft is thrown away. Between 1
and 2 the first draft of a round may be right, for only the state that is fed back is wrong. A server with 1.0 answers
correctly, is healthy and logs nothing: it is only slower than without a head. "Stops" means that the server ends with
an error.

The heads are small and have random weights, but for a `lm_head` that gives the right token only if everything before it
was computed right: layers, norms, residual, fed-back state, biases, positions, window, vocabulary, embedding. Changing
any one of these costs the drafts. The target is a Llama model of 8 blocks whose blocks all write something different.
What is never loaded is memory filled with 0.046, so that the results are the same each time.

"Refused" is an error at start, before any weights are loaded, that names the file's tensor or key and what to do; the
log of each refusal was searched for loading of weights. An answer such as `feedback=post` is what the user states with
`--eagle31-override`, because the files cannot show it; without it EAGLE31 refuses. To know all this about a head
without a server: `python -m sglang_eagle31 audit HEAD --target TARGET`.

The vLLM column is by reading vLLM {vllm}, not by running it. Behind each SGLang result stands the reason that `audit`
gives from reading SGLang; result and reason agree in every row{unread}.
"""
PRODUCERS = """## Heads as their producers write them

| Head | EAGLE31 | SGLang {sglang} | vLLM {vllm}, by reading |
| --- | --- | --- | --- |
"""
BROKEN = """## Heads with something unusual, lost or damaged

| In the files | Reported | SGLang {sglang} | EAGLE31 |
| --- | --- | --- | --- |
"""
ANOTHER = """## Drafts of another kind

| Draft | EAGLE31 | SGLang {sglang} | vLLM {vllm}, by reading |
| --- | --- | --- | --- |
"""
UNTOLD = """## What no file shows

These files are valid and look like others that were trained differently. EAGLE31 asks where its producer is known for
both; else it runs them by their format's rule. If a head accepts little, try the answer.

| Trained | Reported | SGLang {sglang} | EAGLE31 as the files say | EAGLE31 with the answer |
| --- | --- | --- | --- | --- |
"""
LIMITS = """## What these results do not cover

- Heads with latent attention (MLA) cannot run on SGLang's own class without a GPU; their SGLang column is by reading.
- SGLang's rules for layer ids differ by target; only Llama's is measured here. `audit --target` knows the others, by
  reading.
- Quantised targets, several GPUs, and heads of targets that read images.

## How to repeat it

`make checkpoints` serves every head again, writes [results/checkpoints.json](results/checkpoints.json) (which also has
the versions, the machine and the options) and this page.
"""


OUTCOMES = {
    "healthy": "runs",
    "low acceptance": "serves without an error and with rejected drafts",
    "stops at start": "stops at start with",
    "fails at first request": "stops at the first request with",
    "needs a GPU": "needs a GPU for",
}


def render(results: Row) -> str:
    """The whole page."""
    rows, versions = results["cases"], results["header"]["versions"]
    names = {"sglang": versions["sglang"], "vllm": versions["vllm (read)"]}
    no_gpu = sum(row["sglang"]["outcome"] == "needs a GPU" for row in rows)
    unread = f", except for {no_gpu} heads that SGLang's own class serves on a GPU only" if no_gpu else ""
    parts = [INTRO.format(**names, unread=unread), summary(rows)]
    for kind, intro, line in (
        ("producer", PRODUCERS, _producer),
        ("broken", BROKEN, _broken),
        ("another", ANOTHER, _producer),
        ("untold", UNTOLD, _untold),
    ):
        parts.append(intro.format(**names) + "\n".join(_table(rows, kind, line)) + "\n")
    return "\n".join((*parts, LIMITS))


def summary(rows: list[Row]) -> str:
    """How many of each."""
    stock = Counter(row["sglang"]["outcome"] for row in rows)
    told = [row for row in rows if row["kind"] != "untold"]
    final = Counter(last(row)["outcome"] for row in told)
    asked = sum("overrides" in row["ours"] for row in told)
    parts = [f"{words} {stock[outcome]}" for outcome, words in OUTCOMES.items() if stock[outcome]]
    return (
        f"Of {len(told)} heads EAGLE31 runs {final['healthy']} as they were trained ({asked} of them after an answer) "
        f"and refuses {final['stops at start']}; {final['low acceptance'] or 'none'} is served with rejected drafts. "
        f"Of all {len(rows)} on this page SGLang {', '.join(parts)}.\n"
    )


def last(row: Row) -> Row:
    """What EAGLE31 did after the user had said what there is to say."""
    found: Row = row["ours"].get("with_overrides", row["ours"]["alone"])
    return found


def _table(rows: list[Row], kind: str, line: Callable[[Row], list[str]]) -> list[str]:
    return ["| " + " | ".join(map(_cell, line(row))) + " |" for row in rows if row["kind"] == kind]


def _producer(row: Row) -> list[str]:
    return [row["title"], _ours(row), _stock(row), _reading(row["vllm"])]


def _broken(row: Row) -> list[str]:
    return [row["title"], _reports(row), _stock(row), _ours(row)]


def _untold(row: Row) -> list[str]:
    ours = row["ours"]
    return [row["title"], _reports(row), _stock(row), _seen(ours["alone"]), _told(ours)]


def _told(ours: Row) -> str:
    answers = ", ".join(f"`{key}={value}`" for key, value in ours["overrides"].items())
    return f"{_seen(ours['with_overrides'])} with {answers}"


def _ours(row: Row) -> str:
    ours = row["ours"]
    if "overrides" not in ours:
        return _seen(ours["alone"])
    return f"{_told(ours)}; else {_seen(ours['alone'])}"


def _seen(seen: Row) -> str:
    if "accept_length" in seen:
        return f"{seen['accept_length']:.1f}" if seen["outcome"] == "healthy" else f"**{seen['accept_length']:.1f}**"
    return f"refused: {seen['error']}"


def _stock(row: Row) -> str:
    stock = row["sglang"]
    flag = "" if stock["algorithm"] == "EAGLE3" else f" (`{stock['algorithm']}`)"
    if stock["outcome"] == "needs a GPU":
        return f"needs a GPU; by reading, {_reading(stock)}"
    if row["kind"] == "another" and "accept_length" in stock:  # a number of random weights
        return f"serves it as an EAGLE-3 head: {stock['reasons'][0]}"
    if stock["outcome"] == "healthy":
        note = f"; {stock['reasons'][0]}" if stock["predicted"] == "wrong" else ""
        return f"{stock['accept_length']:.1f}{flag}{note}"
    if stock["outcome"] == "low acceptance":
        why = f": {stock['reasons'][0]}" if stock["predicted"] == "wrong" else ""
        return f"**{stock['accept_length']:.1f}**{flag}{why}"
    when = "stops" if stock["outcome"] == "stops at start" else "stops at the first request"
    return f"{when}: {_short(stock.get('error') or stock['reasons'][0])}"


def _short(error: str, limit: int = 110) -> str:
    """An error of another program, cut after a word."""
    return error if len(error) <= limit else f"{error[:limit].rsplit(' ', 1)[0]} ..."


def _reading(engine: Row) -> str:
    if engine["predicted"] == "exact" or not engine["reasons"]:
        return str(engine["predicted"])
    return f"{engine['predicted']}: {engine['reasons'][0]}"


def _reports(row: Row) -> str:
    links = []
    for report in row["reports"]:
        repository, number = report.split("#")
        links.append(f"[{repository.split('/')[1]}#{number}](https://github.com/{repository}/issues/{number})")
    return ", ".join(links)


def _cell(text: str) -> str:
    """Text in a table: stars and bars that are not ours would be markup."""
    text = text.replace("|", "\\|").replace("\n", " ")
    return text.replace(".*", ".\\*").replace("<", "&lt;")
