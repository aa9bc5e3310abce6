"""The report and the command, facts that are gathered, and the process that loads SGLang."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import io
import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doctor_facts import FACTS, INFO, MACHINE, PLUGINS, SOFTWARE, STARTED, counted, stock
from rich.console import Console
from truth import producers

from sglang_eagle31.tools.cli import COMMANDS, load, main
from sglang_eagle31.tools.doctor import gather, probe, report
from sglang_eagle31.tools.doctor.facts import Facts, Server
from sglang_eagle31.tools.shared import server_info as served

DOCTOR = Path(report.__file__).parent


def test_a_healthy_server_has_no_warning() -> None:
    lines = report.examine(FACTS)
    found = {(line.section, line.name): line.status for line in lines}
    assert len(found) == len(lines) > 45
    assert {status for (section, _), status in found.items() if section != "checklist"} <= {"ok", "skip"}
    assert [name for (section, name), status in found.items() if status == "skip" and section != "checklist"] == [
        "drift"
    ]
    assert report.to_json(FACTS, lines)["status"] == "ok"


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        (replace(FACTS, server=stock()), "warn"),
        (replace(FACTS, server=counted(alarm={"cause": "fall", "text": "fell; fix: look", "times": 1})), "FAIL"),
        (replace(FACTS, server=Server("http://x", "refused")), "FAIL"),
    ],
)
def test_the_worst_line_decides(facts: Facts, status: str) -> None:
    made = report.to_json(facts, report.examine(facts))
    assert made["status"] == status
    assert sum(made["counts"].values()) == len(made["lines"])
    assert json.loads(json.dumps(made))["lines"] == made["lines"]


def test_without_server_and_head_only_the_installation_is_judged() -> None:
    lines = report.examine(Facts(MACHINE, SOFTWARE, PLUGINS, STARTED))
    assert [line.name for line in lines if line.section == "head"] == ["audit"]
    assert not [line for line in lines if line.section in ("server", "acceptance")]


def test_the_table_shows_every_line_and_what_to_do() -> None:
    lines = report.examine(replace(FACTS, server=stock()))
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(report.render(lines))
    text = console.export_text()
    for line in lines:
        assert line.text in text and (not line.fix or f"-> {line.fix}" in text)
    assert re.search(r"\d+ warn, \d+ skip, \d+ ok", text)


def test_every_command_that_is_named_exists() -> None:
    sources = [*DOCTOR.rglob("*.py"), DOCTOR.parents[2] / "docs" / "doctor.md"]
    named = {name for file in sources for name in re.findall(r"-m sglang_eagle31 (\w+)", file.read_text())}
    assert {"audit", "robust", "verify", "drift"} <= named <= set(COMMANDS)


def test_every_command_of_a_fix_is_one_that_can_be_run() -> None:
    fixes = [line.fix for facts in (FACTS, replace(FACTS, server=stock())) for line in report.examine(facts)]
    commands = {found for fix in fixes for found in re.findall(r"python -m sglang_eagle31 ([^;,]+)", fix)}
    assert {text.split()[0] for text in commands} >= {"bench", "robust", "verify"}
    for name, *words in map(str.split, commands):
        module = load(name)
        parser = argparse.ArgumentParser(exit_on_error=False)
        module.add_arguments(parser)
        parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["localhost:30000"], "expected the address of a server"),
        (["--target", "/t"], "--target is given without --head"),
        (["--override", "a=b"], "--override is given without --head"),
        (["--override", "a"], "expected KEY=VALUE"),
    ],
)
def test_a_mistake_is_answered(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and "fix: " in error


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The installation of the made-up facts, whatever this environment is."""
    monkeypatch.setattr(gather, "machine", lambda: MACHINE)
    monkeypatch.setattr(gather, "software", lambda: SOFTWARE)
    monkeypatch.setattr(gather, "plugins", lambda: PLUGINS)
    monkeypatch.setattr(probe, "start", lambda: STARTED)


def test_the_command(installed: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert "a fresh process knows EAGLE31" in capsys.readouterr().out
    assert main(["doctor", "--quick", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["started"] is None and made["schema"] == 1 and made["counts"]["FAIL"] == 0
    assert main(["doctor", "--head", str(tmp_path)]) == 1
    assert "holds no config.json" in capsys.readouterr().out
    assert main(["doctor", "http://127.0.0.1:9/", "--quick"]) == 1
    assert re.search(r"FAIL +answers", capsys.readouterr().out)


def test_a_head_is_audited_with_its_target(tmp_path: Path) -> None:
    folder = producers.write(tmp_path / "head", "torchspec31", producers.Shape())
    target = producers.write_target(tmp_path / "target")
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "sglang_eagle31_trained_depth": 7}))
    head = gather.head(str(folder), str(target), {})
    assert head.error is None and head.depth == 7 and head.report["target"] == str(target)
    assert head.context == json.loads((target / "config.json").read_text())["max_position_embeddings"]
    files = [*folder.glob("*.safetensors"), *target.glob("*.safetensors")]
    assert head.size == sum(file.stat().st_size for file in files) > 0
    alone = gather.head(str(folder), None, {})
    assert alone.error is None and (alone.context, alone.size) == (None, None)
    missing = gather.head(str(folder), str(tmp_path / "nowhere"), {})
    assert missing.error is not None and "nowhere" in missing.error


def test_a_stock_server_s_head_is_audited_if_it_is_here(tmp_path: Path) -> None:
    here = stock(speculative_draft_model_path=str(tmp_path), model_path=str(tmp_path))
    found = gather.served_head(here, {})
    assert found is not None and found.error is not None and "config.json" in found.error
    assert gather.served_head(stock(speculative_draft_model_path="/nowhere/head"), {}) is None
    assert gather.served_head(replace(FACTS.server or here, info=INFO), {}) is None  # EAGLE31 has audited it


def test_a_server_says_what_it_is_and_a_folder_that_is_here_how_deep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer: dict[str, Any] = {}
    monkeypatch.setattr(served, "server_info", lambda url: answer)
    assert "not that of an SGLang server" in str(gather.server("http://x").error)
    answer.update({**INFO, "eagle31": {**INFO["eagle31"], "head": str(tmp_path)}})
    assert gather.server("http://x").depth is None  # there is no config.json
    for text, depth in {"[]": None, "{": None, '{"sglang_eagle31_trained_depth": 3}': 3}.items():
        (tmp_path / "config.json").write_text(text)
        found = gather.server("http://x")
        assert (found.error, found.depth, found.positions) == (None, depth, 8192)
    answer.update(speculative_algorithm=None, eagle31=None)
    assert gather.server("http://x").algorithm is None


def test_this_machine() -> None:
    here = gather.machine()
    assert here.cores >= 1 and here.memory >= here.free >= 0 and here.load >= 0
    assert here.system and here.arch


@pytest.mark.parametrize(
    ("text", "quota"), [("max 100000", None), ("150000 100000\n", 1.5), ("", None), ("200000 100000", 2.0)]
)
def test_the_quota_of_a_control_group(text: str, quota: float | None) -> None:
    assert gather._quota(text) == quota


def test_the_compiler_is_looked_for_as_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: {"g++": "/g++", "ccache": "/ccache"}.get(name))
    monkeypatch.delenv("CXX", raising=False)
    assert gather._compiler("CXX", ("g++",)) == "/g++"
    for value, found in {"ccache g++": "/ccache", "/nowhere": None, "": None}.items():
        monkeypatch.setenv("CXX", value)
        assert gather._compiler("CXX", ("g++",)) == found


def test_versions_are_compared_with_the_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["sglang>=0.5.23,<0.6", "rich", "absent", 'pytest; extra == "dev"', "torch>=99"]
    versions = {"sglang": "0.5.23", "rich": "14", "torch": "2.14.1", "pytest": "8"}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "requires", lambda name: wanted)
    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "metadata", lambda name: {"Version": "1", "Requires-Python": ">=99"})
    found = gather.software()
    assert found.sglang == "0.5.23" and found.declared == "1" and not found.python_fits
    assert {one.name: (one.installed, one.fits) for one in found.requirements} == {
        "sglang": ("0.5.23", True),
        "rich": ("14", True),
        "absent": (None, False),
        "torch": ("2.14.1", False),
    }


def test_a_package_that_is_not_installed_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "metadata", missing)
    with pytest.raises(ValueError, match="not installed in this environment.*fix: pip install"):
        gather.software()


def test_options_cache_and_entry_points(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SGLANG_EAGLE31_CACHE", str(tmp_path / "a" / "b"))
    monkeypatch.setenv("SGLANG_EAGLE31_OPTIONS", "{")
    entries = {"sglang.srt.plugins": ["eagle31", "other"], "sglang.srt.platforms": []}
    monkeypatch.setattr(
        importlib.metadata,
        "entry_points",
        lambda group: [importlib.metadata.EntryPoint(name, f"{name}:f", group) for name in entries[group]],
    )
    found = gather.plugins()
    assert found.found == {"sglang.srt.plugins": "eagle31:f", "sglang.srt.platforms": None} and found.others == (
        "other",
    )
    assert found.options_error is not None and "is not JSON" in found.options_error
    assert found.cache_error is None and set(found.unfit) == {"server", "eagle31", "cpu"}
    monkeypatch.setenv("SGLANG_EAGLE31_CACHE", "/proc/nothing")
    assert "/proc" in str(gather.plugins().cache_error)


def test_the_process_that_loads_sglang() -> None:
    def run(code: str, timeout: float = 60) -> Any:
        return probe.start((sys.executable, "-c", code), timeout)

    answer = {
        "registered": True,
        "lost": [],
        "kernel": "real",
        "kernel_error": None,
        "gpus": [["H200", 5]],
        "amx": False,
    }
    found = run(f"print('noise'); print({json.dumps(answer)!r})")
    assert found.error is None and found.registered and found.gpus == (("H200", 5),) and found.kernel == "real"
    assert run("raise SystemExit('boom')").error == "ended with 1: boom"
    assert run("print('no json')").error == "ended with 0: nothing was said"
    assert run("import time; time.sleep(60)", 0.2).error == "no answer in 0.2 seconds"
