"""The cause by where acceptance falls, on heads that are made to have it."""

import pytest
from robust_heads import head, result

from sglang_eagle31.tools.robust.comparison import caveats, compare
from sglang_eagle31.tools.robust.diagnose import diagnose
from sglang_eagle31.tools.robust.measurement import HeadResult
from sglang_eagle31.tools.robust.statistics import Estimate

GOOD = [0.8, 0.75, 0.75, 0.75]
SHALLOW = [0.5, 0.75, 0.75, 0.75]
DRIFTING = [0.8, 0.5, 0.4, 0.3]
BOTH = [0.5, 0.4, 0.3, 0.2]
SLIGHT = [0.78, 0.73, 0.73, 0.73]


def kinds(conditions, of=None, **kwargs):
    return {f.condition: f.kind for f in diagnose(result(conditions, of, **kwargs), 0)}


@pytest.mark.parametrize(
    ("accept", "template", "content"),
    [
        (GOOD, "kept", "kept"),
        (SLIGHT, "kept", "kept"),
        (SHALLOW, "template", "content"),
        (DRIFTING, "drift", "drift"),
        (BOTH, "template+drift", "content+drift"),
    ],
)
def test_template_and_content(accept, template, content):
    assert kinds({"regular": GOOD, "no_template": accept, "multi_turn": accept}) == {
        "regular": "kept",
        "no_template": template,
        "multi_turn": content,
    }


@pytest.mark.parametrize(
    ("of", "kind", "says"),
    [
        ({"positions": 2048}, "position limit", "max_position_embeddings 2048"),
        ({}, "missing window", "--speculative-draft-window-size"),
        ({"window": 1024}, "long context", "window of 1024"),
        ({"positions": None, "config_known": False}, "long context", "cannot be read"),
    ],
)
def test_a_fall_at_depth_1_in_a_long_context(of, kind, says):
    known = result({"regular": GOOD, "context_1024": GOOD, "context_2048": GOOD, "context_4096": SHALLOW}, head(**of))
    found = {f.condition: f for f in diagnose(known, 0)}
    assert found["context_4096"].kind == kind
    assert says in found["context_4096"].text
    assert found["context_2048"].kind == "kept"
    assert found["context_4096"].base == "context_1024"
    assert "context_1024" not in found  # the shortest one is what the others are compared with


def test_a_position_limit_is_no_cause_within_it():
    assert kinds({"context_512": GOOD, "context_1024": SHALLOW}, head(positions=2048)) == {
        "context_1024": "missing window"
    }


def test_drift_in_a_long_context():
    found = kinds({"context_512": GOOD, "context_4096": DRIFTING}, head(positions=2048))
    assert found == {"context_4096": "drift"}


def test_numbers_are_in_the_finding():
    finding = diagnose(result({"regular": GOOD, "no_bos": SHALLOW}), 0)[1]
    assert finding.first.value == pytest.approx(0.5 / 0.8, abs=0.05)
    assert finding.deep.value == pytest.approx(1.0, abs=0.05)
    assert finding.length.high < 1
    assert f"depth 1 x{finding.first}" in finding.text
    assert finding.prompts == 20


def test_few_answers_allow_no_conclusion():
    assert kinds({"regular": GOOD, "no_bos": SHALLOW}, prompts=7) == {"regular": "too few", "no_bos": "too few"}
    assert kinds({"regular": GOOD, "no_bos": SHALLOW}, prompts=8, rounds=15)["no_bos"] == "too few"
    assert kinds({"regular": GOOD, "no_bos": SHALLOW}, prompts=1, rounds=20)["regular"] == "too few"


def test_a_fall_within_the_noise_is_unclear():
    noisy = result({"regular": [0.5], "no_bos": [0.5]}, prompts=8, rounds=20)
    finding = diagnose(noisy, 0)[1]
    assert finding.first.low < 0.8 < 1 < finding.first.high
    assert finding.kind == "unclear"
    assert finding.deep == Estimate(None, None, None)  # one draft a round has no deeper position


def test_a_shift_between_positions_is_no_drift():
    shift = {"regular": [0.6, 0.75, 0.75, 0.75], "no_bos": [0.85, 0.55, 0.5, 0.5]}
    finding = diagnose(result(shift), 0)[1]
    assert finding.deep.high < 0.9
    assert finding.length.low > 1
    assert finding.kind == "unclear" and "but accept length not for certain" in finding.text


def test_regular_itself():
    collapsing = [0.8, 0.6, 0.3, 0.2]
    finding = diagnose(result({"regular": collapsing}), 0)[0]
    assert finding.kind == "drift" and "--speculative-num-steps" in finding.text
    tree = diagnose(result({"regular": collapsing}, head(topk=4, draft_tokens=16)), 0)[0]
    assert tree.kind == "unclear" and "topk 1" in tree.text


def test_heads_are_compared_on_the_same_questions():
    better = result({"regular": GOOD, "no_bos": GOOD}, head(name="new"))
    worse = result({"regular": SHALLOW, "no_bos": BOTH, "multi_turn": GOOD}, head(name="old"))
    found = compare([worse, better], 0)
    assert [(c.condition, c.head, c.reference) for c in found] == [("regular", "new", "old"), ("no_bos", "new", "old")]
    lengths = [r.measured["no_bos"].acceptance.length.value for r in (better, worse)]
    assert found[1].ratio.value == lengths[0] / lengths[1]
    assert 1 < found[0].ratio.low < found[0].ratio.high < found[1].ratio.low
    assert compare([better], 0) == []
    assert compare([better, HeadResult(head(name="same"), better.measured)], 0)[0].ratio == Estimate(1.0, 1.0, 1.0)


def test_heads_that_cannot_be_compared_are_told():
    one = result({"regular": GOOD})
    assert caveats([one, HeadResult(head(name="b"), one.measured)]) == []
    notes = caveats([one, HeadResult(head(name="b", model="/other", steps=3, adaptive=True), one.measured)])
    assert "b changes its number of steps" in notes[0]
    assert "head: /models/target, b: /other" in notes[1]
    assert "different trees" in notes[2]
