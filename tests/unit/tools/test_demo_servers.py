"""Starting and ending servers, with small scripts in the place of a real one."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import requests
from rich.console import Console

from sglang_eagle31.tools.shared.server_process import (
    ServerFailed,
    _group_members,
    free_port,
    popen,
    serve,
    serve_sglang,
)

HEALTHY = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *args): pass
print("listening", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
DYING = "import sys; print('weights not found'); sys.exit(3)"
HANGING = "import time; print('loading weights', flush=True); time.sleep(600)"
STUBBORN = f"""
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"])
{HEALTHY}
"""


@pytest.fixture
def quiet():
    with open(os.devnull, "w") as sink:
        yield Console(file=sink)


def start(script, tmp_path, console, **options):
    port = free_port()
    return serve("fake", [sys.executable, "-c", script, str(port)], port, log_dir=tmp_path, console=console, **options)


def test_healthy_server_is_reached_and_ended(tmp_path, quiet):
    with start(HEALTHY, tmp_path, quiet) as server:
        assert server.alive()
        assert _group_members(server.pid) == [server.pid]
        assert "listening" in server.log_tail()
    assert not server.alive()
    assert _group_members(server.pid) == []


@pytest.mark.parametrize("taken", [1, 3])
def test_another_port_is_tried_where_the_first_was_taken_meanwhile(tmp_path, quiet, taken):
    ports = []

    def launch(command, log, env):
        ports.append(command[command.index("--port") + 1])
        script = "print('[Errno 98] address already in use'); raise SystemExit(1)" if len(ports) <= taken else HEALTHY
        return popen([sys.executable, "-c", script, ports[-1]], log, env)

    running = serve_sglang("fake", "model", log_dir=tmp_path, console=quiet, launch=launch)
    if taken < 3:
        with running as server:
            assert server.alive() and server.url.endswith(ports[-1])
        assert not server.alive()
    else:
        with pytest.raises(ServerFailed, match="address already in use"), running:
            pytest.fail("the block must not run")
    assert len(ports) == min(taken + 1, 3)


def test_another_failure_is_not_tried_again(tmp_path, quiet):
    ports = []

    def launch(command, log, env):
        ports.append(command)
        return popen([sys.executable, "-c", DYING], log, env)

    with pytest.raises(ServerFailed), serve_sglang("fake", "m", log_dir=tmp_path, console=quiet, launch=launch):
        pytest.fail("the block must not run")
    assert len(ports) == 1


def test_death_is_reported_at_once_with_the_log(tmp_path, quiet):
    begin = time.monotonic()
    with pytest.raises(ServerFailed, match=r"(?s)exit code 3.*weights not found"), start(DYING, tmp_path, quiet):
        pytest.fail("the block must not run")
    assert time.monotonic() - begin < 10


def test_deadline_ends_a_server_that_never_answers(tmp_path, quiet):
    with (
        pytest.raises(ServerFailed, match=r"(?s)did not answer .*/health in 1 s.*loading weights"),
        start(HANGING, tmp_path, quiet, deadline=1.0),
    ):
        pytest.fail("the block must not run")
    assert not _processes_with(tmp_path)


def test_an_error_in_the_block_ends_the_server(tmp_path, quiet):
    with pytest.raises(ZeroDivisionError), start(HEALTHY, tmp_path, quiet) as server:
        _ = 1 / 0
    assert not server.alive()


def test_processes_that_ignore_sigterm_are_killed_with_their_children(tmp_path, quiet):
    with start(STUBBORN, tmp_path, quiet) as server:
        assert len(_group_members(server.pid)) == 2
        server.stop(grace=0.3)
        assert server.process.returncode == -signal.SIGKILL
    assert _group_members(server.pid) == []


def test_death_while_in_use_is_reported_with_the_log(tmp_path, quiet):
    script = HEALTHY.replace("self.end_headers()", "self.end_headers()\n        if self.path == '/die': os._exit(9)")
    with pytest.raises(ServerFailed, match=r"(?s)stopped answering.*listening"):
        with start(f"import os\n{script}", tmp_path, quiet) as server:
            requests.get(server.url + "/ping", timeout=5)
            requests.get(server.url + "/die", timeout=5)
            requests.get(server.url + "/ping", timeout=5)
    assert server.process.returncode == 9


ANSWERS = HEALTHY.replace(
    "self.send_response",
    "self.path != '/ask' or (print(text, flush=True), threading.Event().wait()); self.send_response",
)
CRASHING = f"""
import os, signal, subprocess, sys, threading
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
text = "[2026-01-01 00:00:00] Scheduler hit an exception: Traceback (most recent call last):\\n"
text += "  File \\"/a/packed.py\\", line 7, in apply\\n    run(x)\\nRuntimeError: bf16 path needs the cpu support\\n"
{{early}}
{ANSWERS}
"""
"""A scheduler that fails, and an HTTP server that lives on with a request that nobody answers."""
WHY = (
    r"(?s)^RuntimeError: bf16 path needs the cpu support\n  at packed.py:7 in apply\nfix: --eagle31-pack-weights off\n"
)


def test_a_crash_ends_the_request_that_met_it(tmp_path, quiet):
    with pytest.raises(ServerFailed, match=f"{WHY}server fake stopped answering; log: .*fake.log$"):
        with start(CRASHING.format(early=""), tmp_path, quiet) as server:
            requests.get(server.url + "/ask", timeout=600)
    assert server.process.returncode == -signal.SIGKILL and _group_members(server.pid) == []


def test_a_crash_ends_a_start(tmp_path, quiet):
    early = "print(text, flush=True); threading.Event().wait()"
    with pytest.raises(ServerFailed, match=f"{WHY}server fake ended with exit code -9"):
        with start(CRASHING.format(early=early), tmp_path, quiet):
            pytest.fail("the block must not run")


def test_another_error_of_the_block_is_the_crash_s_too(tmp_path, quiet):
    with pytest.raises(ServerFailed, match=WHY) as failed, start(CRASHING.format(early=""), tmp_path, quiet) as server:
        try:
            requests.get(server.url + "/ask", timeout=600)
        except requests.RequestException as error:
            raise RuntimeError("a tool's own words") from error
    assert isinstance(failed.value.__cause__, RuntimeError)


def test_environment_is_added(tmp_path, quiet):
    script = f"import os; print('value', os.environ['ADDED'], 'PATH' in os.environ, flush=True)\n{HEALTHY}"
    with start(script, tmp_path, quiet, env={"ADDED": "7"}) as server:
        assert "value 7 True" in server.log_tail()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_to_the_caller_end_the_server(tmp_path, number):
    (tmp_path / "fake.py").write_text(HEALTHY)
    caller = f"""
        import sys, time
        from pathlib import Path
        from sglang_eagle31.tools.shared.server_process import free_port, serve
        port = free_port()
        command = [sys.executable, {str(tmp_path / "fake.py")!r}, str(port)]
        with serve("fake", command, port, log_dir=Path({str(tmp_path)!r})) as server:
            print(server.pid, flush=True)
            time.sleep(600)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(caller)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    with process:
        group = int(process.stdout.readline())
        assert _group_members(group) == [group]
        process.send_signal(number)
        process.wait(timeout=20)
    assert _group_members(group) == []


def _processes_with(tmp_path: Path) -> list[str]:
    """Processes whose output goes to the log in ``tmp_path``."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/1"):
        try:
            if os.readlink(link) == str(tmp_path / "fake.log"):
                found.append(link.parent.parent.name)
        except OSError:
            continue
    return found
