"""Keys of config.json that change what a head computes and that SGLang's draft classes read nowhere, or elsewhere."""

from __future__ import annotations

from sglang_eagle31.tools.audit.engines.hf_config import HfConfig
from sglang_eagle31.tools.audit.engines.outcome import Loss
from sglang_eagle31.tools.audit.engines.sglang_fields import FILES, IDS, LLAMA

_NOWHERE: tuple[tuple[str, bool, str | None], ...] = (
    ("norm_before_residual", True, "residual"),
    ("return_hidden_post_norm", True, "feedback"),
    ("use_input_layernorm_in_first_layer", False, "first_norms"),
    ("use_last_layernorm", False, "final_norm"),
    ("use_mtp_layernorm", True, None),
    ("parallel_drafting", True, None),
)


def key_losses(config: HfConfig, arch: str) -> list[Loss]:
    """One loss for each such key whose value asks for something that is not done."""
    nested, file = config.nested("eagle_config"), FILES[arch]
    losses = []
    for key, asks, field in _NOWHERE:
        value = nested.get(key, config.raw.get(key))
        if value is not None and bool(value) is asks:
            losses.append(Loss(f"{key}={str(value).lower()} is not read ({file})", field))
    for key, field in (("fc_norm", "pre_fc_norm"), ("use_aux_norm", "pre_fc_norm"), ("norm_output", "feedback")):
        if nested.get(key) and not config.raw.get(key):
            losses.append(Loss(f"{key} is read at the top level only, not in eagle_config ({file})", field))
    if arch != LLAMA and (nested.get("norm_before_fc") or config.raw.get("norm_before_fc")):
        losses.append(Loss(f"norm_before_fc is not read ({file})", "pre_fc_norm"))
    if config.raw.get(IDS) and nested.get(IDS) is None:
        text = f"{IDS} is read in eagle_config only; at the top level it is ignored for a default triple"
        losses.append(Loss(f"{text} (spec_aux_hidden_state.py)", "boundaries"))
    if slides(config):
        text = "layer_types and sliding_window are not read: full attention"
        losses.append(Loss(f"{text} ({file}; only --speculative-draft-window-size sets a window)", "sliding_window"))
    return losses


def slides(config: HfConfig) -> bool:
    """Whether config.json asks for a sliding window in any layer."""
    types = config.raw.get("layer_types")
    if types:
        return "sliding_attention" in types
    return bool(config.raw.get("sliding_window")) and config.raw.get("use_sliding_window", True) is not False
