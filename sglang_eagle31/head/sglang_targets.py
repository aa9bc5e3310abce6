"""Which states SGLang 0.5.23 captures in each target: the rule for stated layer ids, read in its ``models`` folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

IdRule = Literal["output", "first_is_1", "max_is_depth"]


@dataclass(frozen=True)
class Capture:
    """How one target class picks the states.

    Attributes:
        file: where its ``set_eagle3_layers_to_capture`` is.
        ids: ``output`` (always id + 1), ``first_is_1`` (id + 1 if the first id is 1, else as stated) or
            ``max_is_depth`` (as stated if the largest id is the depth, else id + 1).
        default_shift: added to the default triple 2, N//2, N-3.
        last: whether the state after the last block can be captured.
        indexes: it marks ``layers[id]``, so an id beyond the last block is an IndexError and a negative one wraps.
        whole: False where the captured value is the last sub-layer's output without the residual.
    """

    file: str
    ids: IdRule = "output"
    default_shift: int = 0
    last: bool = False
    indexes: bool = False
    whole: bool = True


_LLAMA = Capture("llama.py")
_DEEPSEEK = Capture("deepseek_v2.py", ids="first_is_1")
_QWEN3_VL = Capture("qwen3_vl.py")
_GEMMA3 = Capture("gemma3_causal.py", last=True, whole=False)
_GEMMA4 = Capture("gemma4_causal.py", last=True)
_QWEN2_MOE = Capture("qwen2_moe.py", indexes=True)
_BAILING = Capture("bailing_moe.py")

SGLANG_TARGETS: Mapping[str, Capture] = {
    **dict.fromkeys(
        (
            "LlamaForCausalLM",
            "Phi3ForCausalLM",
            "InternLM3ForCausalLM",
            "IQuestCoderForCausalLM",
            "MistralForCausalLM",
            "Ministral3ForCausalLM",
            "TeleFLMForCausalLM",
            "Llama4ForCausalLM",
        ),
        _LLAMA,
    ),
    "Llama4ForConditionalGeneration": replace(_LLAMA, file="mllama4.py"),
    **dict.fromkeys(
        (
            "DeepseekV2ForCausalLM",
            "DeepseekV3ForCausalLM",
            "DeepseekV32ForCausalLM",
            "GlmMoeDsaForCausalLM",
            "MistralLarge3ForCausalLM",
        ),
        _DEEPSEEK,
    ),
    "KimiK25ForConditionalGeneration": replace(_DEEPSEEK, file="kimi_k25.py, deepseek_v2.py"),
    "Glm4MoeLiteForCausalLM": Capture("glm4_moe_lite.py", ids="first_is_1"),
    "GptOssForCausalLM": Capture("gpt_oss.py", ids="max_is_depth", last=True),
    "MiniMaxM3SparseForCausalLM": Capture("minimax_m3.py", last=True),
    "MiniMaxM3SparseForConditionalGeneration": Capture("minimax_m3_vl.py", default_shift=1, last=True),
    "MiniMaxM2ForCausalLM": Capture("minimax_m2.py"),
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": replace(_GEMMA3, file="gemma3_mm.py, gemma3_causal.py"),
    "Gemma4ForCausalLM": _GEMMA4,
    "Gemma4ForConditionalGeneration": replace(_GEMMA4, file="gemma4_mm.py"),
    "Gemma4UnifiedForConditionalGeneration": replace(_GEMMA4, file="gemma4_mm.py"),
    "Qwen2ForCausalLM": Capture("qwen2.py"),
    "Qwen2_5_VLForConditionalGeneration": Capture("qwen2_5_vl.py"),
    "Qwen3ForCausalLM": Capture("qwen3.py"),
    "Qwen2MoeForCausalLM": _QWEN2_MOE,
    "Qwen3MoeForCausalLM": replace(_QWEN2_MOE, file="qwen3_moe.py"),
    "MellumForCausalLM": replace(_QWEN2_MOE, file="qwen3_moe.py"),
    "Qwen3NextForCausalLM": Capture("qwen3_next.py", indexes=True),
    "Qwen3_5ForCausalLM": Capture("qwen3_5_text.py", indexes=True),
    "Qwen3_5MoeForCausalLM": Capture("qwen3_5_text.py", indexes=True),
    "Qwen3VLForConditionalGeneration": _QWEN3_VL,
    "Cosmos3ForConditionalGeneration": _QWEN3_VL,
    **dict.fromkeys(
        (
            "Qwen3VLMoeForConditionalGeneration",
            "InternS1ProForConditionalGeneration",
            "Qwen3_5ForConditionalGeneration",
            "Qwen3_5MoeForConditionalGeneration",
            "InternS2MobiusForConditionalGeneration",
            "InternS2PreviewForConditionalGeneration",
            "Qwen4ExpForConditionalGeneration",
        ),
        replace(_QWEN3_VL, indexes=True),
    ),
    "Glm4MoeForCausalLM": Capture("glm4_moe.py"),
    "Glm5NextForConditionalGeneration": Capture("glm5_next.py"),
    "BailingMoEForCausalLM": _BAILING,
    "BailingMoeForCausalLM": _BAILING,
    "BailingMoeV2ForCausalLM": _BAILING,
    "SarvamMoEForCausalLM": _BAILING,
    "ExaoneMoEForCausalLM": Capture("exaone_moe.py"),
    "ExaoneMoeForCausalLM": Capture("exaone_moe.py"),
    "ApertusForCausalLM": Capture("apertus.py"),
    "LongcatFlashForCausalLM": Capture("longcat_flash.py"),
}
"""Target architecture to its rule; SGLang's EAGLE3 stops at start with any other."""

CAPTURES_LAST_BOUNDARY = frozenset(name for name, rule in SGLANG_TARGETS.items() if rule.last)
"""Targets in which the state after the last block can be captured."""
