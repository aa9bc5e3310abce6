"""The doctor on a server with EAGLE31 and on one of stock SGLang: seconds each."""

from __future__ import annotations

import importlib.metadata
import json
import re
from typing import Any

import pytest
import requests
from conftest import Models, generate, prompt, speculate

from sglang_eagle31.tools.cli import main
from sglang_eagle31.tools.shared.server_process import Server

REQUESTS = [prompt(10 + 3 * i, i) for i in range(16)]
TREE = (4, 3, 8)


def examined(server: Server, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Exit status, and what each line of the sections on head, server and acceptance says."""
    capsys.readouterr()
    code = main(["doctor", server.url, "--quick", "--json", *words])
    made = json.loads(capsys.readouterr().out)
    assert code == int(made["status"] == "FAIL")
    shown = ("head", "server", "acceptance")
    return code, {f"{line['section']}: {line['name']}": line for line in made["lines"] if line["section"] in shown}


def statuses(lines: dict[str, dict[str, str]], *but: str) -> dict[str, str]:
    return {name: line["status"] for name, line in lines.items() if name not in but}


def test_a_server_with_eagle31(start: Any, tiny: Models, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*speculate("EAGLE31", tiny.eagle31, *TREE), "--eagle31-drift-sample", "1"]
    with start("doctor-eagle31", *flags) as server:
        _, before = examined(server, capsys)
        generate(server, REQUESTS, 60)
        code, lines = examined(server, capsys)
        marker = requests.get(f"{server.url}/server_info", timeout=60).json()["eagle31"]
        assert main(["doctor", server.url, "--quick"]) == code
    text = capsys.readouterr().out
    assert marker["version"] == importlib.metadata.version("sglang-eagle31")
    assert all(one["name"] in text and one["text"][:40] in text for one in lines.values())
    assert before["acceptance: length"]["status"] == "skip" and "too few" in before["acceptance: length"]["text"]
    assert "acceptance: by depth" not in before
    assert statuses(lines, "server: trained depth", "acceptance: by depth", "acceptance: drift") == {
        "server: answers": "ok",
        "server: EAGLE31": "ok",
        "server: schedulers": "ok",
        "server: version": "ok",
        "server: tree": "ok",
        "server: context": "ok",
        "server: attention": "ok",
        "server: KV cache": "ok",
        "server: settings": "ok",
        "acceptance: alarm": "ok",
        "acceptance: length": "ok",
        "acceptance: templates": "skip",  # the servers of the tests have no tokenizer
        "acceptance: contexts": "ok",
        "acceptance: guard": "warn",  # it is off in the servers of the tests
    }
    assert "EAGLE 3.1" in lines["server: EAGLE31"]["text"] and str(tiny.eagle31) in lines["server: EAGLE31"]["text"]
    assert re.search(r"accepted to depth 1, 2, \.\.\.: \d+%, \d+%, \d+%, \d+%", lines["acceptance: by depth"]["text"])
    assert "over 8 steps" in lines["acceptance: drift"]["text"]  # the probe's verdict, whatever it is


def test_a_stock_server(start: Any, tiny: Models, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*speculate("EAGLE3", tiny.eagle31, *TREE), "--decode-log-interval", "4"]
    with start("doctor-stock", *flags) as server:
        generate(server, REQUESTS, 40)
        code, lines = examined(server, capsys)
    found = statuses(lines)
    assert found["server: EAGLE31"] == "warn" and "stock SGLang" in lines["server: EAGLE31"]["text"]
    assert "server: schedulers" not in found and "acceptance: alarm" not in found
    assert found["head: audit"] == "ok" and str(code) == str(int("FAIL" in found.values()))
    assert re.match(r"\d\.\d\d tokens a round \(SGLang's average", lines["acceptance: length"]["text"])
