"""Draft decoding over tree branches on a CPU.

Target: sglang.srt.speculative.draft_utils.DraftBackendFactory.create_decode_backend
Why: the factory knows no draft decode backend for `torch_native` and raises.
How: around the factory: `torch_native` gets our multi-step backend, any other name goes to SGLang.
Upstream: https://github.com/sgl-project/sglang/issues/11043 (CPU without AMX).
Remove when: SGLang's factory has an entry for torch_native.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_eagle31.patches._seam import Seam


def create(create_decode_backend: Callable[..., Any], self: Any) -> Any:
    """AROUND hook: the draft decode backend."""
    from sglang_eagle31.server.cpu.attention import draft_decode_backend

    return draft_decode_backend(self) or create_decode_backend(self)


SEAM = Seam(
    "sglang.srt.speculative.draft_utils.DraftBackendFactory.create_decode_backend", ("self",), "AROUND", "cpu", create
)
