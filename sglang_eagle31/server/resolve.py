"""How ``EAGLE31`` is resolved, and every reason for which it refuses a set-up."""

from __future__ import annotations

import importlib.metadata
import logging
import os
from dataclasses import asdict
from typing import Any

from sglang_eagle31.head.check import resolve as resolve_head
from sglang_eagle31.head.checkpoint import Checkpoint, local_folder
from sglang_eagle31.head.reading import Reading, Target
from sglang_eagle31.head.spec import DrafterSpec
from sglang_eagle31.head.stage import cache_dir, stage
from sglang_eagle31.server.options import NAMES, Eagle31Config, asked
from sglang_eagle31.server.reasons import context_reasons, fit_reasons, flag_reasons, target_of

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
    reasons = _unfit_seams() + flag_reasons(server_args)
    if reasons:
        raise refuse(reasons)
    config = Eagle31Config.of(server_args)
    path = server_args.speculative_draft_model_path
    try:
        head = Checkpoint.read(local_folder(path, server_args.speculative_draft_model_revision))
    except ValueError as error:
        raise refuse([f"--speculative-draft-model-path {path}: {error}"]) from error
    target, reasons = target_of(server_args)
    reading, more = resolve_head(head, target, config.overrides())
    reasons += [f"--speculative-draft-model-path {path}: {reason}" for reason in more]
    if not more:
        reasons += context_reasons(path, reading.spec(), target) + fit_reasons(server_args, reading.spec())
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
        "version": importlib.metadata.version("sglang-eagle31"),
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
        "notes": plan["notes"],
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
    from sglang_eagle31.server.cpu import standin

    cpu = patches.group("cpu") if standin.installed() else ()
    return patches.install((*patches.group("server"), *patches.group("eagle31"))) + patches.fit(cpu)


def _prepare_cpu(server_args: Any) -> None:
    """EAGLE on our CPU ops must not need a C++ compiler, nor compile at the first request."""
    from sglang_eagle31.server.cpu import standin

    speculative = (server_args.speculative_algorithm or "").upper() in CPU_ALGORITHMS
    if standin.installed() and speculative and not server_args.enable_torch_compile:
        os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")


def _take_seeds(server_args: Any) -> bool:
    """Whether ``--enable-deterministic-inference`` was given on a CPU of ours; it is taken off the record.

    SGLang reads the seed of a request only with this flag, and on a CPU refuses it, for what else it does is made for
    GPUs. `Eagle31Worker` switches on the seeds alone.
    """
    from sglang_eagle31.server.cpu import standin

    asked_for = standin.installed() and bool(server_args.enable_deterministic_inference)
    if asked_for:
        server_args.enable_deterministic_inference = False
        logger.info("EAGLE31: seeds of requests count; matrix products may differ with the batch in their last bits")
    return asked_for


def _adopt(server_args: Any, head: Checkpoint, reading: Reading, target: Target, config: Eagle31Config) -> None:
    spec = reading.spec()
    facts = {name: value for name, value in asdict(target).items() if name != "folder"}
    plan = {
        "head": str(head.folder),
        "spec": spec.to_json(),
        "target": facts,
        "notes": reading.notes,
        "seeds": _take_seeds(server_args),
    }
    server_args.speculative_draft_model_path = str(stage(head, reading, target.dtype, cache_dir(config.cache_dir)))
    server_args.speculative_draft_model_revision = None
    server_args.speculative_algorithm = "EAGLE3"
    if server_args.quantization and server_args.speculative_draft_model_quantization is None:
        # SGLang would give the draft the target's quantisation, but the head's files are in full precision.
        server_args.speculative_draft_model_quantization = "unquant"
    setattr(server_args, PLAN, plan)
    for note in reading.notes:
        logger.warning("EAGLE31: head %s: %s", head.folder, note)
    logger.info("EAGLE31: head %s read as %s by %s", head.folder, spec.variant, spec.producer)
