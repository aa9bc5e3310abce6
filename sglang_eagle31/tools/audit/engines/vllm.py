"""What vLLM 0.33.0 would compute with a head, from its source.

Read: ``model_executor/models/{llama,qwen3,deepseek}_eagle3.py``, ``transformers_utils/configs/{eagle,speculators}``,
``config/speculative.py``, ``v1/worker/gpu/spec_decode/eagle``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.reading import Target
from sglang_eagle31.tools.audit.engines.hf_config import MLA_DIMENSIONS, NOT_MODEL_TYPES, HfConfig, malformed
from sglang_eagle31.tools.audit.engines.outcome import Effect, Loss, Runs, Stops
from sglang_eagle31.tools.audit.engines.parameters import (
    IGNORABLE,
    SCALE,
    dropped_losses,
    listed,
    load,
    map_losses,
    missing_losses,
)
from sglang_eagle31.tools.audit.engines.vllm_fields import vllm_causes, vllm_fields
from sglang_eagle31.tools.audit.engines.vllm_layers import ARCHITECTURES, FILES, TARGETS, Family, vllm_name, vllm_slots

VERSION = "0.33.0"
IDS = "eagle_aux_hidden_state_layer_ids"
_NEEDED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "rms_norm_eps")


def effective_vllm(head: Checkpoint, target: Target, *, d2t: Sequence[int] | None = None) -> Effect:
    """vLLM's effect on ``head`` with method ``eagle3``, one GPU, its default model runner (V2)."""
    inner = head.config.get("transformer_layer_config")
    broken = malformed(head.config) or (malformed(inner) if isinstance(inner, Mapping) else None)
    if broken:
        return Stops("start", f"{broken} (transformers, or the first use of it)")
    flat = _flat(head.config)
    if isinstance(flat, Stops):
        return flat
    config, family = flat
    stop = _refused(config, family, target)
    if stop:
        return stop
    states = _states(config, family)
    fed_width = int(config.get("target_hidden_size", config.get("hidden_size")))
    slots = vllm_slots(config, family, states, fed_width, target.vocab_size)
    done = load(slots, head.tensors, vllm_name)
    dropped, stop = _unexpected(done.dropped, config, family)
    if stop:
        return stop
    quantised = bool(config.get("quantization_config"))
    if done.mismatched and not quantised:
        return Stops("start", f"shapes differ: {listed(done.mismatched)} (layers/linear.py)")
    boundaries, stop = _captured(config, target, states, fed_width)
    if stop:
        return stop
    how = f"{FILES[family]}: load_weights"
    losses = dropped_losses(dropped, f"{how} ignores unexpected biases and what its flags leave out")
    losses += missing_losses(done.missing, f"{how} does not check that all parameters were loaded")
    bare = [name for name in done.missing if name.endswith(".bias")]
    if bare:
        losses.append(Loss(f"biases without tensors run on uninitialised memory: {listed(bare)} ({FILES[family]})"))
    if done.cut:
        losses.append(Loss(f"cut to the size that config.json says: {listed(done.cut)} (layers/linear.py)"))
    losses += _vocabulary(head, config, target) + map_losses(None if d2t is None else list(d2t), target.vocab_size)
    open_facts = _open(head, config, target, boundaries)
    own_head = any("lm_head" in name for name in head.tensors)
    fields = vllm_fields(config, family, boundaries, own_head)
    return Runs(fields, vllm_causes(family), tuple(losses), tuple(open_facts), tuple(_notes(config, boundaries)))


def _flat(raw: Mapping[str, Any]) -> tuple[HfConfig, Family] | Stops:
    """The config and the class that vLLM makes of config.json."""
    if raw.get("speculators_config") is not None:
        return _speculators(raw)
    model_type = raw.get("model_type")
    if not model_type or model_type in NOT_MODEL_TYPES - {"eagle"}:
        return Stops("start", f"model_type {model_type} is not known to transformers")
    if model_type in ("deepseek_v3", "deepseek_v32", "glm_moe_dsa"):
        return Stops("start", f"model_type {model_type} makes it an MTP model (config/speculative.py), which it is not")
    names = [
        name if name.startswith("Eagle3") or name.endswith("Eagle3") else f"Eagle3{name}"
        for name in raw.get("architectures") or ()
    ]
    family = next((ARCHITECTURES[name] for name in names if name in ARCHITECTURES), None)
    if family is None:
        return Stops("start", f"architectures {names} is not in vLLM's registry (configs/eagle.py, models/registry.py)")
    return HfConfig(raw), family


def _speculators(raw: Mapping[str, Any]) -> tuple[HfConfig, Family] | Stops:
    kind, inner = raw.get("speculators_model_type"), raw.get("transformer_layer_config")
    if kind not in ("eagle3", "peagle") or not isinstance(inner, Mapping):
        return Stops("start", f"speculators_model_type {kind} (transformers_utils/configs/speculators)")
    model_type = inner.get("model_type", "llama")
    family = {"llama": "llama", "qwen3": "qwen3"}.get(model_type)
    if family is None:
        return Stops(
            "start", f"transformer_layer_config.model_type {model_type} is not supported (speculators/algos.py)"
        )
    missing = [key for key in _NEEDED if inner.get(key) is None]
    if missing:
        return Stops("start", f"transformer_layer_config lacks {', '.join(missing)}, and no class fills it in")
    flat: dict[str, Any] = {**inner, "model_type": "", "draft_vocab_size": raw.get("draft_vocab_size")}
    for key, default in (("norm_before_residual", kind == "eagle3"), ("norm_before_fc", False)):
        flat[key] = raw.get(key, default)
    for key in ("fc_norm", "norm_output"):
        flat[key] = raw.get(key, False) if kind == "eagle3" else False
    for key in ("target_hidden_size", IDS):
        if raw.get(key):
            flat[key] = raw[key]
    flat["parallel_drafting"] = kind == "peagle"
    return HfConfig(flat), "qwen3" if family == "qwen3" else "llama"


def _refused(config: HfConfig, family: Family, target: Target) -> Stops | None:
    missing = [key for key in (*_NEEDED, *(MLA_DIMENSIONS if family == "mla" else ())) if not config.get(key)]
    if missing:
        return Stops("start", f"config.json lacks {', '.join(missing)} ({FILES[family]})")
    if config.get("hidden_act", "silu") != "silu":
        return Stops("start", f"hidden_act {config.get('hidden_act')}: its MLP knows only silu")
    if "target_hidden_size" in config and config.get("target_hidden_size") is None:
        return Stops("start", f"target_hidden_size is null and is multiplied ({FILES[family]})")
    types = config.get("layer_types")
    if types and family == "llama" and len(types) < int(config.get("num_hidden_layers")):
        return Stops("start", f"layer_types has {len(types)} entries for {config.get('num_hidden_layers')} layers")
    return None


def _states(config: HfConfig, family: Family) -> int:
    """States that fc is built for; the llama and MLA classes do not count top-level ids."""
    keys = ("num_aux_layers", "num_aux_hidden_states") if family == "qwen3" else ("num_aux_hidden_states",)
    stated = next((config.get(key) for key in keys if config.get(key) is not None), None)
    if stated is not None:
        return int(stated)
    nested = config.nested("eagle_config").get(IDS)
    ids = (config.get(IDS) or nested) if family == "qwen3" else nested
    return len(ids) if ids else 3


def _unexpected(names: list[str], config: HfConfig, family: Family) -> tuple[list[str], Stops | None]:
    """Names that are left out in silence, or the refusal of the others."""
    file, silent, loud = FILES[family], [], []
    aux = config.nested("eagle_config").get("use_aux_hidden_state", True)
    for name in names:
        quiet = name.endswith(".bias") or (family != "mla" and ("mask_hidden" in name or "input_norm." in name))
        if quiet or ("fc." in name and not aux and family != "mla"):
            silent.append(name)
        elif not IGNORABLE.search(name) or "verifier_" in name:
            loud.append(name)
    if config.get("quantization_config"):
        loud = [name for name in loud if not SCALE.search(name)]
    if not loud:
        return silent, None
    maps = [name for name in loud if "d2t" in name]
    why = " (draft_vocab_size is the target's, and then no map may be there)" if maps else ""
    return silent, Stops("start", f"no parameter for {listed(loud)}{why} ({file}, models/utils.py: AutoWeightsLoader)")


def _captured(
    config: HfConfig, target: Target, states: int, fed_width: int
) -> tuple[tuple[int, ...] | None, Stops | None]:
    """Boundaries: top-level ids as stated, else 2, N//2, N-3; the V2 runner does not read eagle_config's ids."""
    aux = bool(config.nested("eagle_config").get("use_aux_hidden_state", True))
    depth = target.num_layers
    if depth is None:
        return (None if aux else ()), None
    if not aux:
        return (), None
    found = tuple(sorted({b for b in config.get(IDS) or (2, depth // 2, depth - 3) if 0 <= b <= depth}))
    if len(found) * target.hidden_size != states * fed_width:
        why = f"the target delivers {len(found)} states {list(found)} of {target.hidden_size}, fc takes"
        return None, Stops("first request", f"{why} {states} x {fed_width} (combine_hidden_states)")
    return found, None


def _vocabulary(head: Checkpoint, config: HfConfig, target: Target) -> list[Loss]:
    vocab = int(config.get("draft_vocab_size") or config.get("vocab_size"))
    losses = []
    if vocab < target.vocab_size and not any("d2t" in name for name in head.tensors):
        losses.append(Loss(f"{vocab} draft tokens and no d2t: draft ids are used as target ids (a map of zeros)"))
    if vocab < target.vocab_size and not any("lm_head" in name for name in head.tensors):
        losses.append(Loss("no lm_head.weight: the target's takes its place, whose rows are not the draft's tokens"))
    return losses


def _open(head: Checkpoint, config: HfConfig, target: Target, boundaries: tuple[int, ...] | None) -> list[str]:
    found = []
    if boundaries is None:
        found.append("captured layers are not determined: no target was given")
    elif target.architecture not in TARGETS:
        found.append(
            f"{target.architecture} is not among vLLM's own EAGLE-3 targets; its Transformers backend was not followed"
        )
    if config.get("quantization_config"):
        found.append("quantised layers: how vLLM loads their scales was not followed")
    if config.get("parallel_drafting") or any("mask_hidden" in name for name in head.tensors):
        found.append("a parallel-drafting (P-EAGLE) head, which vLLM serves in its own way")
    return found


def _notes(config: HfConfig, boundaries: tuple[int, ...] | None) -> list[str]:
    """The older model runner reads the ids in eagle_config (v1/worker/gpu_model_runner.py); V2 does not."""
    nested = config.nested("eagle_config").get(IDS)
    if not nested or config.get(IDS) or boundaries is None or tuple(sorted(set(nested))) == boundaries:
        return []
    return [
        f"eagle_config.{IDS}={list(nested)} is not read by the default model runner; the older one "
        "(VLLM_USE_V2_MODEL_RUNNER=0, or no Triton) takes it as boundaries, one layer early for output ids"
    ]
