"""`EAGLE31` becomes `EAGLE3` with a staged head, before SGLang resolves anything.

Target: sglang.srt.server_args.ServerArgs.resolve_once
Why: SGLang compares the algorithm's *name* with "EAGLE"/"EAGLE3" in about twenty places (adaptive speculation, LoRA,
    HiCache, disaggregation, draft window, ...); an algorithm with another name silently loses each of them. On a CPU,
    SGLang also compiles small functions at the first speculative request, which needs a C++ compiler and 15 s.
How: at the very start of resolution the request is checked, every reason to refuse is listed, the head is staged in a
    canonical folder, and the name is set to EAGLE3.
Upstream: SGLang's registry for algorithms (`SpeculativeAlgorithm.register`) cannot alias a built-in (0.5.23).
Remove when: those places ask `is_eagle3()` of the algorithm instead of comparing names.
"""

from __future__ import annotations

from typing import Any

from sglang_eagle31.patches._seam import Seam


def resolve(self: Any) -> None:
    """BEFORE hook: resolve EAGLE31 on a record that is not resolved yet."""
    from sglang_eagle31.server import resolve as algorithm

    algorithm.resolve(self)


SEAM = Seam("sglang.srt.server_args.ServerArgs.resolve_once", ("self",), "BEFORE", "server", resolve)
