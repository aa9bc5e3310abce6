"""What is read out of a server's log, in the forms that SGLang, Python and the kernel give it."""

from __future__ import annotations

import pytest

from sglang_eagle31.tools.shared.server_log import Failure, crashed, failure

STAMP = "[2026-12-01 12:51:05]"
FRAMES = """  File "/site-packages/sglang/srt/managers/scheduler.py", line 6370, in run_scheduler_process
    scheduler.run_event_loop()
  File "/site-packages/torch/_ops.py", line 1243, in __call__
    return self._op(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^
"""
HEAD = "Traceback (most recent call last):\n"
WHERE = ("_ops.py:1243 in __call__", "scheduler.py:6370 in run_scheduler_process")
SCHEDULER = f"{STAMP} Scheduler hit an exception: {HEAD}{FRAMES}RuntimeError: needs the cpu support avx512bw\n\n"
REFUSAL = f"""{HEAD}{FRAMES}sglang_eagle31.server.resolve.Eagle31Refused: EAGLE31 cannot run this set-up:
  - --speculative-num-steps 3 is given without the others; fix: give all three
"""
CASES = {
    "a scheduler": (SCHEDULER, "RuntimeError: needs the cpu support avx512bw", WHERE, "--eagle31-pack-weights off"),
    "a scheduler, then the others": (
        f"{STAMP} Load weight begin.\n{SCHEDULER}{STAMP} SIGQUIT received. signum=3\n"
        f"{HEAD}{FRAMES}SystemExit: killed\n{STAMP} Subprocess detokenizer (pid=7) crashed with exit code -9.\n",
        "RuntimeError: needs the cpu support avx512bw",
        WHERE,
        "--eagle31-pack-weights off",
    ),
    "lines of other processes between": (
        SCHEDULER.replace("    return self", f"{STAMP} INFO another process\n    return self"),
        "RuntimeError: needs the cpu support avx512bw",
        WHERE,
        "--eagle31-pack-weights off",
    ),
    "a chain": (
        f"{STAMP} Scheduler hit an exception: {HEAD}{FRAMES}KeyError: 'a'\n\nThe above exception was the direct "
        f"cause of the following exception:\n\n{HEAD}{FRAMES}ValueError: no weight of that name\n\n",
        "ValueError: no weight of that name",
        WHERE,
        "",
    ),
    "our refusal": (
        REFUSAL,
        "sglang_eagle31.server.resolve.Eagle31Refused: EAGLE31 cannot run this set-up:\n"
        "  - --speculative-num-steps 3 is given without the others; fix: give all three",
        WHERE,
        "",
    ),
    "a message, then uvicorn": (
        f"{HEAD}{FRAMES}OSError: one\ntwo\nINFO:     Application shutdown complete.\n",
        "OSError: one\ntwo",
        WHERE,
        "",
    ),
    "the last of several without a crash": (
        f"{HEAD}{FRAMES}ValueError: harmless\n{STAMP} going on\n{HEAD}{FRAMES}MemoryError\n",
        "MemoryError",
        WHERE,
        "a smaller --max-total-tokens, or --eagle31-pack-weights off",
    ),
    "an unknown flag": (
        "usage: launch_server.py [-h]\nlaunch_server.py: error: unrecognized arguments: --no-such-flag\n",
        "unrecognized arguments: --no-such-flag",
        (),
        "correct the flag; python -m sglang.launch_server --help lists them",
    ),
    "a killed process": (
        f"{STAMP} Subprocess scheduler_0 (pid=31) crashed with exit code -9. Triggering SIGQUIT for cleanup...\n",
        "scheduler_0 crashed with exit code -9",
        (),
        "free memory, if the kernel ended it: a smaller --max-total-tokens; its log is dmesg",
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_what_ended_it(what: str) -> None:
    log, message, where, fix = CASES[what]
    assert failure(log) == Failure(message, where, fix)


def test_nothing_is_made_up() -> None:
    assert failure("") is None
    assert failure(f"{STAMP} Load weight begin.\n{STAMP} Application startup complete.\n") is None
    assert failure(f"{HEAD}{FRAMES}") is None, "the exception itself is not there yet"


def test_the_message_begins_with_the_exception() -> None:
    assert str(Failure("ValueError: a", ("x.py:1 in f",), "b")) == "ValueError: a\n  at x.py:1 in f\nfix: b"
    assert str(Failure("ValueError: a")) == "ValueError: a"


@pytest.mark.parametrize("line", ["hit an exception: x", "crashed with exit code 1", "SIGQUIT received. signum=3"])
def test_signs_of_a_crash(line: str) -> None:
    assert crashed(f"{STAMP} Scheduler {line}") and not crashed(f"{STAMP} Decode batch, #running-req: 1")
