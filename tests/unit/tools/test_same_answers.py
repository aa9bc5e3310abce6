"""Every token of an answer, by the logits of the server without speculation: what it is asked, and planted faults."""

from __future__ import annotations

import pytest
import requests
from logprob_fakes import input_logprobs, serving

from sglang_eagle31.tools.shared.same_answers.compare import Difference, Outcome, compare, first_difference
from sglang_eagle31.tools.shared.same_answers.judge import at_place, judge, judge_all, judge_difference
from sglang_eagle31.tools.shared.same_answers.logprobs import NextToken, NotTold, teacher_forced
from sglang_eagle31.tools.shared.same_answers.ties import tie_rule
from sglang_eagle31.tools.shared.same_answers.tokens import counts, say

BF16, F32 = tie_rule("bfloat16"), tie_rule("float32")
PROMPT = [5, 6]
PLAIN = [7, 8, 9, 10, 11]
"""The fake target counts up."""


def counting(**changes):
    """Log-probabilities after a prefix: the last token plus one; ``at3`` says what is told after three tokens."""

    def logprobs(prefix):
        return {prefix[-1] + 1: -0.5, prefix[-1] + 2: -6.0, **changes.get(f"at{len(prefix)}", {})}

    return logprobs


@pytest.fixture
def server():
    """Start a server without speculation; gives its address and the bodies that it was sent."""
    running = []

    def start(logprobs=None, spoil=lambda meta: meta):
        bodies = []

        def reply(path, body):
            bodies.append(body)
            return 200, {"meta_info": spoil(input_logprobs(body, logprobs or counting()))}

        context = serving(reply)
        running.append(context)
        return context.__enter__(), bodies

    yield start
    for context in running:
        context.__exit__(None, None, None)


def outcome(verdict):
    """Of the comparison, and the places of ties and of wrong tokens."""
    return verdict.outcome, [t.index for t in verdict.tokens.ties], [t.index for t in verdict.tokens.differing]


@pytest.mark.parametrize(
    ("plain", "speculative", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], None),
        ([], [], None),
        ([1, 2, 3], [1, 5, 3], Difference(1, 2, 5)),
        ([1, 2], [1, 2, 3], Difference(2, None, 3)),
        ([1, 2, 3], [1], Difference(1, 2, None)),
    ],
)
def test_first_difference(plain, speculative, expected):
    assert first_difference(plain, speculative) == expected


def test_one_prefill_is_asked_for_and_told_place_by_place(server):
    url, bodies = server(counting(at3={8: -0.75, 9: -0.5}))
    told = teacher_forced(url, PROMPT, PLAIN, wanted=[3])
    (body,) = bodies
    assert body["input_ids"] == [*PROMPT, *PLAIN] and body["logprob_start_len"] == len(PROMPT) - 1
    assert body["return_logprob"] and body["sampling_params"] == {"temperature": 0, "max_new_tokens": 1}
    assert [place.gap(token) for place, token in zip(told, PLAIN, strict=True)] == [0, 0.25, 0, 0, 0]
    assert [place.told[3] for place in told] == [-30.0] * len(PLAIN)
    assert teacher_forced(url, PROMPT, []) == [] and len(bodies) == 1


def test_a_bias_is_added_to_what_the_server_tells(server):
    url, bodies = server()
    told = teacher_forced(url, PROMPT, [7, 8], bias={50: 31.0, 7: -100.0})
    assert bodies[0]["top_logprobs_num"] == 3 and bodies[0]["token_ids_logprob"] == [7, 50]
    assert told[0].best == 1.0 and told[0].told[7] == -100.5  # 50, at -30 without the bias, is the best
    assert told[1].gap(8) == 1.5 and told[1].gap(50) == 0


def test_equal_answers_have_every_token_checked(server):
    url, bodies = server()
    verdict = judge(url, PROMPT, PLAIN, PLAIN, BF16)
    assert outcome(verdict) == (Outcome.SAME, [], []) and not verdict.differs
    assert verdict.tokens.checked == verdict.compared == 5 and len(bodies) == 1


def test_a_wrong_token_behind_a_tie_is_found(server):
    """The comparison ends at the tie; the answer goes on from there, and has a wrong token later."""
    url, bodies = server(counting(at4={9: -0.5, 30: -0.625}))
    verdict = judge(url, PROMPT, PLAIN, [7, 8, 30, 77, 78], BF16)
    assert outcome(verdict) == (Outcome.TIE, [2], [3])
    assert (verdict.compared, verdict.difference, verdict.gap) == (2, Difference(2, 9, 30), 0.125)
    assert verdict.differs and verdict.tokens.differing[0].gap == 29.5
    right = judge(url, PROMPT, PLAIN, [7, 8, 30, 31, 32], BF16)
    assert outcome(right) == (Outcome.TIE, [2], []) and not right.differs
    assert [body["input_ids"] for body in bodies[2:]] == [[*PROMPT, 7, 8, 30], [*PROMPT, 7, 8, 30, 31, 32]]


def test_a_wrong_last_token_is_found(server):
    """As an end-of-turn token that is not the most likely one would be."""
    url, _ = server(counting(at4={9: -0.5, 30: -0.5}))
    verdict = judge(url, PROMPT, PLAIN, [7, 8, 30, 31, 2], BF16)
    assert outcome(verdict) == (Outcome.TIE, [], [4]) and verdict.differs


@pytest.mark.parametrize(
    ("rule", "gap", "ties", "wrong"),
    [
        (BF16, 0.0, [], []),
        (BF16, 0.125, [3], []),
        (BF16, 0.25, [3], []),
        (BF16, 0.28125, [], [3]),
        (F32, 0.0, [], []),
        (F32, 0.003, [3], []),
        (F32, 0.005, [], [3]),
        (F32, 0.125, [], [3]),
    ],
)
def test_a_second_best_token_is_a_tie_within_the_bound_only(server, rule, gap, ties, wrong):
    """Both servers give the same answer; its token 3 is the second best by the logits."""
    url, _ = server(counting(at5={10: -1.0 - gap, 40: -1.0}))
    verdict = judge(url, PROMPT, PLAIN, PLAIN, rule)
    assert outcome(verdict) == (Outcome.SAME, ties, wrong) and verdict.differs == bool(wrong)


def test_float32_answers_that_part_differ_however_small_the_gap(server):
    url, _ = server(counting(at4={9: -0.5, 30: -0.5}))
    verdict = judge(url, PROMPT, PLAIN, [7, 8, 30, 31, 32], F32)
    assert outcome(verdict) == (Outcome.DIFFERENT, [], []) and verdict.differs and verdict.gap == 0


def wide(gaps, wrong=()):
    """A server whose prefills put the tokens at some indices below the best, by ``gaps``; one by one only at ``wrong``.

    Gives what it replies, and the bodies that it was sent.
    """
    bodies = []

    def reply(path, body):
        bodies.append(body)
        one = len(body["input_ids"]) - body["logprob_start_len"] == 2

        def told(prefix):
            at = len(prefix) - len(PROMPT)
            return {prefix[-1] + 1: -1.0 - (0.0 if one and at not in wrong else gaps.get(at, 0.0)), 500: -1.0}

        return 200, {"meta_info": input_logprobs(body, told)}

    return reply, bodies


def test_a_doubtful_token_is_looked_at_again_as_it_is_decoded():
    reply, bodies = wide({1: 0.375, 3: 0.5})
    with serving(reply) as url:
        verdict = judge(url, PROMPT, PLAIN, PLAIN, BF16)
    assert outcome(verdict) == (Outcome.SAME, [], [])
    assert [body["input_ids"] for body in bodies[1:]] == [[*PROMPT, *PLAIN[: end + 1]] for end in range(4)]
    assert [body["logprob_start_len"] for body in bodies[1:]] == [1, 2, 3, 4]
    assert "extra_key" not in bodies[0] and len({body["extra_key"] for body in bodies[1:]}) == 1


def test_what_is_wrong_there_too_is_wrong_and_nothing_behind_it_is_looked_at_again():
    reply, bodies = wide({1: 0.375, 3: 0.5}, wrong=[1])
    with serving(reply) as url:
        assert outcome(judge(url, PROMPT, PLAIN, PLAIN, BF16)) == (Outcome.SAME, [], [1, 3])
    assert len(bodies) == 3


def test_a_token_far_off_is_wrong_at_once():
    reply, bodies = wide({1: 1.125})
    with serving(reply) as url:
        assert outcome(judge(url, PROMPT, PLAIN, PLAIN, BF16)) == (Outcome.SAME, [], [1])
    assert len(bodies) == 1


def test_the_magnitude_is_asked_for_at_the_place_of_the_token(server):
    asked = []
    rule = tie_rule("bfloat16", best_logit=lambda prefix: asked.append(list(prefix)) or 40.0)
    url, _ = server(counting(at5={10: -1.0, 40: -0.5}))
    assert outcome(judge(url, PROMPT, PLAIN, PLAIN, rule)) == (Outcome.SAME, [3], [])
    assert asked == [[*PROMPT, *PLAIN[:3]]]


def shifted(meta):
    """Each token with what belongs to the one before it."""
    own = meta["input_token_logprobs"]
    values = [own[0][0], -3.0, *(row[0] for row in own[1:-1])]
    return {**meta, "input_token_logprobs": [[value, row[1], None] for value, row in zip(values, own, strict=True)]}


def test_log_probabilities_of_the_wrong_places_are_found(server):
    url, _ = server(counting(at4={9: -0.1}), shifted)
    assert judge(url, PROMPT, PLAIN, PLAIN, BF16).tokens.differing


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda meta: {name: rows[:-1] for name, rows in meta.items()}, "4, 4 of them right, for an answer of 5"),
        (lambda meta: {name: [rows[0], *rows] for name, rows in meta.items()}, "6, 0 of them right"),
        (lambda meta: {}, r"does not tell log-probabilities of its input \(KeyError"),
        (lambda meta: {**meta, "input_top_logprobs": [None]}, "does not tell log-probabilities"),
    ],
)
def test_a_server_that_tells_of_other_tokens_is_an_error(server, spoil, message):
    url, _ = server(spoil=spoil)
    with pytest.raises(NotTold, match=message):
        judge(url, PROMPT, PLAIN, PLAIN, BF16)


def test_the_last_token_of_the_vocabulary_is_named_0(server):
    def clipped(meta):
        rows = [[row[0], 0 if row[1] == 11 else row[1], None] for row in meta["input_token_logprobs"]]
        return {**meta, "input_token_logprobs": rows}

    url, _ = server(spoil=clipped)
    assert judge(url, PROMPT, PLAIN, PLAIN, BF16).tokens.checked == 5


def test_a_full_context_is_an_error_with_its_sizes():
    with (
        serving(lambda path, body: (400, "Input length exceeds")) as url,
        pytest.raises(NotTold, match=r"2 \+ 5 tokens.*status 400: Input length exceeds.*fix: shorter answers"),
    ):
        judge(url, PROMPT, PLAIN, PLAIN, BF16)
    with pytest.raises(requests.ConnectionError):
        judge(url, PROMPT, PLAIN, PLAIN, BF16)


@pytest.mark.parametrize(
    ("best", "plain", "speculative", "expected"),
    [
        (-1.0, -1.0, -1.0, Outcome.TIE),
        (-1.0, -1.0, -1.25, Outcome.TIE),
        (-1.0, -1.25, -1.0, Outcome.TIE),
        (-1.0, -1.0, -1.250001, Outcome.TIE),  # float32 rounding of a log-probability
        (-1.0, -1.0, -1.28125, Outcome.DIFFERENT),
        (-1.0, -1.0, -9.0, Outcome.DIFFERENT),
        (-1.0, -5.0, -5.0, Outcome.DIFFERENT),  # both far from the best: a tie of two wrong tokens is no tie
    ],
)
def test_only_rounding_is_a_tie_of_two_answers(best, plain, speculative, expected):
    told = NextToken(best, {1: plain, 2: speculative})
    verdict = compare([], [7, 1, 9], [7, 2, 4], {1: told}.__getitem__, BF16)
    assert (verdict.outcome, verdict.compared) == (expected, 1)
    assert verdict.gap == pytest.approx(best - min(plain, speculative))


@pytest.mark.parametrize(("plain", "speculative"), [([7, 8], [7]), ([7], [7, 8])])
def test_an_answer_that_ends_while_the_other_goes_on_is_different(server, plain, speculative):
    url, _ = server()
    assert outcome(judge(url, PROMPT, plain, speculative, BF16)) == (Outcome.DIFFERENT, [], [])


def test_a_request_that_logits_do_not_decide_is_asked_about_its_first_difference_only(server):
    url, bodies = server(counting(at3={8: -0.5, 20: -0.75}))
    assert judge_difference(url, PROMPT, PLAIN, PLAIN, BF16).tokens is None and bodies == []
    verdict = judge_difference(url, PROMPT, PLAIN, [7, 20, 99], BF16)
    assert (verdict.outcome, verdict.gap, verdict.tokens) == (Outcome.TIE, 0.25, None)
    assert [body["input_ids"] for body in bodies] == [[*PROMPT, 7, 20]]
    assert at_place(url, [5, 6, 7], (20, 8)).gap(20, 8) == 0.25


class Answered:
    def __init__(self, prompt_ids, token_ids):
        self.prompt_ids, self.token_ids = tuple(prompt_ids), tuple(token_ids)


def test_all_answers_and_their_counts(server):
    url, _ = server(counting(at4={9: -0.5, 30: -0.625}))
    plain = [Answered(PROMPT, PLAIN)] * 3
    ours = [Answered(PROMPT, answer) for answer in (PLAIN, [7, 8, 30, 31], [7, 8, 30, 77])]
    advanced = []
    verdicts = judge_all(url, plain, ours, BF16, lambda: advanced.append(1))
    record = {"tokens": 13, **counts(verdict.tokens for verdict in verdicts)}
    assert record == {"tokens": 13, "tokens_checked": 13, "tokens_tied": 2, "tokens_differing": 1}
    assert say(record) == "13 of 13 tokens checked by the logits without speculation: 2 ties, 1 differ"
    assert len(advanced) == 3
    with pytest.raises(RuntimeError, match="tokenised prompt 1 differently"):
        judge_all(url, [Answered([5], PLAIN)], [Answered(PROMPT, PLAIN)], BF16)
