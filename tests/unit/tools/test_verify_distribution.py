"""The distribution test: exact probabilities, chi-square, drafts through our tree builder, and that it finds errors."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from truth.rounding import EXACT, assert_within, in_float64
from verify_samplers import RULES

from sglang_eagle31.tools.cli import main
from sglang_eagle31.tools.verify import cases, served
from sglang_eagle31.tools.verify.chisquare import against_exact, against_sample, fisher, holm, pool, survival
from sglang_eagle31.tools.verify.distribution import run, run_case
from sglang_eagle31.tools.verify.draft import Drafter, draft_chain, draft_tree
from sglang_eagle31.tools.verify.exact import Sampling, adjusted, joint, tally
from sglang_eagle31.tools.verify.rounds import direct, exact_draw
from sglang_eagle31.tools.verify.synthetic import CONTEXTS, DEAD, DRAFTERS, REDUCED, VOCAB, child, drafter, target

STEPS = 4_000


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(), {0: 0.4, 1: 0.3, 2: 0.2, 3: 0.1}),
        (Sampling(top_k=2), {0: 4 / 7, 1: 3 / 7}),
        (Sampling(top_p=0.6), {0: 4 / 7, 1: 3 / 7}),
        (Sampling(top_k=3, top_p=0.75), {0: 4 / 9, 1: 3 / 9, 2: 2 / 9}),  # in turn, 0.75 of 0.9 would leave two
        (Sampling(min_p=0.45), {0: 4 / 9, 1: 3 / 9, 2: 2 / 9}),
        (Sampling(temperature=0.5), {0: 16 / 30, 1: 9 / 30, 2: 4 / 30, 3: 1 / 30}),
        (Sampling(top_k=1), {0: 1.0}),
    ],
    ids=str,
)
def test_adjusted_by_hand(sampling: Sampling, kept: dict[int, float]) -> None:
    logits = torch.full((VOCAB,), float("-inf"), dtype=torch.float64)
    logits[:4] = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64).log()
    want = torch.zeros(VOCAB, dtype=torch.float64)
    for token, probability in kept.items():
        want[token] = probability
    assert_within(adjusted(logits, sampling), want, EXACT)


@pytest.mark.parametrize("sampling", cases.SAMPLINGS, ids=str)
def test_what_the_server_verifies_against_is_the_exact_distribution(sampling: Sampling) -> None:
    logits = target(0).logits[:, :1000].flatten(0, 1).double()
    with in_float64():
        weights = served.weights(logits, sampling)
    assert_within(weights / weights.sum(-1, keepdim=True), adjusted(logits, sampling), EXACT)


def test_joint_is_the_product_along_every_sequence() -> None:
    table, sampling = target(3), Sampling(temperature=0.7)
    mass = joint(table, sampling, 2).view(CONTEXTS, VOCAB, VOCAB)
    torch.testing.assert_close(mass.sum((1, 2)), torch.ones(CONTEXTS, dtype=torch.float64))
    for context, first, second in itertools.product(range(CONTEXTS), (0, 2, 5), (3, 7)):
        row = child(torch.tensor(0), torch.tensor(first))
        after = [adjusted(table.logits[context, at], sampling) for at in (0, int(row))]
        assert mass[context, first, second] == pytest.approx(float(after[0][first] * after[1][second]), rel=1e-9)


def test_tally_counts_sequences() -> None:
    context, tokens = torch.tensor([0, 1, 1, 1]), torch.tensor([[2, 3], [0, 0], [9, 9], [9, 9]])
    counts = tally(context, tokens).view(CONTEXTS, VOCAB, VOCAB)
    assert (counts[0, 2, 3], counts[1, 0, 0], counts[1, 9, 9], counts.sum()) == (1, 1, 2, 4)


def test_chi_square_against_known_values() -> None:
    """A die thrown 60 times, Pearson's textbook form, and the tables of the distribution."""
    test = against_exact(torch.tensor([[5, 8, 9, 8, 10, 20]]), torch.full((1, 6), 1 / 6, dtype=torch.float64))
    assert (test.statistic, test.df, test.impossible) == (pytest.approx(13.4), 5, 0)
    assert test.p == pytest.approx(0.01991, abs=1e-5)
    assert survival(3.841459, 1) == pytest.approx(0.05, abs=1e-6)
    assert survival(124.342113, 100) == pytest.approx(0.05, abs=1e-6)
    assert survival(0.0, 0) == 1.0
    assert fisher(1, [0.1, 0.2]).p == pytest.approx(0.0982, abs=1e-4)  # 7.824 on 4 degrees of freedom


def test_two_samples_against_known_values() -> None:
    """2 x 2: 30 of 100 against 45 of 150 is the same share, 60 of 150 is not (statistic by hand: 2.604)."""
    even = torch.full((1, 2), 0.5, dtype=torch.float64)
    same = against_sample(torch.tensor([[30, 70]]), torch.tensor([[45, 105]]), even)
    other = against_sample(torch.tensor([[30, 70]]), torch.tensor([[60, 90]]), even)
    assert same.statistic == pytest.approx(0.0, abs=1e-9)
    share = 90 / 250
    by_hand = sum((a - n * p) ** 2 / (n * p) for a, n, p in
                  [(30, 100, share), (70, 100, 1 - share), (60, 150, share), (90, 150, 1 - share)])  # fmt: skip
    assert (other.statistic, other.df) == (pytest.approx(by_hand), 1)


def test_p_values_of_true_samples_are_uniform() -> None:
    """Both tests, pooled cells included: 5 % of 400 honest samples are below 0.05, give or take three deviations."""
    exact = joint(target(0), Sampling(temperature=0.3), 2)
    random = torch.Generator().manual_seed(0)

    def sample() -> torch.Tensor:
        drawn = (torch.multinomial(row, 2000, replacement=True, generator=random) for row in exact)
        return torch.stack([tokens.bincount(minlength=exact.shape[1]) for tokens in drawn])

    pairs = [(sample(), sample()) for _ in range(400)]
    for p_values in (
        [against_exact(a, exact).p for a, _ in pairs],
        [against_sample(a, b, exact).p for a, b in pairs],
    ):
        assert 0.017 < sum(p < 0.05 for p in p_values) / 400 < 0.083
        assert 0.42 < sum(p < 0.5 for p in p_values) / 400 < 0.58


def test_what_cannot_happen_is_a_failure_by_itself() -> None:
    test = against_exact(torch.tensor([[5000, 4999, 1]]), torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64))
    assert (test.p, test.impossible) == (0.0, 1)


def test_cells_that_expect_little_are_pooled() -> None:
    cell, cells = pool(torch.tensor([50.0, 0.0, 3.0, 1.0, 2.0, 20.0]))
    assert cells == 3 and cell[1] == -1 and cell[2] == cell[3] == cell[4] != cell[5]
    cell, cells = pool(torch.tensor([50.0, 1.0, 6.0]))
    assert cells == 2 and cell[1] == cell[2]
    assert pool(torch.tensor([2.0, 0.0]))[1] == 1


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_tree_is_what_its_drafter_says(kind: str, reduced: bool) -> None:
    """Every node hangs on the continuation that it was drafted after, and siblings are the best of the drafter."""
    drafts = Drafter(drafter(kind, 0), reduced)
    context, row = torch.tensor([0, 1]), torch.tensor([0, 7])
    proposal = draft_tree(drafts, context, row, cases.TREE)
    for b in range(2):
        children: dict[int, list[int]] = {}
        for node in range(1, cases.TREE.nodes):
            parent = (int(proposal.rows[b, node]) - 1) // VOCAB
            assert int(proposal.rows[b, node]) == parent * VOCAB + 1 + int(proposal.candidates[b, node])
            children.setdefault(parent, []).append(int(proposal.candidates[b, node]))
        assert int(row[b]) in children
        for parent, tokens in children.items():
            probs = drafts.logits(context[b], torch.tensor(parent)).softmax(-1)
            best = drafts.tokens(probs.topk(len(tokens)).indices).tolist()
            assert len(set(tokens)) == len(tokens) and set(tokens) == set(best)
            assert not reduced or set(tokens) <= set(REDUCED)


def test_a_sampled_chain_is_drawn_from_what_it_says() -> None:
    drafts = Drafter(drafter("good", 0), reduced=True)
    random = torch.Generator().manual_seed(0)
    n = 20_000
    context = torch.arange(n) % CONTEXTS
    proposal = draft_chain(drafts, context, torch.zeros(n, dtype=torch.long), cases.CHAIN, 0.8, random)
    assert proposal.draft_probs is not None and proposal.draft_probs.shape == (n, cases.CHAIN.steps, VOCAB)
    for step in range(2):
        expected = torch.zeros(CONTEXTS, VOCAB, dtype=torch.float64)
        expected.index_add_(0, context, proposal.draft_probs[:, step].double())
        probs = expected / expected.sum(-1, keepdim=True)
        assert against_exact(tally(context, proposal.candidates[:, step + 1, None]), probs).p > 1e-4


def test_direct_samples_are_the_targets() -> None:
    outcome = direct(target(0), Sampling(top_p=0.8), 20_000, torch.Generator().manual_seed(1), exact_draw)
    exact = joint(target(0), Sampling(top_p=0.8), 3)
    assert against_exact(tally(outcome.context, outcome.tokens), exact).p > 1e-4


@pytest.mark.parametrize("rules", [served.RULES, RULES], ids=["ours", "written in another way"])
def test_every_drafter_leaves_the_target_alone(rules) -> None:
    """A few of the cases that `verify --distribution` runs, with fewer steps."""
    torch.manual_seed(0)
    verdict = run(cases.cases()[3::29], [], rules, STEPS, 0, exact_draw, lambda: None)
    assert min(min(row) for row in verdict.adjusted) > 0.001  # at 0.05, one honest run in twenty would fail
    lengths = {result.case.name: result.accept_length for result in verdict.results}
    assert all(length == 1 for name, length in lengths.items() if "adversarial ·" in name)
    assert all(length > 1.5 for name, length in lengths.items() if "perfect" in name or "good" in name)


def test_a_perfect_drafter_is_never_rejected() -> None:
    for rule, shape in (("target-only", "chain"), ("rejection", "chain")):
        greedy = cases.Case(rule, shape, "perfect", False, Sampling(top_k=1) if rule != "rejection" else Sampling())
        assert run_case(greedy, served.RULES, 2000, 0, exact_draw).accept_length == pytest.approx(4.0, abs=0.01)


@pytest.mark.parametrize("control", cases.controls(), ids=lambda case: case.name)
def test_wrong_samplers_are_found(control: cases.Case) -> None:
    """With fewer steps than a whole run has, at a level that one test of its own asks for.

    They are enough for any draw, for torch's is another one on another processor: of 20, none is above 2e-4.
    """
    steps = {"target-only": 16_000, "rejection": 30_000}[control.rule] if control.control == cases.SKIP else 45_000
    assert run_case(control, served.RULES, steps, 0, exact_draw).p < 0.01


def test_dead_tokens_are_never_committed() -> None:
    case = cases.Case("rejection", "chain", "adversarial", True, Sampling())
    outcome = case.experiment(served.RULES, 0).run(3000, torch.Generator().manual_seed(0))
    assert not set(outcome.tokens.unique().tolist()) & set(DEAD)


def test_every_combination_is_a_case() -> None:
    found = cases.cases()
    assert len(found) == len({case.name for case in found}) == 3 * 2 * len(DRAFTERS) * len(cases.SAMPLINGS)
    temperatures = {case.sampling.temperature for case in found}
    assert {0.3, 1.0, 1.5} <= temperatures and any(case.sampling.min_p for case in found)


def test_the_command(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(served, "sglang_draw", exact_draw)
    monkeypatch.setattr(
        cases, "controls", lambda: [cases.Case("rejection", "chain", "poor", False, Sampling(), cases.WARM)]
    )
    arguments = [
        "verify",
        "--distribution",
        "--only",
        "rejection · chain · good ·",
        "--steps",
        "10000",
        "--out",
        str(tmp_path),
    ]
    assert main(arguments) == 0
    record = json.loads((tmp_path / "distribution.json").read_text())
    assert record["passed"] and record["versions"]["torch"] and len(record["cases"]) == 8
    assert all(case["steps"] >= 10_000 and len(case["tests"]) == 6 for case in record["cases"])
    assert record["tests"] == 8 * 6 + 3 and record["controls"][0]["found"]
    assert "1 controls, all found" in capsys.readouterr().out


def test_the_command_fails_where_a_control_passes(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(served, "sglang_draw", exact_draw)
    honest = cases.Case("rejection", "chain", "good", False, Sampling())
    monkeypatch.setattr(cases, "controls", lambda: [honest])
    monkeypatch.setattr(cases, "cases", lambda: [honest])
    assert main(["verify", "--distribution", "--steps", "2000", "--out", str(tmp_path)]) == 1
    assert json.loads((tmp_path / "distribution.json").read_text())["controls_not_found"] == [honest.name]


def test_the_command_fails_where_a_case_is_wrong(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(served, "sglang_draw", exact_draw)
    wrong = cases.Case("rejection", "chain", "poor", False, Sampling(min_p=0.1), cases.NO_MIN_P)
    monkeypatch.setattr(cases, "cases", lambda: [wrong])
    monkeypatch.setattr(cases, "controls", lambda: [])
    assert main(["verify", "--distribution", "--steps", "5000", "--out", str(tmp_path)]) == 1
    assert wrong.name in json.loads((tmp_path / "distribution.json").read_text())["failed"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--steps", "10"], "--steps 10"), (["--only", "nonsense"], "--only nonsense"), (["--", "--x"], "--x: ")],
)
def test_mistakes(arguments: list[str], message: str, capsys) -> None:
    assert main(["verify", "--distribution", *arguments]) == 2
    assert message in capsys.readouterr().err
