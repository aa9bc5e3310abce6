"""Options of ours: from JSON, from a real argparse parser, and what is refused."""

from __future__ import annotations

import argparse
import json
from types import SimpleNamespace

import pytest

from sglang_eagle31.server.options import ENV, NAMES, Eagle31Config, add_arguments, asked, shared


@pytest.fixture(autouse=True)
def no_options_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV, raising=False)


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="launch_server")
    parser.add_argument("--speculative-algorithm")
    parser.add_argument("--model-path")
    add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize("name", ["EAGLE31", "eagle31", "Eagle3.1", "EAGLE3.1", " eagle31 ", *NAMES])
def test_the_name_is_accepted_in_any_case(name: str) -> None:
    assert asked(name)


@pytest.mark.parametrize("name", [None, "", "EAGLE3", "EAGLE", "EAGLE-31", "NGRAM"])
def test_other_algorithms_are_not_ours(name: str | None) -> None:
    assert not asked(name)


def test_nothing_given_is_the_default() -> None:
    assert Eagle31Config.from_env() == Eagle31Config() == Eagle31Config.from_namespace(parse())


def test_options_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV, json.dumps({"override": ["feedback=post", "aux_layers=2,6,9"], "cache_dir": "/heads"}))
    config = Eagle31Config.from_env()
    assert config.cache_dir == "/heads"
    assert config.overrides() == {"feedback": "post", "aux_layers": "2,6,9"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{feedback", ["is not JSON", "fix: unset it"]),
        (
            '{"overide": []}',
            ["unknown option overide", "known: cache_dir, drift_sample, guard, override, pack_weights"],
        ),
        ("[1]", ["unknown option [1]"]),
        ('"EAGLE31"', ["unknown option 'EAGLE31'"]),
        ('{"override": "feedback=post"}', ["--eagle31-override", "feedback=post", "a list"]),
        ('{"override": ["feedback"]}', ["--eagle31-override", "feedback", "KEY=VALUE"]),
        ('{"override": [3]}', ["--eagle31-override", "3", "KEY=VALUE"]),
        ('{"override": 3}', ["--eagle31-override", "3", "KEY=VALUE"]),
        ('{"cache_dir": 3}', ["--eagle31-cache-dir", "3"]),
        ('{"guard": "auto"}', ["--eagle31-guard", "auto", "on, off, observe"]),
        ('{"pack_weights": true}', ["--eagle31-pack-weights", "True", "on or off"]),
    ],
)
def test_a_bad_environment_names_variable_value_and_fix(
    monkeypatch: pytest.MonkeyPatch, text: str, named: list[str]
) -> None:
    monkeypatch.setenv(ENV, text)
    with pytest.raises(ValueError) as error:
        Eagle31Config.from_env()
    assert all(part in str(error.value) for part in [ENV, *named]), str(error.value)


def test_options_of_the_command_line() -> None:
    config = Eagle31Config.from_namespace(
        parse(
            "--speculative-algorithm=eagle3.1",
            *(
                "--eagle31-override",
                "feedback=post",
                "--eagle31-override",
                " residual = pre ",
                "--eagle31-cache-dir=/c",
            ),
        )
    )
    assert config == Eagle31Config(("feedback=post", " residual = pre "), "/c")
    assert config.overrides() == {"feedback": "post", "residual": "pre"}


def test_the_command_line_comes_on_top_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV, json.dumps({"override": ["feedback=pre"], "cache_dir": "/env"}))
    given = parse("--speculative-algorithm=EAGLE31", "--eagle31-override=feedback=post")
    assert Eagle31Config.from_namespace(given) == Eagle31Config(("feedback=post",), "/env")


def test_a_record_keeps_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV, json.dumps({"cache_dir": "/env"}))
    record = SimpleNamespace()
    assert Eagle31Config.of(record) == Eagle31Config(cache_dir="/env")
    Eagle31Config(("logits=raw",)).attach(record)
    assert Eagle31Config.of(record) == Eagle31Config(("logits=raw",))


@pytest.mark.parametrize("algorithm", [None, "EAGLE3"])
def test_our_options_without_eagle31_are_refused(algorithm: str | None) -> None:
    words = () if algorithm is None else ("--speculative-algorithm", algorithm)
    with pytest.raises(ValueError) as error:
        Eagle31Config.from_namespace(parse(*words, "--eagle31-cache-dir", "/c"))
    message = str(error.value)
    assert "--eagle31-cache-dir /c" in message and f"--speculative-algorithm {algorithm}" in message
    assert "fix: add --speculative-algorithm EAGLE31" in message


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("--eagle31-foo", "--eagle31-"),
        ("--eagle31-overide=feedback=post", "--eagle31-override"),
        ("--eagle31-cachedir=/c", "--eagle31-cache-dir"),
    ],
)
def test_an_unknown_option_is_answered_with_the_known_ones(
    capsys: pytest.CaptureFixture[str], word: str, near: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse("--model-path", "m", word)
    text = capsys.readouterr().err
    assert stop.value.code == 2
    assert word in text and "--eagle31-override, --eagle31-cache-dir" in text and f"did you mean {near}" in text


def test_other_mistakes_keep_argparse_s_own_message(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--foo")
    assert "--eagle31" not in capsys.readouterr().err.splitlines()[-1]


def test_help_shows_our_group() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    text = parser.format_help()
    assert "EAGLE 3.1 (sglang-eagle31)" in text and "--eagle31-override" in text and "--eagle31-cache-dir" in text


@pytest.mark.parametrize("algorithm", ["EAGLE31", "EAGLE3", "NEXTN"])
def test_the_drift_probe_serves_other_algorithms_too(algorithm: str) -> None:
    config = Eagle31Config.from_namespace(parse("--speculative-algorithm", algorithm, "--eagle31-drift-sample", "0.25"))
    assert config == Eagle31Config(drift_sample=0.25)
    record = SimpleNamespace()
    assert shared(record).drift_sample == 0.0
    config.attach(record)
    assert shared(record).drift_sample == 0.25


@pytest.mark.parametrize("algorithm", ["EAGLE31", "EAGLE", "STANDALONE"])
def test_any_draft_on_a_cpu_may_leave_its_weights_as_they_are(algorithm: str) -> None:
    config = Eagle31Config.from_namespace(parse("--speculative-algorithm", algorithm, "--eagle31-pack-weights", "off"))
    record = SimpleNamespace()
    assert shared(record).pack_weights == "on"
    config.attach(record)
    assert shared(record).pack_weights == "off"
    with pytest.raises(ValueError, match=r"--eagle31-pack-weights off has no effect"):
        Eagle31Config.from_namespace(parse("--eagle31-pack-weights", "off"))


@pytest.mark.parametrize("rate", ["1.5", "-0.1", "nan"])
def test_a_rate_is_a_share(rate: str) -> None:
    with pytest.raises(ValueError, match=r"--eagle31-drift-sample .*fix: a number from 0 to 1"):
        Eagle31Config.from_namespace(parse("--speculative-algorithm", "EAGLE31", "--eagle31-drift-sample", rate))


def test_without_speculation_there_is_nothing_to_probe() -> None:
    with pytest.raises(ValueError, match=r"--eagle31-drift-sample 0.5 has no effect"):
        Eagle31Config.from_namespace(parse("--eagle31-drift-sample", "0.5"))


def test_only_eagle31_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV, '{"drift_sample": 0.5}')
    assert shared(SimpleNamespace()) == Eagle31Config()
    assert shared(SimpleNamespace(_eagle31={})).drift_sample == 0.5
