"""The plugin against the real SGLang and its HookRegistry: seams in place, and each of them moved away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import registry_cases as cases

from sglang_eagle31.patches import SEAMS, Seam, group

REGISTER = "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.register"


def by_target(seams: list[Seam] | tuple[Seam, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("seam", seams, ids=lambda seam: seam.target.removeprefix("sglang.srt."))


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    """What `registry_cases` found, in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    for name in ("SGLANG_EAGLE31_OPTIONS", "SGLANG_PLUGINS"):
        environment.pop(name, None)
    command = [sys.executable, str(Path(cases.__file__))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=170)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    errors = {name: outcome["error"] for name, outcome in found.items() if "error" in outcome}
    assert errors == {}
    return found


def test_the_server_seams_are_in_place(outcomes: dict[str, Any]) -> None:
    outcome = outcomes["in_place"]
    assert outcome["server"] == {seam.target: True for seam in group("server") if seam.handler}
    assert outcome["reasons"] == []


def test_the_other_seams_wait_until_they_are_asked_for(outcomes: dict[str, Any]) -> None:
    outcome = outcomes["in_place"]
    assert outcome["eagle31 before"] == {seam.target: False for seam in group("eagle31") if seam.handler}
    assert outcome["eagle31 after"] == {seam.target: True for seam in SEAMS if seam.handler}


def test_when_all_fits_only_the_user_s_mistake_is_refused(outcomes: dict[str, Any]) -> None:
    lines = outcomes["in_place"]["resolved"].splitlines()
    assert lines[0] == "EAGLE31 cannot run this set-up:" and len(lines) == 2
    assert "--speculative-draft-model-path is not given" in lines[1]


def test_the_unresolved_name_is_refused_in_any_spelling(outcomes: dict[str, Any]) -> None:
    assert len(outcomes["names"]) == 4
    for message in outcomes["names"].values():
        assert message.startswith("EAGLE31 cannot run this set-up:") and "resolve_once did not run" in message


def test_sglang_s_parser_has_our_options(outcomes: dict[str, Any]) -> None:
    outcome = outcomes["command_line"]
    assert "EAGLE 3.1 (sglang-eagle31)" in outcome["help"] and "--eagle31-override" in outcome["help"]
    assert outcome["asked"] == ["eagle3.1", ["feedback=post"]]


def test_an_unknown_option_of_ours_is_answered_with_the_known_ones(outcomes: dict[str, Any]) -> None:
    code, text = outcomes["command_line"]["unknown"]
    assert code == 2
    assert "--eagle31-foo" in text and "options of EAGLE31: --eagle31-override" in text and "did you mean --" in text


def refused(outcome: dict[str, Any], reason: str, validated: bool) -> None:
    """By the resolution and, which SGLang reaches when the hook on resolve_once is not there, by the validator."""
    assert reason in outcome["resolved"], outcome["resolved"]
    assert outcome["resolved"].startswith("EAGLE31 cannot run this set-up:\n  - ")
    assert outcome["untouched"] == {"None": True, "EAGLE3": True, "NGRAM": True}
    assert not validated or reason in outcome["validated"], outcome["validated"]


@by_target(SEAMS)
def test_a_seam_moved_away_refuses_eagle31_alone(outcomes: dict[str, Any], seam: Seam) -> None:
    reason = f"SGLang has no {seam.target} any more"
    validated = seam.group != "cpu" and seam.target != REGISTER
    refused(outcomes[f"move_away {seam.target}"], reason, validated)


@by_target(SEAMS)
def test_a_seam_that_lost_its_parameters_refuses_eagle31_alone(outcomes: dict[str, Any], seam: Seam) -> None:
    reason = f"{seam.target} lost the parameters {', '.join(seam.params)}; it takes _, __"
    refused(outcomes["lose_parameters"], reason, validated=False)


@by_target(cases.HOOKED)
@pytest.mark.parametrize("change", ["swallow_hooks", "be_second"])
def test_a_hook_that_did_not_take_effect_refuses_eagle31_alone(
    outcomes: dict[str, Any], seam: Seam, change: str
) -> None:
    reason = f"the hook on {seam.target} did not take effect"
    refused(outcomes[change], reason, validated=seam.group == "server")


def test_without_the_registry_sglang_itself_refuses_the_name(outcomes: dict[str, Any]) -> None:
    validated = outcomes[f"move_away {REGISTER}"]["validated"]
    assert validated == "Unknown speculative algorithm name: EAGLE31"
