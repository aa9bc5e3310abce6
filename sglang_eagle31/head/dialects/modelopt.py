"""NVIDIA ModelOpt: HF exports (``layers.N.*``) and Megatron exports (``midlayer.*``), layer outputs, no embedding.

Since its commit bdd10c2db (December 2025) the HF trainer norms the first layer's state twice,
``LN_hidden(LN_input(g))``; the files look as before.
"""

from __future__ import annotations

from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.dialects.layer_ids import IDS
from sglang_eagle31.head.dialects.layout import Rules, norm_output_is_feedback
from sglang_eagle31.head.dialects.sizes import put_mla_scale
from sglang_eagle31.head.keys import EAGLE, Keys
from sglang_eagle31.head.reading import Reading, Target

NAME = "ModelOpt"
WRITTEN = (
    "use_input_layernorm_in_first_layer",
    "use_last_layernorm",
    "use_mtp_layernorm",
    "next_layer_regular",
    "parallel_draft_step",
    "parallel_draft_heads_num_layers",
)
RENAMES = ((r"^midlayer\.(\d+)\.", r"layers.\1."), (r"^midlayer\.", "layers.0."))


def recognise(head: Checkpoint) -> str | None:
    """By the keys of its ``eagle_config``, or the name of its deeper heads."""
    eagle = head.config.get("eagle_config")
    key = next((key for key in WRITTEN if isinstance(eagle, dict) and key in eagle), None)
    if key:
        return f"config key {EAGLE}{key}"
    deep = "LlamaForCausalLMEagle3Deep" in head.architectures
    return "architectures LlamaForCausalLMEagle3Deep" if deep else None


def rules(head: Checkpoint) -> Rules:
    """Layer outputs under ``eagle_config``; files without them do not mean the default layers."""
    megatron = any(name.startswith("midlayer.") for name in head.tensors)
    # Its template for MLA has no draft_vocab_size, and the head is written all the same.
    latent = any(name.endswith("kv_a_proj_with_mqa.weight") for name in head.tensors)
    later = ("hidden_norm", "both") if megatron else ("input_layernorm",)
    return Rules(
        NAME,
        RENAMES,
        default_ids=False,
        bias_flags=True,
        pre_fc=("none",),
        shares_head="never" if latent else "null",
        later=later,
    )


def settle(head: Checkpoint, target: Target, reading: Reading, keys: Keys) -> None:
    """Norms that it left out, and the one that it may have applied twice."""
    settle_norms(target, reading, keys)
    flag = norm_output_is_feedback(reading, keys)
    if flag is not None and flag.value:
        reading.ask(
            "feedback",
            f"config.json has {flag.where}=true, which ModelOpt does not train with and heads that NVIDIA published do",
            "feedback=post if the normed state was fed back, feedback=pre if not",
        )
    put_mla_scale(reading, with_mscale=True)
    exported = any(name.startswith("layers.0.") for name in head.tensors)
    if exported and "input_layernorm" in reading.values["first_norms"] and reading.values["use_aux_hidden_state"]:
        reading.ask(
            "double_norm",
            "ModelOpt's HF trainer norms the first layer's state twice since its commit bdd10c2db (2025-12-18), and "
            "the files do not show it",
            "double_norm=false for a head trained before it, double_norm=true for one trained since",
        )


def settle_norms(target: Target, reading: Reading, keys: Keys) -> None:
    """Norms of the first layer and of the end, ids that can only be inputs, and drafts in parallel."""
    names = set(reading.names.values())
    first, last = (keys.flag(name, EAGLE) for name in WRITTEN[:2])
    for name in WRITTEN[2:]:
        keys.find(name, EAGLE)
    hidden = "layers.0.hidden_norm.weight" in names
    if (first and not first.value) or (not reading.values["use_aux_hidden_state"] and not hidden):
        source = f"{first.source}=false" if first and not first.value else "no hidden_norm in a head without fc"
        reading.put("first_norms", ("input_layernorm",), source)
    if last and not last.value:
        reading.put("final_norm", False, f"{last.source}=false")
    _unsupported(reading, keys)
    ids = keys.ids(IDS, EAGLE) if reading.values["use_aux_hidden_state"] else None
    depth = target.num_layers
    if ids is not None and depth is not None and max(ids.value) == depth:
        reading.put("boundaries", tuple(ids.value), f"{ids.source}={ids.value}: {depth} can only be a layer input")


def _unsupported(reading: Reading, keys: Keys) -> None:
    for name, plain, what in (
        ("use_mtp_layernorm", (None, False), "norms of its own on embedding and state (enorm, hnorm)"),
        ("parallel_draft_step", (None, 1), "several tokens drafted in one pass"),
    ):
        found = keys.find(name, EAGLE)
        if found is not None and found.value not in plain:
            reading.refusals.append(
                f"config.json has {found.where}={found.value!r}: {what}; this package does not run it; "
                "fix: serve this head with TensorRT-LLM"
            )
    regular = keys.flag("next_layer_regular", EAGLE)
    wide = reading.values["later_norm"] == "both"
    says = regular is None or regular.value
    if says == wide if reading.values["num_layers"] > 1 else not says:
        reading.refusals.append(
            f"config.json has {EAGLE}next_layer_regular={str(says).lower()}, the tensors of layers.1 say "
            f"{'otherwise' if wide else 'that it reads the state only'}; fix: correct the key"
        )
