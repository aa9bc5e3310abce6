"""What a server's log says of its end: the exception, where it was raised, and the fix where one is known."""

from __future__ import annotations

import re
from dataclasses import dataclass

TRACEBACK = "Traceback (most recent call last):"
CRASH = re.compile(r"\bhit an exception: |\bcrashed with exit code|SIGQUIT received|Received sigquit from a child")
"""What SGLang logs when one of its processes has failed; its HTTP server may live on for a minute."""
KILLED = re.compile(r"Subprocess (\S+) \(pid=\d+\) crashed with exit code (-?\d+)")
USAGE = re.compile(r"^\S+: error: (.*)$", re.MULTILINE)
FRAME = re.compile(r'^\s+File "(?:.*/)?([^/"]+)", line (\d+), in (\S+)')
EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Z]\w*)(?:: ?(.*))?$")
OTHER = re.compile(r"^(?:INFO|WARNING|ERROR): |^.*\d%\|")
"""Lines that are no part of a message: uvicorn's, and progress bars."""
LOGGED = re.compile(r"^\[\d{4}-\d\d-\d\d ")
LINKS = ("The above exception was the direct cause", "During handling of the above exception")
MESSAGE_LINES = 12
FIXES = (
    (r"unrecognized arguments", "correct the flag; python -m sglang.launch_server --help lists them"),
    (r"address already in use", "end what listens there, or --port with another number"),
    (r"No space left on device", "free space on that disk"),
    (r"needs the cpu support", "--eagle31-pack-weights off"),
    (r"CUDA out of memory", "a lower --mem-fraction-static, or a smaller --max-running-requests"),
    (r"can't allocate memory|MemoryError", "a smaller --max-total-tokens, or --eagle31-pack-weights off"),
    (
        r"crashed with exit code -9",
        "free memory, if the kernel ended it: a smaller --max-total-tokens; its log is dmesg",
    ),
)
"""A pattern in what ended the server, and what helps. EAGLE31's own refusals bring theirs."""


@dataclass(frozen=True)
class Failure:
    """What ended a server.

    Attributes:
        what: the exception with its message, or SGLang's own words.
        where: innermost frames, ``file:line in function``, innermost first.
        fix: empty where none is known.
    """

    what: str
    where: tuple[str, ...] = ()
    fix: str = ""

    def __str__(self) -> str:
        lines = [self.what, *(f"  at {place}" for place in self.where)]
        return "\n".join([*lines, f"fix: {self.fix}"] if self.fix else lines)


def crashed(text: str) -> bool:
    """Whether SGLang says that one of its processes has failed."""
    return CRASH.search(text) is not None


def failure(log: str) -> Failure | None:
    """What ended the server that wrote ``log``; None where the log has neither exception nor error.

    The first process that failed counts; of chained exceptions the last, which names the others' consequence.
    """
    found = _exception(log)
    if found is None and (killed := KILLED.search(log)):
        found = Failure(f"{killed[1]} crashed with exit code {killed[2]}")
    if found is None and (usage := USAGE.findall(log)):
        found = Failure(usage[-1])
    if found is None or "fix:" in found.what:
        return found
    fix = next((fix for pattern, fix in FIXES if re.search(pattern, found.what)), "")
    return Failure(found.what, found.where, fix)


def _exception(log: str) -> Failure | None:
    """The exception of the first process that failed, else the last one of the log."""
    start = next((m.end() for m in re.finditer(r"hit an exception: ", log) if log.startswith(TRACEBACK, m.end())), -1)
    blocks = _blocks(log[start:]) if start >= 0 else _blocks(log)
    if not blocks:
        return None
    chain = blocks[0] if start >= 0 else blocks[-1]
    return _parse(chain[-1])


def _blocks(text: str) -> list[list[list[str]]]:
    """Tracebacks as lists of lines, those that are chained together; what other processes log between is left out."""
    chains: list[list[list[str]]] = []
    linked = False
    for line in text.splitlines():
        if TRACEBACK in line:
            chains[-1].append([]) if linked and chains else chains.append([[]])
            linked = False
        elif LOGGED.match(line):
            continue
        elif line.startswith(LINKS):
            linked = True
        elif chains:
            chains[-1][-1].append(line)
    return chains


def _parse(lines: list[str]) -> Failure | None:
    frames = [f"{m[1]}:{m[2]} in {m[3]}" for line in lines if (m := FRAME.match(line))]
    for number, line in enumerate(lines):
        if EXCEPTION.match(line):
            rest = lines[number + 1 : number + MESSAGE_LINES]
            end = next((i for i, more in enumerate(rest) if not more.strip() or OTHER.match(more)), len(rest))
            return Failure("\n".join([line.strip(), *rest[:end]]), tuple(frames[:-3:-1]))
    return None
