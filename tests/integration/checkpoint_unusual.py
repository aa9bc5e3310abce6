"""Heads that are whole and compute something that SGLang does not read, and heads whose files do not show it."""

from __future__ import annotations

import torch
from checkpoint_case import AWAY, ELSEWHERE, IDS, LLAMA, SAY_AWAY, Case, eagle_config, head, outputs
from markers import SHAPE
from torch import Tensor


def _both_norms(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"input_norm.weight": torch.linspace(0.5, 1.5, 3 * SHAPE.target_hidden)}


SWITCHES: tuple[Case, ...] = (
    Case(
        "residual_after_norm",
        "broken",
        "`norm_before_residual: true`",
        head("vllm", config={**LLAMA, "norm_before_residual": True}, trained={"residual": "post"}),
        {"producer": "vllm"},
        reports=("vllm-project/speculators#1065",),
    ),
    Case(
        "qk_norms",
        "broken",
        "q/k norms under a Llama class name",
        head("vllm", config=LLAMA, qk_norm=True),
        {"producer": "vllm"},
    ),
    Case(
        "attention_biases",
        "broken",
        "biases of q, k, v and o",
        head("nemo_bias", config={**LLAMA, "num_hidden_layers": 1}),
    ),
    Case(
        "mlp_biases",
        "broken",
        "biases of the MLP",
        head("nemo_mlp_bias", config={**LLAMA, "num_hidden_layers": 1}),
    ),
    Case(
        "fc_bias",
        "broken",
        "a bias of `fc` and no key that says so",
        head("nvidia_fc_bias", config={"bias": ...}),
        {"double_norm": "false"},
    ),
    Case(
        "window",
        "broken",
        "a sliding window in the config",
        head(
            "vllm",
            config={**LLAMA, "layer_types": ["sliding_attention"], "sliding_window": SHAPE.window},
            trained={"sliding_window": SHAPE.window},
        ),
        {"producer": "vllm"},
    ),
    Case(
        "both_norms",
        "broken",
        "`fc_norm` and `norm_before_fc` at once, trained with the first",
        head(
            "nvidia",
            config={"fc_norm": True, **eagle_config(norm_before_fc=True, **{IDS: outputs(SHAPE)})},
            change=_both_norms,
            pre_fc_norm="fc_norm",
        ),
        {"pre_fc_norm": "fc_norm", "feedback": "pre"},
        ("vllm-project/speculators#610",),
    ),
    Case(
        "tied_own_head",
        "broken",
        "`tie_word_embeddings: true` beside an own `lm_head`",
        head("specforge", config={"tie_word_embeddings": True}),
        reports=("Tencent/AngelSlim#16",),
    ),
    Case(
        "tied_full_head",
        "broken",
        "the same with a full vocabulary",
        head("specforge", config={"tie_word_embeddings": True}, reduced=False),
        reports=("Tencent/AngelSlim#16",),
    ),
    Case(
        "null_draft_vocabulary",
        "broken",
        "`draft_vocab_size: null` beside an own `lm_head`",
        head("specforge", config={"draft_vocab_size": None}, reduced=False, seed=1),  # the target's rows fit seed 0
    ),
    Case(
        "no_draft_vocabulary",
        "broken",
        "no `draft_vocab_size` key",
        head("specforge", config={"draft_vocab_size": ...}, reduced=False),
        reports=("SafeAILab/EAGLE#214",),
    ),
    Case(
        "own_embedding",
        "broken",
        "an embedding of its own, not the target's",
        head("torchspec", own_embedding=True),
        reports=("vllm-project/vllm#28549",),
    ),
    Case(
        "null_target_width",
        "broken",
        "`target_hidden_size: null`",
        head("specforge", config={"target_hidden_size": None}),
        reports=("vllm-project/speculators#1065",),
    ),
    Case(
        "gelu",
        "broken",
        "GELU in the draft's MLP",
        head("nemo_gelu", config={**LLAMA, "model_type": "llama", "num_hidden_layers": 1}),
    ),
    Case(
        "as_eagle",
        "broken",
        "a good EAGLE 3.1 head with `--speculative-algorithm EAGLE`",
        head("torchspec31"),
        reports=("sgl-project/sglang#21272",),
        algorithm="EAGLE",
    ),
)
"""What the head computes, or owns."""

UNTOLD: tuple[Case, ...] = (
    Case(
        "rope_base",
        "untold",
        "trained with RoPE base 10000, whatever `rope_theta` in its config says",
        head("angelslim", config={"rope_theta": 1e6}, trained={"rope_theta": 10000.0}),
        {"rope_theta": "10000"},
        ("wejoncy/sfllm#32",),
    ),
    Case(
        "specforge_layers",
        "untold",
        "SpecForge, trained on other layers by an option that its export does not write",
        head("specforge", AWAY, config=eagle_config()),
        SAY_AWAY,
    ),
    Case(
        "inputs_for_outputs",
        "untold",
        "layer ids that count inputs, in a format whose ids count outputs",
        head("specforge", AWAY, config=eagle_config(**{IDS: list(ELSEWHERE)})),
        SAY_AWAY,
        ("sgl-project/sglang#25454",),
    ),
    Case(
        "lost_feedback",
        "untold",
        "EAGLE 3.1 whose `norm_output` key was lost on the way",
        head("torchspec31", config={"norm_output": ...}),
        {"feedback": "post"},
    ),
    Case(
        "twice_normed",
        "untold",
        "ModelOpt since December 2025: the state is normed twice in training",
        head("modelopt_hf", trained={"double_norm": True}),
        {"double_norm": "true"},
    ),
)
"""No file shows how these were trained."""
