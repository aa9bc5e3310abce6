"""Heads that lost something, are damaged, or name layers in another way than SGLang reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import markers
import torch
from checkpoint_case import AWAY, FOUR, IDS, LLAMA, ONE, SAY_AWAY, Case, eagle_config, head, outputs, without
from markers import SHAPE
from torch import Tensor
from truth import producers


def _prefixed(prefix: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        weights = markers.weights_of("specforge")
        config, tensors, metadata = producers.VARIANTS["specforge"].files(weights, SHAPE)
        return producers.save(folder, config, {f"{prefix}{name}": t for name, t in tensors.items()}, metadata)

    return write


def _quantised_fc(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    scale = weights["fc.weight"].abs().max() / 448
    return {"fc.weight": (weights["fc.weight"] / scale).to(torch.float8_e4m3fn), "fc.weight_scale": scale.view(1)}


def _parallel_heads(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    eye = torch.eye(SHAPE.hidden)
    return {"parallel_draft_heads.0.medusa_layers.0.linear.weight": eye}


def _mtp_norms(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """A norm of the embedding that changes nothing, and one of the state that makes the reference's double norm."""
    state = weights["layers.0.input_layernorm.weight"]
    return {"midlayer.enorm.weight": torch.ones(SHAPE.hidden), "midlayer.hnorm.weight": state}


def _absolute(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"d2t": weights["d2t"] + torch.arange(len(weights["d2t"]))}


LOST: tuple[Case, ...] = (
    Case(
        "no_lm_head",
        "broken",
        "`draft_vocab_size` is set and `lm_head.weight` is not in the file",
        head("specforge", reduced=False, change=without("lm_head.weight")),
        reports=("sgl-project/sglang#27829",),
    ),
    Case(
        "no_d2t",
        "broken",
        "a reduced vocabulary without `d2t`",
        head("torchspec", change=without("d2t", "t2d")),
        reports=("vllm-project/vllm#18909", "verl-project/verl-SpeCo#66"),
    ),
    Case(
        "zero_d2t",
        "broken",
        "a reduced vocabulary whose `d2t` is all zeros",
        head("specforge", change=lambda weights: {"d2t": torch.zeros_like(weights["d2t"])}),
    ),
    Case("absolute_d2t", "broken", "`d2t` holds target ids instead of offsets", head("specforge", change=_absolute)),
    Case(
        "shifted_d2t",
        "broken",
        "`d2t` names other tokens than `t2d`",
        head("specforge", change=lambda weights: {"d2t": weights["d2t"] + 1}),
    ),
    Case(
        "no_fc",
        "broken",
        "`fc.weight` is not in the file",
        head("specforge", change=without("fc.weight")),
    ),
    Case(
        "no_fc_norm",
        "broken",
        "`fc_norm: true`, and no `fc_norm.*` tensors",
        head("torchspec31", change=without(*(f"fc_norm.{k}.weight" for k in range(3)))),
        reports=("vllm-project/vllm#46488",),
    ),
    Case(
        "no_fc_norm_flag",
        "broken",
        "`fc_norm.*` tensors, and no `fc_norm` key",
        head("torchspec31", config={"fc_norm": ...}),
        reports=("vllm-project/vllm#46488",),
    ),
    Case(
        "nested_flags",
        "broken",
        "`fc_norm` and `norm_output` inside `eagle_config`",
        head(
            "torchspec31",
            config={
                "fc_norm": ...,
                "norm_output": ...,
                **eagle_config(fc_norm=True, norm_output=True, **{IDS: outputs(SHAPE)}),
            },
        ),
        reports=("vllm-project/vllm#46488",),
    ),
    Case(
        "quantised_fc",
        "broken",
        "`fc.weight` in FP8 with a scale",
        head("specforge", change=_quantised_fc),
    ),
    Case("wrapped", "broken", "every tensor under `draft_model.`", _prefixed("draft_model.")),
    Case(
        "other_target",
        "broken",
        "a head of a target of another width",
        head("specforge", change=lambda weights: {"fc.weight": weights["fc.weight"][:, : 3 * SHAPE.hidden // 2]}),
    ),
    Case(
        "other_vocabulary",
        "broken",
        "`vocab_size` is not the target's",
        head("specforge", config={"vocab_size": 640}),
    ),
    Case(
        "short_context",
        "broken",
        "made for 64 positions, served on a target with 8192",
        head("specforge", config={"max_position_embeddings": 64}),
        {"max_position_embeddings": "8192"},
        ("sgl-project/sglang#3574",),
        long_context=True,
    ),
    Case(
        "parallel_heads",
        "broken",
        "parallel draft heads beside an EAGLE-3 head (`parallel_draft_step: 2`)",
        head(
            "modelopt_megatron_full_vocab",
            config=eagle_config(parallel_draft_step=2, parallel_draft_heads_num_layers=1, **{IDS: outputs(SHAPE)}),
            change=_parallel_heads,
        ),
    ),
    Case(
        "mtp_norms",
        "broken",
        "`use_mtp_layernorm: true`",
        head(
            "modelopt_megatron_full_vocab",
            config=eagle_config(use_mtp_layernorm=True, **{IDS: outputs(SHAPE)}),
            change=_mtp_norms,
            trained={"double_norm": True},
        ),
    ),
)
"""Something that the head needs is lost, damaged or for another target."""

LAYERS: tuple[Case, ...] = (
    Case(
        "top_level_ids",
        "broken",
        "layer ids at the top level of `config.json`, not under `eagle_config`",
        head("specforge", AWAY, config={IDS: outputs(AWAY), **eagle_config()}),
        SAY_AWAY,
        ("sgl-project/sglang#21274", "lightseekorg/tokenspeed#526"),
    ),
    Case(
        "input_ids",
        "broken",
        "layer ids that count inputs, where SGLang takes outputs",
        head("nvidia_v3", AWAY),
        SAY_AWAY,
        ("sgl-project/sglang#25454", "vllm-project/vllm#43671"),
    ),
    Case(
        "no_ids",
        "broken",
        "no layer ids, trained on other layers than the default ones",
        head("nvidia", AWAY, config=eagle_config(use_last_layernorm=True)),
        SAY_AWAY,
        ("vllm-project/vllm#50170",),
    ),
    Case(
        "descending_ids",
        "broken",
        "layer ids that do not ascend",
        head("specforge", AWAY, config=eagle_config(**{IDS: [5, 2, 0]})),
    ),
    Case(
        "repeated_ids",
        "broken",
        "layer ids that repeat themselves",
        head("specforge", AWAY, config=eagle_config(**{IDS: [0, 2, 2]})),
    ),
    Case(
        "last_layer_id",
        "broken",
        "the last block's output among the layers, which a Llama target cannot hand out",
        head("specforge", config=eagle_config(**{IDS: [1, 3, 7]})),
    ),
    Case("four_layers", "broken", "four captured layers under `eagle_config`", head("specforge", FOUR)),
    Case(
        "four_layers_on_top",
        "broken",
        "four captured layers at the top level",
        head("specforge", FOUR, config={IDS: outputs(FOUR), **eagle_config()}),
        {"aux_layers": "1,3,5,6"},
        ("vllm-project/speculators#1065",),
    ),
    Case(
        "four_layers_counted",
        "broken",
        "four captured layers at the top level, and `num_aux_hidden_states: 4`",
        head("specforge", FOUR, config={IDS: outputs(FOUR), **eagle_config(), "num_aux_hidden_states": 4}),
        {"aux_layers": "1,3,5,6"},
        ("vllm-project/speculators#1065",),
    ),
    Case("one_layer", "broken", "one captured layer: the states are as wide as the draft", head("specforge", ONE)),
    Case(
        "more_layers_declared",
        "broken",
        "`num_hidden_layers: 40`, one layer in the file",
        head("specforge", config={"num_hidden_layers": 40}),
        reports=("sgl-project/sglang#33966",),
    ),
    Case(
        "deep_renamed",
        "broken",
        "ModelOpt's two layers (`midlayer.0.*`) after its class name was replaced by hand",
        head("modelopt_megatron_deep", config=LLAMA),
    ),
    Case(
        "nemo_renamed",
        "broken",
        "NeMo AutoModel after its class name was replaced by hand",
        head("nemo", config=LLAMA),
    ),
)
"""Captured layers, and the draft's own."""
