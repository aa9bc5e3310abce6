"""What verification applies to the target's logits at every node of the draft tree.

Target: sglang.srt.speculative.eagle_utils.eagle_sample
Why: SGLang skips custom logit processors when it verifies, counts one token a round for penalties and applies the same
    penalty and `min_new_tokens` to every drafted position, ignores min-p, and applies top-k and top-p one after the
    other where its sampler applies them together. So output changes when speculation is switched on.
How: around the function: logits are adjusted at every node as SGLang's sampler adjusts them without speculation after
    the same tokens; SGLang is then given a sampling info in which its own form is neutral, for this call only. A batch
    in which no request asks for any of it goes straight through.
Upstream: https://github.com/sgl-project/sglang/issues/21724 and https://github.com/sgl-project/sglang/issues/26330
    (processors), https://github.com/sgl-project/sglang/pull/28242 (penalties),
    https://github.com/sgl-project/sglang/issues/10617 (min-p).
Remove when: these are closed, and `eagle_sample` adjusts each node by its own path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_eagle31.patches._seam import Seam


def sample(
    eagle_sample: Callable[..., Any],
    verify_input: Any,
    batch: Any,
    logits_output: Any,
    grammar_mask: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """AROUND hook: verification with the repairs."""
    from sglang_eagle31.server.lossless import repair

    return repair.verify(eagle_sample, verify_input, batch, logits_output, grammar_mask, *args, **kwargs)


SEAM = Seam(
    "sglang.srt.speculative.eagle_utils.eagle_sample",
    ("verify_input", "batch", "logits_output", "grammar_mask"),
    "AROUND",
    "eagle31",
    sample,
)
