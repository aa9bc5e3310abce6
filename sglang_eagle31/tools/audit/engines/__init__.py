"""What stock SGLang and vLLM would do with a head, predicted from its headers and from the engines' source."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.reading import Target
from sglang_eagle31.head.spec import DrafterSpec
from sglang_eagle31.tools.audit.engines.outcome import Effect, Loss, Outcome, Runs, Stops, compare
from sglang_eagle31.tools.audit.engines.sglang import effective_sglang
from sglang_eagle31.tools.audit.engines.sglang_fields import VERSION as SGLANG_VERSION
from sglang_eagle31.tools.audit.engines.targets import sglang_capture
from sglang_eagle31.tools.audit.engines.vllm import VERSION as VLLM_VERSION
from sglang_eagle31.tools.audit.engines.vllm import effective_vllm

__all__ = [
    "Effect",
    "Loss",
    "Outcome",
    "Runs",
    "Stops",
    "compare",
    "effective_sglang",
    "effective_vllm",
    "predict",
    "sglang_capture",
]


def predict(
    head: Checkpoint,
    target: Target,
    spec: DrafterSpec | None,
    *,
    d2t: Sequence[int] | None = None,
    embedding_is_copy: bool | None = None,
    evidence: str = "read",
) -> dict[str, Outcome]:
    """What ``sglang`` and ``vllm`` would do with ``head``, against ``spec`` (None where it is not settled).

    Reads no tensor data: ``d2t`` (the map's values) and ``embedding_is_copy`` (whether a shipped embedding is the
    target's) sharpen the result where the caller has them. ``evidence`` is noted in SGLang's outcome; vLLM's is always
    by reading.
    """
    sglang = effective_sglang(head, target, d2t=d2t, embedding_is_copy=embedding_is_copy)
    vllm = effective_vllm(head, target, d2t=d2t)
    return {
        "sglang": compare(sglang, spec, SGLANG_VERSION, evidence),
        "vllm": compare(vllm, spec, VLLM_VERSION),
    }
