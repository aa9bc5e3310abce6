"""Free memory is the machine's, or what is left of the control group's limit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from sglang_eagle31.server.cpu import memory

V2 = {"memory.max": "1000", "memory.current": "700", "memory.stat": "anon 500\ninactive_file 150\nactive_file 50\n"}
V1 = {
    "memory/memory.limit_in_bytes": "2000",
    "memory/memory.usage_in_bytes": "900",
    "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 100\n",
}
CASES = [
    ({}, (9000, 8000)),
    (V2, (1000, 450)),
    ({**V2, "memory.max": "max"}, (9000, 8000)),
    ({**V2, "memory.current": "1200"}, (1000, 0)),
    (V1, (2000, 1200)),
    ({**V1, "memory/memory.limit_in_bytes": "9223372036854771712"}, (9000, 8000)),
    ({"memory.max": "1000", "memory.current": "700"}, (1000, 300)),
]


@pytest.mark.parametrize(("files", "expected"), CASES)
def test_of_a_machine_with_9000_bytes(
    files: dict[str, str], expected: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(memory, "ROOT", tmp_path)
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: SimpleNamespace(total=9000, available=8000))
    assert (memory.total(), memory.available()) == expected
