"""End a server as soon as its log says that one of its processes has failed.

SGLang's HTTP server may live on for a minute after that, with requests that nobody answers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from sglang_eagle31.tools.shared.server_log import crashed

POLL_SECONDS = 0.25
"""Between two looks at the log."""
SETTLE_SECONDS = 1.0
"""From the first sign of a crash to the end of the server, in which the exception is logged to its last line."""
KEPT = 4096
"""Characters that are looked at again with those that follow, for a sign may be written in two pieces."""


class CrashWatch(threading.Thread):
    """Reads a log as it grows."""

    def __init__(self, log: Path, kill: Callable[[], object]) -> None:
        super().__init__(name=f"crash-watch-{log.stem}", daemon=True)
        self.log, self.kill = log, kill
        self.over, self.seen = threading.Event(), threading.Event()

    def run(self) -> None:
        """Until a crash is seen, or `stop`."""
        with self.log.open(errors="replace") as log:
            last = ""
            while not self.over.wait(POLL_SECONDS):
                last = last[-KEPT:] + log.read()
                if crashed(last):
                    self.over.wait(SETTLE_SECONDS)
                    self.seen.set()
                    self.kill()
                    return

    def stop(self) -> None:
        """Look no more: the server is ended on purpose."""
        self.over.set()
        self.join()
