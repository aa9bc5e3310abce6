"""`tune --simulate`: what it prints, when it says no, and what it refuses."""

import json

import pytest

from sglang_eagle31.tools.cli import main


def tune(capsys, *arguments, status=0):
    assert main(["tune", "--simulate", *arguments]) == status
    out, err = capsys.readouterr()
    return err if status else out


def answers(capsys, *arguments):
    return json.loads(tune(capsys, *arguments, "--json"))


def test_the_whole_grid_and_the_flags(capsys):
    out = tune(capsys, "--acceptance", "0.8", "--cost", "0.05", "--max-steps", "12")
    assert "concurrency 1: 8,1,9 is predicted at 3.09x (3.46" not in out  # E(0.8, 8) is 4.33
    assert "concurrency 1: 8,1,9 is predicted at 3.09x (4.33 tokens a round)" in out
    assert "--speculative-num-steps 8 --speculative-eagle-topk 1 --speculative-num-draft-tokens 9" in out
    rows = [line.split("│")[1:] for line in out.splitlines() if line.startswith("│")]
    assert [int(row[0]) for row in rows] == list(range(13))
    assert [row[-2].strip() for row in rows if "*" in row[-2]] == ["3.09*"]


def test_it_says_that_speculation_does_not_pay(capsys):
    out = tune(capsys, "--acceptance", "0.3", "--cost", "0.5")
    assert "do not speculate: even 1,1,2 is predicted at 0.87x" in out
    assert "would break even at acceptance 0.50" in out and "--speculative" not in out
    answer = answers(capsys, "--acceptance", "0.3", "--cost", "0.5")["answers"][0]
    assert not answer["speculate"] and answer["flags"] == ""
    assert answer["best"]["steps"] == 0 and answer["best"]["speedup"] == 1


def test_concurrency_shortens_the_draft_and_ends_it(capsys):
    found = answers(
        capsys, "--acceptance", "0.8,0.7,0.6", "--cost", "0.05", "--verify-slope", "0.05", "--concurrency", "1,8,512"
    )["answers"]
    steps = [one["best"]["steps"] for one in found]
    assert steps[0] > steps[1] > steps[2] == 0
    assert found[1]["break_even_concurrency"] >= 8 and found[2]["break_even_concurrency"] < 512


def test_trees_need_to_know_the_other_ranks(capsys):
    plain = answers(capsys, "--acceptance", "0.6", "--cost", "0.05")
    assert {row["topk"] for row in plain["grid"]} == {1}
    trees = answers(capsys, "--acceptance", "0.6", "--recovery", "0.5,0.4", "--cost", "0.05")
    assert trees["answers"][0]["best"]["topk"] > 1
    assert trees["answers"][0]["best"]["speedup"] > plain["answers"][0]["best"]["speedup"]
    assert trees["answers"][0]["break_even_acceptance"] is None


def test_a_file_and_options_over_it(capsys, tmp_path):
    file = tmp_path / "known.json"
    file.write_text(json.dumps({"acceptance": [[0.6, 0.2], [0.5, 0.2]], "cost": 0.5, "max_steps": 3, "topk": 2}))
    assert answers(capsys, "--input", str(file))["given"]["cost"] == 0.5
    changed = answers(capsys, "--input", str(file), "--cost", "0.05")
    assert changed["given"]["cost"] == 0.05 and changed["given"]["topk"] == [2]
    assert changed["acceptance_by_depth_and_rank"] == [[0.6, 0.2], [0.5, 0.2]]
    assert changed["answers"][0]["at_edge"]
    assert "a larger --max-steps may find a better one" in tune(capsys, "--input", str(file), "--cost", "0.01")


def test_a_gain_too_small_to_call(capsys):
    assert "too close to call" in tune(capsys, "--acceptance", "0.32", "--cost", "0.3")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "acceptance and cost not given"),
        (["--acceptance", "0.8"], "tune: cost not given"),
        (["--acceptance", "80", "--cost", "0.1"], "acceptance 80: expected a probability"),
        (["--acceptance", "nan", "--cost", "0.1"], "acceptance nan"),
        (["--acceptance", "0.8", "--recovery", "1.2", "--cost", "0.1"], "recovery 1.2: expected a probability"),
        (["--acceptance", "0.8", "--cost", "-1"], "cost -1"),
        (["--acceptance", "0.8", "--cost", "0.1", "--concurrency", "0"], r"concurrency [0]: expected 1 to"),
        (["--acceptance", "0.8", "--cost", "0.1", "--max-steps", "1000"], "max_steps [1000]"),
    ],
)
def test_numbers_that_make_no_sense(capsys, arguments, words):
    assert words in tune(capsys, *arguments, status=2)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("no", "cannot be read as JSON"),
        ("[1]", "expected a JSON object, found list"),
        ('{"acceptance": 0.8, "cots": 1}', "unknown cots"),
        ('{"acceptance": 0.8, "cost": "0.1"}', "cost: found '0.1', expected a number"),
        ('{"acceptance": 0.8, "cost": [0.1]}', "cost: found [0.1], expected one number"),
        ('{"acceptance": 0.8, "cost": 0.1, "topk": [[2]]}', "topk: found [[2]], a list in a list"),
        ('{"acceptance": 0.8, "cost": 0.1, "concurrency": 1.5}', "found 1.5, expected a whole number"),
        ('{"acceptance": [0.8, [0.7]], "cost": 0.1}', "a list in a list"),
        ('{"acceptance": [[0.8], [0.7, 0.1]], "cost": 0.1}', "as many ranks at each depth"),
        ('{"acceptance": [[0.8, 0.3]], "cost": 0.1}', "add up to more than 1"),
        ('{"acceptance": [[0.8, 0.1]], "recovery": [0.1], "cost": 0.1}', "leave one out"),
        ('{"acceptance": [], "cost": 0.1}', "as many ranks at each depth"),
        ('{"acceptance": true, "cost": 0.1}', "found True"),
    ],
)
def test_files_that_make_no_sense(capsys, tmp_path, content, words):
    file = tmp_path / "known.json"
    file.write_text(content)
    assert words in tune(capsys, "--input", str(file), status=2)


def test_a_mode_must_be_named(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["tune", "--acceptance", "0.8", "--cost", "0.05"])
    assert stopped.value.code == 2
    assert "--simulate is required" in capsys.readouterr().err


def test_options_of_the_other_mode(capsys):
    assert "--goal: belongs to --url; fix:" in tune(
        capsys, "--acceptance", "0.8", "--cost", "0.05", "--goal", "latency", status=2
    )
    assert main(["tune", "--url", "http://localhost:1", "--cost", "0.1"]) == 2
    assert "--cost: belongs to --simulate" in capsys.readouterr().err
