"""Draft heads that are no EAGLE-3 chain: recognised, and refused by name with what serves them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sglang_eagle31.head.checkpoint import Checkpoint


@dataclass(frozen=True)
class Stranger:
    """A head of another kind: its name, how it was recognised, and what serves it."""

    name: str
    evidence: str
    serves: str

    @property
    def refusal(self) -> str:
        """One reason, with the fix."""
        kind = f"the head is of another kind, {self.name} ({self.evidence})"
        return f"{kind}, which EAGLE31 does not run; fix: {self.serves}"


def name(head: Checkpoint) -> Stranger | None:
    """Who the stranger is, or None for a head that may be EAGLE-3."""
    for find in (_adapter, _p_eagle, _parallel_heads, _medusa, _mtp, _eagle1):
        found = find(head)
        if found is not None:
            return found
    return None


def _adapter(head: Checkpoint) -> Stranger | None:
    lora = next((name for name in head.tensors if ".lora_A." in name or ".lora_B." in name), None)
    if lora is None:
        return None
    return Stranger("LoRA draft", f"tensor {lora}", "merge the adapter into its head and serve the result")


def _p_eagle(head: Checkpoint) -> Stranger | None:
    serves = "serve it with vLLM (0.16 or newer), which drafts all tokens in one pass"
    evidence = next((f"architectures {item}" for item in head.architectures if item.lower().startswith("peagle")), None)
    if head.config.get("speculators_model_type") == "peagle":
        evidence = "config key speculators_model_type=peagle"
    keys = ("mask_token_id", "ptd_token_id", "pard_token")
    key = next((key for key in keys if head.config.get(key) is not None), None)
    if head.config.get("parallel_drafting") is True:
        key = "parallel_drafting"
    if key:
        evidence = f"config key {key}={head.config[key]!r}"
    tensor = next((item for item in head.tensors if item.rpartition(".")[2] == "mask_hidden"), None)
    if tensor:
        evidence = f"tensor {tensor}"
    return Stranger("P-EAGLE", evidence, serves) if evidence else None


def _parallel_heads(head: Checkpoint) -> Stranger | None:
    """ModelOpt's extra heads, which draft further tokens in one pass beside a chain that is whole without them."""
    tensor = next((item for item in head.tensors if "parallel_draft_heads." in item), None)
    if tensor is None:
        return None
    serves = "serve it with TensorRT-LLM, or export it without parallel_draft_heads.*: its chain is whole without them"
    return Stranger("ModelOpt with parallel draft heads", f"tensor {tensor}", serves)


def _medusa(head: Checkpoint) -> Stranger | None:
    tensor = next((item for item in head.tensors if re.search(r"medusa_head|medusa_layers", item)), None)
    if tensor is None and "medusa_num_heads" not in head.config:
        return None
    evidence = f"tensor {tensor}" if tensor else "config key medusa_num_heads"
    return Stranger("Medusa", evidence, "serve it with vLLM or TensorRT-LLM (method medusa)")


def _mtp(head: Checkpoint) -> Stranger | None:
    parts = {item.split(".")[-2] for item in head.tensors if item.count(".")}
    if not {"eh_proj", "enorm", "hnorm"} <= parts:
        return None
    return Stranger("MTP (NextN)", "tensors eh_proj, enorm, hnorm", "--speculative-algorithm NEXTN or EAGLE")


def _eagle1(head: Checkpoint) -> Stranger | None:
    """``fc`` of ``[embedding; state]`` (width 2H), no norm of the state, and none of EAGLE-3's keys."""
    fc = next((item for item in head.tensors if re.fullmatch(r"(model\.)?fc\.weight", item)), None)
    normed = any(item.endswith("hidden_norm.weight") for item in head.tensors)
    if fc is None or normed or "eagle_config" in head.config or len(head.tensors[fc].shape) != 2:
        return None
    rows, columns = head.tensors[fc].shape
    if columns != 2 * rows:
        return None
    bald = "LlamaForCausalLMEagle" in head.architectures and "fc.bias" in head.tensors
    kind = "BaldEagle (EAGLE-1/2)" if bald else "EAGLE-1/2"
    return Stranger(kind, f"{fc} [{rows}, {columns}] and no hidden_norm", "--speculative-algorithm EAGLE")
