"""A forked server does what one from the command line does, however it ends."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import requests
from conftest import COMMON, Models, generate, prompt, speculate
from forked import ForkParent

from sglang_eagle31.tools.shared.server_process import Server, _group_members, serve_sglang

TREE = (3, 1, 4)


def processes(server: Server) -> dict[str, int]:
    """Ids of the processes of the server, by title."""
    found = {}
    for pid in _group_members(server.pid):
        title = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
        found["server" if pid == server.pid else title] = pid
    return found


def test_processes_are_those_of_the_command_line_and_all_of_them_end(start: Any, tiny: Models) -> None:
    with start("titles", *speculate("EAGLE31", tiny.eagle31, *TREE)) as server:
        names = processes(server)
        parents = {
            name: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] for name, pid in names.items()
        }
        compiler_off = b"TORCH_COMPILE_DISABLE=1" in Path(f"/proc/{server.pid}/environ").read_bytes()
    assert {"server", "sglang::scheduler", "sglang::detokenizer"} <= set(names)
    assert parents["sglang::scheduler"] == parents["sglang::detokenizer"] == str(server.pid)
    assert not compiler_off  # only our plugin may set it
    assert _group_members(server.pid) == []


def test_one_parent_serves_a_plain_server_after_one_with_a_head(start: Any, tiny: Models, plain: Any) -> None:
    with start("forked-plain") as server:
        ids = generate(server, [prompt(17, 1)], 48)[0]["output_ids"]
        info = requests.get(f"{server.url}/server_info", timeout=60).json()
        log = server.log_path.read_text()
    assert ids == plain.answers.ids[0]
    assert "eagle31" not in info and info["speculative_algorithm"] is None
    assert "EAGLE31:" not in log and "TreeAttention" not in log


def test_a_refusal_shows_its_exit_code_and_why(attempt: Any, tiny: Models, tmp_path: Path) -> None:
    refused = attempt("refused", *speculate("EAGLE31", tmp_path / "nowhere", *TREE))
    assert (refused.ready, refused.exit_code) == (False, 1)
    assert "EAGLE31 cannot run this set-up" in refused.log
    usage = attempt("usage", "--no-such-flag")
    assert (usage.ready, usage.exit_code) == (False, 2)


def test_a_scheduler_that_fails_ends_the_server_and_nothing_else(attempt: Any, tiny: Models, tmp_path: Path) -> None:
    shutil.copy(tiny.target / "config.json", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not a checkpoint")
    failed = attempt("crash", target=tmp_path)
    assert not failed.ready and failed.exit_code not in (None, 0)
    assert "Scheduler hit an exception" in failed.log


def test_a_killed_scheduler_is_noticed(attempt: Any, tiny: Models) -> None:
    def use(server: Server) -> None:
        os.kill(processes(server)["sglang::scheduler"], signal.SIGKILL)
        server.process.wait(timeout=60)
        requests.get(server.url, timeout=5)

    killed = attempt("killed", *speculate("EAGLE31", tiny.eagle31, *TREE), use=use)
    assert not killed.ready and killed.exit_code not in (None, 0)


def test_only_what_the_imports_allow_is_forked(fork_parent: ForkParent, tiny: Models, log_dir: Path) -> None:
    with pytest.raises(ValueError, match="environment"):
        with serve_sglang("env", tiny.target, COMMON, log_dir=log_dir, env={"CC": ""}, launch=fork_parent.launch):
            pytest.fail("the block must not run")
