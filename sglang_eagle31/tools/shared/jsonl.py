"""Conversations in a file, one a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """One object a line; raises ValueError naming the line that is not one with ``messages``."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file; fix: give a JSONL file of prompts or conversations")
    with path.open() as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            expected = '{"messages": [{"role": ..., "content": ...}, ...]}'
            try:
                entry = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}:{number}: not JSON ({error}); fix: {expected}") from error
            if not isinstance(entry, dict) or not entry.get("messages"):
                raise ValueError(f"{path}:{number}: no messages; fix: {expected}")
            yield entry
