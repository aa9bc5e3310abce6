"""The demo's record and table."""

import io
import json

import pytest
from rich.console import Console

from sglang_eagle31.tools.demo.report import Tree, render, summarise
from sglang_eagle31.tools.shared.client import Answer, Run, load_prompts
from sglang_eagle31.tools.shared.provenance import provenance
from sglang_eagle31.tools.shared.same_answers.compare import Difference, Outcome, Verdict
from sglang_eagle31.tools.shared.same_answers.tokens import Tokens, Unlikely

REQUIRED = (
    *("identical", "ties", "differing", "tokens_compared", "accept_length", "accept_by_depth"),
    *("tokens_checked", "tokens_tied", "tokens_differing"),
    *("plain_tok_s", "spec_tok_s", "ratio", "prompts", "versions"),
)
TREE = Tree(steps=3, topk=1, draft_tokens=4)


def answer(tokens, seconds, histogram=()):
    return Answer("Why?", "text", (1, 2), tuple(tokens), seconds, "length", sum(histogram), tuple(histogram))


def result(verdicts, **changes):
    plain = Run((answer(range(20), 2.0), answer(range(40), 4.0), answer([5] * 40, 4.0)), 10.0)
    fast = Run(
        (
            answer(range(20), 1.0, [2, 2, 4, 2]),
            answer(range(40), 2.0, [4, 4, 4, 8]),
            answer([5] * 40, 1.0, [0, 0, 0, 10]),
        ),
        5.0,
    )
    record = provenance(["demo"]) | summarise(plain, fast, verdicts, TREE) | {"dtype": "bfloat16", "tie_bound": 0.25}
    return record | changes


SAME = Verdict(Outcome.SAME, 20, tokens=Tokens(20))
TIE = Verdict(Outcome.TIE, 8, Difference(8, 3, 4), 0.125, tokens=Tokens(40, (Unlikely(8, 4, 0.125, True),)))
DIFFERENT = Verdict(Outcome.DIFFERENT, 9, Difference(9, 3, 4), 2.5, tokens=Tokens(40, (Unlikely(9, 4, 2.5, False),)))
LATER = Verdict(Outcome.TIE, 8, Difference(8, 3, 4), 0.125, tokens=Tokens(40, (Unlikely(30, 7, 1.5, False),)))
"""A tie, and a wrong token behind it."""


def test_record_has_the_promised_keys_and_is_json():
    record = result([SAME, SAME, SAME])
    assert set(REQUIRED) <= set(record)
    assert json.loads(json.dumps(record)) == record
    assert record["versions"]["torch"]


def test_throughput_is_tokens_by_wall_time():
    record = result([SAME, SAME, SAME])
    assert (record["plain_tok_s"], record["spec_tok_s"], record["ratio"]) == (10.0, 20.0, 2.0)
    assert (record["plain_tok_s_median"], record["spec_tok_s_median"]) == (10.0, 20.0)


def test_looping_answers_are_left_out_of_acceptance():
    record = result([SAME, SAME, SAME])
    assert record["loops_excluded"] == 1
    assert record["accept_length"] == 60 / 30
    assert record["accept_length_with_loops"] == 100 / 40
    assert record["accept_by_depth"] == pytest.approx([24 / 30, 18 / 30, 10 / 30])


def test_acceptance_of_looping_answers_only():
    run = Run((answer([5] * 40, 4.0, [0, 0, 0, 10]),), 4.0)
    record = summarise(run, run, [SAME], TREE)
    assert (record["loops_excluded"], record["accept_length"]) == (0, 4.0)


def test_ties_keep_the_answers_identical():
    record = result([SAME, TIE, TIE])
    assert (record["identical"], record["ties"], record["tokens_compared"]) == (True, 2, 36)


def test_one_difference_is_enough():
    record = result([SAME, TIE, DIFFERENT])
    assert (record["identical"], record["ties"], record["differing"]) == (False, 1, 1)
    entry = record["per_prompt"][2]
    assert (entry["index"], entry["plain_token"], entry["spec_token"], entry["gap"]) == (9, 3, 4, 2.5)


def test_a_wrong_token_behind_a_tie_is_enough():
    record = result([SAME, TIE, LATER])
    assert (record["identical"], record["ties"], record["differing"]) == (False, 2, 0)
    assert [record[f"tokens_{name}"] for name in ("checked", "tied", "differing")] == [100, 1, 1]
    assert record["per_prompt"][2]["unlikely"] == [{"index": 30, "token": 7, "gap": 1.5, "outcome": "different"}]


@pytest.mark.parametrize(("verdict", "words"), [(TIE, "yes"), (DIFFERENT, "NO"), (LATER, "NO")])
def test_table(verdict, words):
    out = io.StringIO()
    Console(file=out, width=120).print(render(result([SAME, SAME, verdict])))
    text = out.getvalue()
    for expected in (
        words,
        "2.00x",
        "depth 3",
        "█",
        "2.00 tokens per target step (1 looping answers left out; 2.50 with)",
    ):
        assert expected in text
    assert ("differs: 'Why?' at token 9" in text) == (verdict is DIFFERENT)
    assert ("wrong: 'Why?': token 30, 7, is 1.500 below" in text) == (verdict is LATER)
    assert f"tokens checked by the logits without speculation: {int(verdict is TIE)} ties" in text


@pytest.mark.parametrize(("bound", "words"), [(0.25, "logit gap allowed 0.25"), (0.0, "none is allowed; 36 of 100")])
def test_the_table_says_what_a_tie_is(bound, words):
    out = io.StringIO()
    Console(file=out, width=160).print(render(result([SAME, TIE, TIE], tie_bound=bound)))
    assert words in out.getvalue()


def test_tree_flags():
    assert Tree(5, 4, 16).flags() == [
        *("--speculative-num-steps", "5"),
        *("--speculative-eagle-topk", "4"),
        *("--speculative-num-draft-tokens", "16"),
    ]


def test_load_prompts(tmp_path):
    chats = [[{"role": "user", "content": text}] for text in ("one", "two")]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n\n".join(json.dumps({"id": "x", "messages": chat}) for chat in chats))
    assert load_prompts(path) == chats
    assert load_prompts(path, 1) == chats[:1]
    for bad in (0, 3):
        with pytest.raises(ValueError, match=f"--prompts {bad}: prompts.jsonl holds 2"):
            load_prompts(path, bad)
