"""Every kind of head through real servers: run as trained or refused in time; and what is said of stock SGLang.

Stock SGLang itself is run by ``make checkpoints``, on every case; its results are compared with ``audit`` here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checkpoint_matrix as matrix
import markers
import pytest
from checkpoint_cases import cases
from checkpoint_document import render
from checkpoint_report import DOCUMENT, RESULTS
from checkpoint_run import fork_parent as fork_parent_for
from checkpoint_run import serve
from exact import answers
from forked import ForkParent
from selection import core
from truth import producers, readers

from sglang_eagle31.tools.audit.report import audit

CASES = {case.name: case for case in cases()}
EXACT = [name for name, variant in producers.VARIANTS.items() if not variant.refused]
PRODUCERS = """
safeailab specforge specforge31 eagle31_native torchspec31 torchspec_mla31 angelslim specdrift vllm_qwen3 speculators31
modelopt_hf modelopt_megatron_deep nvidia_post_norm nemo31
""".split()
"""One of each, by name of its variant."""
BROKEN = "no_fc shifted_d2t quantised_fc window four_layers_on_top own_embedding".split()
OTHERS = "medusa eagle1 p_eagle_aws mtp rope_base".split()


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[str, Any]]:
    """The results of the last ``make checkpoints`` by name."""
    return {row["name"]: row for row in json.loads(RESULTS.read_text())["cases"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of heads, logs and the target."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def target(folder: Path) -> Path:
    """The target that always says one token."""
    return markers.write_target(folder / "target")


@pytest.fixture(scope="module")
def parent(folder: Path) -> Iterator[ForkParent]:
    """Forks servers whose fresh memory is filled."""
    with fork_parent_for(folder / "fork-parent.log") as process:
        yield process


@pytest.mark.parametrize("name", core(EXACT, PRODUCERS))
def test_a_marker_head_needs_every_switch(name: str, tmp_path: Path) -> None:
    """By the reference alone: read back independently it says the token, and no wrong reading does."""
    weights = markers.weights_of(name)
    switches = markers.fitted(markers.switches_of(name), weights)
    written = producers.write(tmp_path / "head", name, markers.SHAPE, weights=weights)
    known = markers.stream()
    facts = dict(producers.VARIANTS[name].overrides)
    if "aux_layers" in answers(name, markers.SHAPE):
        facts["boundaries"] = markers.SHAPE.boundaries
    depth, width, vocab = markers.SHAPE.target_layers, markers.SHAPE.target_hidden, markers.SHAPE.vocab
    target = readers.TargetFacts(depth, width, vocab, "LlamaForCausalLM", known.embed, markers.target_rows())
    head = readers.read(written, producers.VARIANTS[name].producer, target=target, facts=facts)
    assert markers.accept_length(head) == markers.STEPS + 1
    for wrong in markers.wrong_readings(switches):
        most = 2.0 if set(wrong) == {"feedback"} else 1.0
        assert markers.misread(weights, switches, **wrong) == most, wrong


@pytest.mark.parametrize("name", core(CASES, [*PRODUCERS, *BROKEN, *OTHERS]))
def test_ours_runs_it_as_trained_or_refuses_it(
    name: str, parent: ForkParent, target: Path, folder: Path, recorded: dict[str, Any]
) -> None:
    case = CASES[name]
    found = matrix.ours(case, parent, case.write(folder / name), target, folder)
    assert matrix.problems(case, found) == []
    assert _facts(found) == _facts(recorded[name]["ours"]), "run make checkpoints"


@pytest.mark.parametrize("name", core(CASES, [*PRODUCERS, *BROKEN, *OTHERS]))
def test_what_audit_says_of_stock_sglang_is_what_it_does(
    name: str, target: Path, tmp_path: Path, recorded: dict[str, Any]
) -> None:
    case = CASES[name]
    head = case.write(tmp_path / case.name)
    said = matrix.predicted(case, head, target, audit(str(head), str(target), dict(case.overrides)))
    now = {**recorded[case.name]["sglang"], "predicted": said.kind, "reasons": list(said.reasons)}
    assert matrix.disagreement(now) == ""


def test_the_results_are_of_these_cases(recorded: dict[str, Any]) -> None:
    shown = {name: (row["kind"], row["title"]) for name, row in recorded.items()}
    assert shown == {name: (case.kind, case.title) for name, case in CASES.items()}


def test_the_document_is_what_the_results_say() -> None:
    assert DOCUMENT.read_text() == render(json.loads(RESULTS.read_text()))


def test_a_dead_head_would_be_noticed(parent: ForkParent, target: Path, folder: Path) -> None:
    """The measure itself: the right head with one wrong answer serves, answers rightly, and accepts nothing."""
    case = CASES["specforge31"]
    head = case.write(folder / "wrong-answer")
    wrong = {**case.overrides, "aux_layers": "2,4,6"}
    seen = serve(parent, target, head, "EAGLE31", wrong, folder, "wrong-answer")
    assert (seen.outcome, seen.accept_length) == ("low acceptance", 1.0)
    found = {"verdict": "needs-override", "told": "exact", "alone": seen.to_json(), "with_overrides": seen.to_json()}
    assert len(matrix.problems(case, found)) == 2


def _facts(found: dict[str, Any]) -> dict[str, Any]:
    """Without the wording of errors."""
    kept = {name: value for name, value in found.items() if name != "error"}
    return {name: _facts(value) if isinstance(value, dict) else value for name, value in kept.items()}
