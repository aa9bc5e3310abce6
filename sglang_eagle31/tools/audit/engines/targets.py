"""Which boundaries SGLang captures in a target, by the rule of its class."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_eagle31.head.sglang_targets import SGLANG_TARGETS
from sglang_eagle31.tools.audit.engines.outcome import Stops


def sglang_capture(architecture: str, ids: Sequence[int] | None, depth: int) -> tuple[int, ...] | Stops:
    """Boundaries that SGLang captures in a target of ``depth`` blocks, ascending and without those it drops."""
    rule = SGLANG_TARGETS.get(architecture)
    if rule is None:
        return Stops("start", f"{architecture} has no set_eagle3_layers_to_capture (attention_backend_setup.py)")
    if ids is None:
        marks = [b + rule.default_shift for b in (2, depth // 2, depth - 3)]
    elif rule.ids == "first_is_1" and ids and ids[0] != 1 or rule.ids == "max_is_depth" and ids and max(ids) == depth:
        marks = list(ids)
    else:
        marks = [i + 1 for i in ids]
    if rule.indexes:
        if any(not -depth <= b < depth for b in marks):
            return Stops("start", f"{rule.file} indexes layers[{max(marks)}] in a target of {depth} blocks")
        marks = [b % depth for b in marks]
    end = depth if rule.last else depth - 1
    return tuple(sorted({b for b in marks if 0 <= b <= end}))
