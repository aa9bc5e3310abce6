"""How ``EAGLE31`` is resolved, and every reason for which it refuses a set-up."""

from __future__ import annotations

import logging
import os
from dataclasses import asdict
from typing import Any

from sglang_eagle31.config import NAMES, Eagle31Config, asked
from sglang_eagle31.drafter.checkpoint import Checkpoint, local_folder
from sglang_eagle31.drafter.load import resolve as resolve_head
from sglang_eagle31.drafter.reading import Reading, Target
from sglang_eagle31.drafter.spec import DrafterSpec
from sglang_eagle31.drafter.stage import cache_dir, stage

logger = logging.getLogger("sglang_eagle31")

PLAN = "_eagle31"
CPU_ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", *NAMES)


def register() -> None:
    """Register the name EAGLE31 with SGLang; its validator refuses, for it is reached only when a seam has moved."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    for name in NAMES:
        SpeculativeAlgorithm.register(name, supports_overlap=True, validate_server_args=_refuse_unresolved)(_no_worker)


def refuse(reasons: list[str]) -> ValueError:
    """The one error of EAGLE31, listing every reason."""
    return ValueError("EAGLE31 cannot run this set-up:\n" + "\n".join(f"  - {reason}" for reason in reasons))


def plan_of(server_args: Any) -> dict[str, Any] | None:
    """What EAGLE31 resolved for this record, or None if it was not asked for."""
    plan: dict[str, Any] | None = getattr(server_args, PLAN, None)
    return plan


def resolve(server_args: Any) -> None:
    """Resolve EAGLE31 to EAGLE3 with a staged head, on a record that SGLang has not resolved yet.

    Raises:
        ValueError: EAGLE31 was asked for and cannot run; every reason is listed, with flag, value and fix.
    """
    if getattr(server_args, "_resolution_finished", False):
        return
    _prepare_cpu(server_args)
    if not asked(server_args.speculative_algorithm):
        return
    reasons = _unfit_seams() + _flag_reasons(server_args)
    if reasons:
        raise refuse(reasons)
    config = Eagle31Config.of(server_args)
    path = server_args.speculative_draft_model_path
    try:
        head = Checkpoint.read(local_folder(path, server_args.speculative_draft_model_revision))
    except ValueError as error:
        raise refuse([f"--speculative-draft-model-path {path}: {error}"]) from error
    target, reasons = _target(server_args)
    reading, more = resolve_head(head, target, config.overrides())
    reasons += [f"--speculative-draft-model-path {path}: {reason}" for reason in more]
    if not more:
        reasons += _context_reasons(path, reading.spec(), target)
    if reasons:
        raise refuse(reasons)
    _adopt(server_args, head, reading, target, config)


def facts_of(server_args: Any) -> dict[str, Any] | None:
    """What runs, for ``/server_info`` and the log: head, variant, captured layers, vocabulary, tree."""
    plan = plan_of(server_args)
    if plan is None:
        return None
    from sglang.srt.arg_groups.overrides import resolving_view

    view = resolving_view(server_args)
    spec = DrafterSpec.from_json(plan["spec"])
    return {
        "algorithm": "EAGLE31",
        "head": plan["head"],
        "producer": spec.producer,
        "variant": spec.variant,
        "captured_boundaries": list(spec.boundaries),
        "target": plan["target"],
        "vocabulary": {"draft": spec.draft_vocab_size, "target": spec.vocab_size},
        "tree": {
            "num_steps": view.speculative_num_steps,
            "eagle_topk": view.speculative_eagle_topk,
            "num_draft_tokens": view.speculative_num_draft_tokens,
        },
        "spec": spec.to_json(),
    }


def describe(facts: dict[str, Any]) -> str:
    """The facts on one line of the log."""
    vocabulary, tree = facts["vocabulary"], facts["tree"]
    return (
        f"EAGLE31: {facts['variant']} head {facts['head']} ({facts['producer']}) on {facts['target']['architecture']}, "
        f"captures the inputs of layers {facts['captured_boundaries']} of {facts['target']['num_layers']}, "
        f"vocabulary {vocabulary['draft']} of {vocabulary['target']}, "
        f"steps {tree['num_steps']}, topk {tree['eagle_topk']}, draft tokens {tree['num_draft_tokens']}"
    )


def _refuse_unresolved(server_args: Any) -> None:
    from sglang_eagle31 import patches

    reasons = patches.install(patches.group("server")) + patches.fit(patches.group("eagle31"))
    raise refuse(reasons or ["the hook on ServerArgs.resolve_once did not run"])


def _no_worker(server_args: Any) -> type:
    raise refuse(["SGLang asked for a worker of the unresolved name EAGLE31"])


def _unfit_seams() -> list[str]:
    from sglang_eagle31 import patches
    from sglang_eagle31.cpu import standin

    cpu = patches.group("cpu") if standin.installed() else ()
    return patches.install((*patches.group("server"), *patches.group("eagle31"))) + patches.fit(cpu)


def _prepare_cpu(server_args: Any) -> None:
    """EAGLE on our CPU ops must not need a C++ compiler, nor compile at the first request."""
    from sglang_eagle31.cpu import standin

    speculative = (server_args.speculative_algorithm or "").upper() in CPU_ALGORITHMS
    if standin.installed() and speculative and not server_args.enable_torch_compile:
        os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")


def _flag_reasons(server_args: Any) -> list[str]:
    reasons = []
    if not server_args.speculative_draft_model_path:
        reasons.append(
            "--speculative-draft-model-path is not given, and EAGLE31 needs a draft head; "
            "fix: --speculative-draft-model-path HEAD"
        )
    if server_args.enable_multi_layer_eagle:
        reasons.append("--enable-multi-layer-eagle drafts with several models; fix: drop it, EAGLE31 drafts with one")
    return reasons + _tree_reasons(server_args)


def _tree_reasons(server_args: Any) -> list[str]:
    names = ("num_steps", "eagle_topk", "num_draft_tokens")
    tree = {f"--speculative-{name.replace('_', '-')}": getattr(server_args, f"speculative_{name}") for name in names}
    given = {flag: value for flag, value in tree.items() if value is not None}
    if server_args.speculative_adaptive or not given:
        return []
    if len(given) < len(tree):
        have = ", ".join(f"{flag} {value}" for flag, value in given.items())
        lack = ", ".join(flag for flag in tree if flag not in given)
        return [f"{have} is given without {lack}; fix: give all three, or none of them"]
    steps, topk, tokens = (int(value) for value in given.values())
    if min(steps, topk) < 1 or tokens < 2:
        have = ", ".join(f"{flag} {value}" for flag, value in given.items())
        return [f"{have}: steps and topk must be at least 1, draft tokens at least 2; fix: 3, 1 and 4, for example"]
    most = 1 + topk + (steps - 1) * topk * topk
    if topk > 1 and tokens > most:
        return [
            f"--speculative-num-draft-tokens {tokens}: a tree of {steps} steps with topk {topk} has only {most} "
            f"tokens; fix: --speculative-num-draft-tokens {most} or less"
        ]
    return []


def _target(server_args: Any) -> tuple[Target, list[str]]:
    from sglang.srt.utils.hf_transformers_utils import get_config, get_context_length, get_hf_text_config

    config = get_config(
        server_args.model_path, trust_remote_code=server_args.trust_remote_code, revision=server_args.revision
    )
    text = get_hf_text_config(config)
    architecture = (config.architectures or ["unknown"])[0]
    target = Target(
        architecture=architecture,
        num_layers=int(text.num_hidden_layers),
        hidden_size=int(text.hidden_size),
        vocab_size=int(text.vocab_size),
        context_length=int(server_args.context_length or get_context_length(text)),
        dtype=_dtype(server_args.dtype, text),
    )
    reasons = _capture_reasons(server_args.model_path, architecture)
    if hasattr(config, "vision_config") or hasattr(config, "audio_config"):
        reasons.append(
            f"--model-path {server_args.model_path}: {architecture} reads images or sound, and EAGLE31 drafts from "
            "text only; fix: --speculative-algorithm EAGLE3 for this target"
        )
    return target, reasons


def _dtype(flag: str, config: Any) -> str:
    """The draft runs in the target's dtype: it reads the target's states and shares its embedding."""
    dtype = flag if flag != "auto" else getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    return str(dtype or "bfloat16").removeprefix("torch.")


def _capture_reasons(model_path: str, architecture: str) -> list[str]:
    from sglang_eagle31.target import model_class

    found = model_class(architecture)
    if found is None or hasattr(found, "set_eagle3_layers_to_capture"):
        return []
    return [
        f"--model-path {model_path}: SGLang's {architecture} cannot hand its hidden states to a draft head "
        "(no set_eagle3_layers_to_capture); fix: serve a target that SGLang supports for EAGLE3"
    ]


def _context_reasons(path: str, spec: DrafterSpec, target: Target) -> list[str]:
    short = target.context_length - spec.max_position_embeddings
    if short <= 0:
        return []
    return [
        f"--speculative-draft-model-path {path}: the head was made for {spec.max_position_embeddings} positions, the "
        f"server's context is {target.context_length} ({short} more). Past them its positions are ones it never saw: "
        "output stays right, but acceptance falls and speculation slows the server down; fix: --context-length "
        f"{spec.max_position_embeddings}, or --eagle31-override max_position_embeddings={target.context_length} "
        "to serve it all the same"
    ]


def _adopt(server_args: Any, head: Checkpoint, reading: Reading, target: Target, config: Eagle31Config) -> None:
    spec = reading.spec()
    plan = {"head": str(head.folder), "spec": spec.to_json(), "target": asdict(target)}
    server_args.speculative_draft_model_path = str(stage(head, reading, target.dtype, cache_dir(config.cache_dir)))
    server_args.speculative_draft_model_revision = None
    server_args.speculative_algorithm = "EAGLE3"
    if server_args.quantization and server_args.speculative_draft_model_quantization is None:
        # SGLang would give the draft the target's quantisation, but the head's files are in full precision.
        server_args.speculative_draft_model_quantization = "unquant"
    setattr(server_args, PLAN, plan)
    logger.info("EAGLE31: head %s read as %s by %s", head.folder, spec.variant, spec.producer)
