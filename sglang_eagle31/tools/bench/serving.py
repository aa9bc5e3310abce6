"""Load by SGLang's own benchmark, ``sglang.benchmark.serving``, in one process for all cells.

Importing it takes longer than a short cell lasts. The chats are streamed through the OpenAI route, greedily, with the
number of tokens as the server counts them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from sglang_eagle31.tools.bench.load import Load, of_bench_serving


class Client:
    """The process; its output is in ``log``."""

    def __init__(self, process: subprocess.Popen[str], log: Path, model: Path | str) -> None:
        self.process, self.log, self.model = process, log, model
        self.ready = False

    def measure(self, url: str, rows: Sequence[Mapping[str, Any]], concurrency: int) -> Load:
        """Send the rows, ``concurrency`` at a time, after the prefix cache was emptied.

        Raises RuntimeError when a request fails, or SGLang's benchmark does.
        """
        dataset, record = self.log.with_suffix(".requests.jsonl"), self.log.with_suffix(".record.jsonl")
        dataset.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        record.unlink(missing_ok=True)
        arguments = ["--backend", "sglang-oai-chat", "--base-url", url, "--model", str(self.model)]
        arguments += ["--dataset-name", "openai", "--dataset-path", str(dataset), "--num-prompts", str(len(rows))]
        arguments += ["--max-concurrency", str(concurrency), "--output-file", str(record), "--output-details"]
        arguments += ["--flush-cache", "--disable-ignore-eos", "--warmup-requests", "0", "--disable-tqdm"]
        self._ask(arguments)
        try:
            return of_bench_serving(json.loads(record.read_text(encoding="utf-8")))
        except ValueError as error:
            raise RuntimeError(f"{url}: {error}; log of the client: {self.log}") from error

    def _ask(self, arguments: Sequence[str]) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            if not self.ready:
                self._answer(self.process.stdout)
                self.ready = True
            self.process.stdin.write(json.dumps(list(arguments)) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, and so has its stdout
        error = self._answer(self.process.stdout)
        if error:
            raise RuntimeError(f"sglang.benchmark.serving: {error}; log: {self.log}")

    def _answer(self, stream: IO[str]) -> str | None:
        line = stream.readline()
        if not line:
            tail = self.log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise RuntimeError(f"sglang.benchmark.serving has ended; log: {self.log}\n{tail}")
        error: str | None = json.loads(line)
        return error


@contextmanager
def client(model: Path | str, folder: Path) -> Iterator[Client]:
    """Start the process; it imports SGLang while the servers come up, and ends with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "bench-client.log"
    command = [sys.executable, "-m", "sglang_eagle31.tools.bench.child"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True, start_new_session=True
        )
        try:
            yield Client(process, log, model)
        finally:
            process.kill()
            process.communicate()
