"""What stock SGLang 0.5.23 would compute with a head, from its source: ``models/llama_eagle3.py``,
``models/kimi_k25_eagle3.py``, ``speculative/eagle_worker_v2.py``, ``speculative/eagle_utils.py``,
``model_executor/model_runner_components/spec_aux_hidden_state.py``, ``configs/model_config.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.reading import Target
from sglang_eagle31.head.sglang_targets import SGLANG_TARGETS
from sglang_eagle31.tools.audit.engines import sglang_layers as layers
from sglang_eagle31.tools.audit.engines.hf_config import MLA_DIMENSIONS, NOT_MODEL_TYPES, HfConfig, malformed
from sglang_eagle31.tools.audit.engines.outcome import Effect, Loss, Runs, Stops
from sglang_eagle31.tools.audit.engines.parameters import (
    SCALE,
    Load,
    dropped_losses,
    listed,
    load,
    map_losses,
    missing_losses,
)
from sglang_eagle31.tools.audit.engines.sglang_fields import FILES, IDS, LLAMA, MLA, sglang_causes, sglang_fields
from sglang_eagle31.tools.audit.engines.sglang_keys import key_losses
from sglang_eagle31.tools.audit.engines.targets import sglang_capture


def effective_sglang(
    head: Checkpoint,
    target: Target,
    *,
    algorithm: str = "EAGLE3",
    d2t: Sequence[int] | None = None,
    embedding_is_copy: bool | None = None,
) -> Effect:
    """SGLang's effect on ``head`` under ``--speculative-algorithm`` EAGLE3 or EAGLE, one GPU, default options.

    ``d2t`` are the values of the map and ``embedding_is_copy`` says whether a shipped embedding is the target's, where
    the caller has read them.
    """
    config, broken = HfConfig(head.config), malformed(head.config)
    stop = Stops("start", f"{broken} (transformers, or the first use of it)") if broken else _refused(config, target)
    if stop:
        return stop
    arch = LLAMA if LLAMA in head.config["architectures"] else MLA
    stop = _cannot_build(config, arch)
    if stop:
        return stop
    eagle3 = algorithm == "EAGLE3"
    states = _states(config, arch)
    stated = config.get("target_hidden_size")
    fed_width = int(stated if stated is not None else config.get("hidden_size"))
    make, find = (layers.llama_slots, layers.llama_name) if arch == LLAMA else (layers.mla_slots, layers.mla_name)
    slots = make(config, states, fed_width)
    done = load(slots, head.tensors, lambda name: find(name, slots))
    quantised = bool(config.get("quantization_config"))
    if done.mismatched and not quantised:
        return Stops(
            "start", f"shapes differ: {listed(done.mismatched)} (model_loader/weight_utils.py, layers/linear.py)"
        )
    boundaries, failure = _captured(config, target, states, fed_width, eagle3)
    if failure:
        return failure
    beyond = [i + offset for i, offset in enumerate(d2t or ()) if not 0 <= i + offset < target.vocab_size]
    if beyond:
        why = f"d2t gives {len(beyond)} ids that the target does not have, such as {beyond[0]}"
        return Stops("first request", f"{why}: the embedding fails once one is drafted (eagle_worker_v2.py)")
    losses, open_facts = _losses(head, config, target, arch, done)
    if eagle3:
        head_losses, own_head = _lm_head(head, config, target, arch)
    else:
        own_head, head_losses = (
            False,
            [
                Loss(
                    "--speculative-algorithm EAGLE: no layers are captured, fc is skipped and lm_head is the target's"
                ),
            ],
        )
    losses += head_losses + map_losses(None if d2t is None else list(d2t), target.vocab_size)
    losses += _feature_losses(config, target, boundaries, eagle3)
    open_facts += _embedding(head, config, target, arch, embedding_is_copy, losses)
    if boundaries is None:
        open_facts.append("captured layers are not determined: no target was given")
    fields = sglang_fields(config, arch, boundaries, own_head)
    return Runs(fields, sglang_causes(arch, target), tuple(losses), tuple(open_facts))


def _refused(config: HfConfig, target: Target) -> Stops | None:
    """What transformers, the model registry and the target refuse before any weight is read."""
    if not config.model_type:
        nested = " (nested transformer_layer_config is not read)" if "transformer_layer_config" in config.raw else ""
        return Stops("start", f"config.json has no model_type{nested} (transformers AutoConfig)")
    if config.model_type in NOT_MODEL_TYPES:
        return Stops("start", f"model_type {config.model_type} is not known to transformers")
    names = list(config.raw.get("architectures") or ())
    if not {LLAMA, MLA} & set(names):
        if set(names) & set(SGLANG_TARGETS) or "LlamaForCausalLMEagle" in names:
            return Stops("start", f"architectures {names} loads a model without hot_token_id (eagle_worker_v2.py)")
        return Stops("start", f"architectures {names} is not a class of SGLang's (model_loader/utils.py)")
    if target.num_layers is None:
        return None
    if target.context_length > config.context():
        return Stops(
            "start",
            f"max_position_embeddings allows {config.context()} positions, the target serves {target.context_length} "
            "(configs/model_config.py; SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN lifts it)",
        )
    return None


def _cannot_build(config: HfConfig, arch: str) -> Stops | None:
    """What the draft class itself raises."""
    file = FILES[arch]
    needed = (
        "hidden_size",
        "num_hidden_layers",
        "vocab_size",
        "rms_norm_eps",
        *(MLA_DIMENSIONS if arch == MLA else ()),
    )
    missing = [key for key in needed if not config.get(key)]
    if missing or not config.heads[0]:
        return Stops("start", f"config.json lacks {', '.join(missing) or 'num_attention_heads'} ({file})")
    if config.get("hidden_act", "silu") != "silu":
        return Stops("start", f"hidden_act {config.get('hidden_act')}: its MLP knows only silu")
    if config.rope["rope_theta"] is None:
        return Stops("start", "rope_theta is null and no other base is given (models/llama.py: get_rope)")
    if arch == LLAMA and "draft_vocab_size" not in config.raw:
        return Stops("start", "config.json has no draft_vocab_size, an AttributeError; null would do (llama_eagle3.py)")
    if arch == LLAMA and "target_hidden_size" in config.raw and config.raw["target_hidden_size"] is None:
        return Stops("start", "target_hidden_size is null and is multiplied (llama_eagle3.py)")
    if arch == MLA and config.get("num_hidden_layers") != 1:
        return Stops(
            "start", f"num_hidden_layers={config.get('num_hidden_layers')}: the MLA class has one layer ({file})"
        )
    if arch == MLA and config.get("q_lora_rank") is None:
        return Stops("start", f"q_lora_rank is null: the MLA class needs one ({file})")
    return None


def _nested_ids(config: HfConfig) -> list[int] | None:
    ids = config.nested("eagle_config").get(IDS)
    return None if ids is None else [int(i) for i in ids]


def _states(config: HfConfig, arch: str) -> int:
    """States that fc is built for."""
    stated, nested = config.get("num_aux_hidden_states"), _nested_ids(config)
    if arch == LLAMA:
        return int(stated) if stated is not None else len(nested or ()) or 3
    ids = nested if nested is not None else config.get(IDS)
    return 3 if ids is None else len(ids)


def _captured(
    config: HfConfig, target: Target, states: int, fed_width: int, eagle3: bool
) -> tuple[tuple[int, ...] | None, Stops | None]:
    """Boundaries that reach the head (None: not determined), or how the first forward pass fails."""
    hidden = int(config.get("hidden_size"))
    aux = bool(config.nested("eagle_config").get("use_aux_hidden_state", True)) and eagle3
    if target.num_layers is None:
        return (None if aux else ()), None
    found: tuple[int, ...] | Stops = ()
    if aux:
        found = sglang_capture(target.architecture, _nested_ids(config), target.num_layers)
    if isinstance(found, Stops):
        return None, found
    if aux and not found:
        return None, Stops("first request", "no layer is captured, and the target returns no captured states")
    width = target.hidden_size * (len(found) if aux else 1)
    if width != hidden and width != states * fed_width:
        kept = f"{len(found)} states {list(found)}" if aux else "the final state"
        why = f"the target delivers {kept} of width {target.hidden_size}, fc takes {states} x {fed_width}"
        return None, Stops("first request", f"{why} (llama_eagle3.py, kimi_k25_eagle3.py: forward)")
    return found, None


def _losses(head: Checkpoint, config: HfConfig, target: Target, arch: str, done: Load) -> tuple[list[Loss], list[str]]:
    file = FILES[arch]
    silent = "load_weights skips names it does not know"
    how = f"{file}: {silent} without a word" if arch == LLAMA else f"{file}: {silent}, at most with a warning"
    open_facts, dropped = [], done.dropped
    if config.get("quantization_config"):
        open_facts.append("quantised layers: how SGLang loads their scales was not followed")
        linear_fc = arch == LLAMA  # a plain nn.Linear there, which has no scales
        dropped = [name for name in dropped if not SCALE.search(name) or (linear_fc and ".fc." in f".{name}")]
    losses = dropped_losses(dropped, how)
    if done.cut:
        losses.append(Loss(f"cut to the size that config.json says: {listed(done.cut)} (layers/linear.py)"))
    aux = config.nested("eagle_config").get("use_aux_hidden_state", True)
    unused = () if aux else ("model.fc.", "model.fc_norm.", "model.input_norm.")
    missing = [name for name in done.missing if not name.startswith(tuple(unused))] if unused else done.missing
    losses += missing_losses(missing, f"{file}: nothing checks that all parameters were loaded")
    vocab = int(config.get("draft_vocab_size") or config.get("vocab_size"))
    maps = [tensor for name, tensor in head.tensors.items() if "d2t" in name]
    if vocab < target.vocab_size and not maps:
        losses.append(Loss(f"{vocab} draft tokens and no d2t: draft ids are used as target ids (eagle_worker_v2.py)"))
    return losses + key_losses(config, arch), open_facts


def _lm_head(head: Checkpoint, config: HfConfig, target: Target, arch: str) -> tuple[list[Loss], bool]:
    """Losses about lm_head, and whether the head's own one is used."""
    own = "lm_head.weight" in head.tensors
    if config.get("tie_word_embeddings", False):
        text = "tie_word_embeddings: lm_head is the embedding, which is then the target's"
        if own:
            return [Loss(f"{text}; the file's lm_head.weight is dropped ({FILES[arch]})", "own_head")], False
        return [Loss(f"{text}, cut to its first draft_vocab_size rows ({FILES[arch]})")], False
    if config.get("draft_vocab_size") is None:
        text = "draft_vocab_size is not set, so the file's lm_head.weight is replaced by the target's"
        return ([Loss(f"{text} (eagle_worker_v2.py: init_lm_head)", "own_head")] if own else []), False
    if not own:
        text = "lm_head.weight is not in the file and draft_vocab_size is set: it runs on uninitialised memory"
        return [Loss(f"{text} (eagle_worker_v2.py takes the target's only where draft_vocab_size is null)")], False
    return [], True


def _feature_losses(config: HfConfig, target: Target, boundaries: tuple[int, ...] | None, eagle3: bool) -> list[Loss]:
    losses = []
    width = target.hidden_size * len(boundaries or ())
    if boundaries and width == config.get("hidden_size"):
        text = f"the captured states are {width} wide, as the draft is, so fc and the norms before it are skipped"
        losses.append(Loss(f"{text} (forward compares widths)"))
    rule = SGLANG_TARGETS.get(target.architecture)
    if rule and not rule.whole and boundaries:
        text = f"{rule.file} captures the last sub-layer's output without the residual, not the residual stream"
        losses.append(Loss(text))
    return losses


def _embedding(
    head: Checkpoint, config: HfConfig, target: Target, arch: str, is_copy: bool | None, losses: list[Loss]
) -> list[str]:
    """Adds losses about the embedding; returns what is open about it."""
    hidden, stated = config.get("hidden_size"), config.get("target_hidden_size")
    own = any(name.endswith("embed_tokens.weight") for name in head.tensors)
    if "target_hidden_size" in config and stated is not None and stated != hidden:
        if not own:
            losses.append(Loss(f"embed_tokens.weight is neither shared nor in the file: uninitialised ({FILES[arch]})"))
        return []
    open_facts = []
    if own and is_copy is False:
        losses.append(
            Loss("the head's own embedding is replaced by the target's (eagle_worker_v2.py)", "own_embedding")
        )
    elif own and is_copy is None:
        open_facts.append("embed_tokens.weight is replaced by the target's: right only if it is a copy of it")
    if config.get("vocab_size") != target.vocab_size and target.num_layers is not None:
        open_facts.append(
            f"vocab_size is {config.get('vocab_size')}, the target's {target.vocab_size}: its embedding is taken "
            "without a shape check (models/llama.py: set_embed)"
        )
    return open_facts
