"""Every reason in flags and target for which EAGLE31 refuses a set-up; those in the head are the loader's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sglang_eagle31.head.reading import Target
from sglang_eagle31.head.sglang_targets import CAPTURES_LAST_BOUNDARY, SGLANG_TARGETS
from sglang_eagle31.head.spec import DrafterSpec


def flag_reasons(server_args: Any) -> list[str]:
    """Reasons in SGLang's flags alone."""
    from sglang_eagle31.server.cpu import standin

    reasons = []
    if not server_args.speculative_draft_model_path:
        reasons.append(
            "--speculative-draft-model-path is not given, and EAGLE31 needs a draft head; "
            "fix: --speculative-draft-model-path HEAD"
        )
    if server_args.enable_multi_layer_eagle:
        reasons.append("--enable-multi-layer-eagle drafts with several models; fix: drop it, EAGLE31 drafts with one")
    if server_args.speculative_adaptive and standin.installed():
        reasons.append(
            "--speculative-adaptive: SGLang prepares its shapes with graphs, which it cannot capture on this CPU; fix: "
            "drop it, --eagle31-guard on does the same with what rounds really cost"
        )
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
    if topk > 1 and tokens < steps + 1:
        return [
            f"--speculative-num-draft-tokens {tokens} is less than {steps} steps and the root, and SGLang's "
            f"verification fails on such a tree; fix: --speculative-num-draft-tokens {steps + 1} or more, or "
            f"--speculative-num-steps {tokens - 1}"
        ]
    most = 1 + topk + (steps - 1) * topk * topk
    if topk > 1 and tokens > most:
        return [
            f"--speculative-num-draft-tokens {tokens}: a tree of {steps} steps with topk {topk} has only {most} "
            f"tokens; fix: --speculative-num-draft-tokens {most} or less"
        ]
    return []


def target_of(server_args: Any) -> tuple[Target, list[str]]:
    """The target's facts from its config, and the reasons for which no head can be served on it."""
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
        folder=Path(server_args.model_path) if Path(server_args.model_path).is_dir() else None,
        last_boundary=architecture in CAPTURES_LAST_BOUNDARY,
    )
    reasons = _capture_reasons(server_args.model_path, architecture)
    if hasattr(config, "vision_config") or hasattr(config, "audio_config"):
        reasons.append(
            f"--model-path {server_args.model_path}: {architecture} reads images or sound, and EAGLE31 drafts from "
            "text only; fix: --speculative-algorithm EAGLE3 for this target"
        )
    return target, reasons + _latent_target_reasons(server_args.model_path, text)


def _dtype(flag: str, config: Any) -> str:
    """The draft runs in the target's dtype: it reads the target's states and shares its embedding."""
    dtype = flag if flag != "auto" else getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    return str(dtype or "bfloat16").removeprefix("torch.")


def _capture_reasons(model_path: str, architecture: str) -> list[str]:
    from sglang_eagle31.server.capture import model_class

    rule = SGLANG_TARGETS.get(architecture)
    if rule is not None and not rule.whole:
        return [
            f"--model-path {model_path}: SGLang's {architecture} ({rule.file}) hands out what its blocks add and not "
            "the residual stream that heads are trained on; fix: serve this target without a draft head"
        ]
    found = model_class(architecture)
    if found is None or hasattr(found, "set_eagle3_layers_to_capture"):
        return []
    return [
        f"--model-path {model_path}: SGLang's {architecture} cannot hand its hidden states to a draft head "
        "(no set_eagle3_layers_to_capture); fix: serve a target that SGLang supports for EAGLE3"
    ]


def context_reasons(path: str, spec: DrafterSpec, target: Target) -> list[str]:
    """A reason when the server's context is longer than what the head was made for."""
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


def fit_reasons(server_args: Any, spec: DrafterSpec) -> list[str]:
    """Reasons for which a head does not fit the server's flags: tensor parallelism, and the draft window."""
    reasons, parallel = [], int(getattr(server_args, "tp_size", 1) or 1)
    uneven = parallel % spec.num_kv_heads and spec.num_kv_heads % parallel
    if spec.num_heads % parallel or uneven:
        reasons.append(
            f"--tp-size {parallel}: the head's {spec.num_heads} attention heads ({spec.num_kv_heads} of keys) cannot "
            f"be divided among {parallel} ranks; fix: a --tp-size that divides them"
        )
    window = server_args.speculative_draft_window_size
    if spec.attention == "mla" and window is not None:
        reasons.append(
            f"--speculative-draft-window-size {window}: SGLang's latent attention has no window; fix: drop the flag "
            "for an MLA head"
        )
    return reasons + _window_reasons(server_args, spec)


def _window_reasons(server_args: Any, spec: DrafterSpec) -> list[str]:
    """A head with a window needs an attention backend that has it in every draft step.

    By SGLang 0.5.23's source: FlashInfer's drafts of more than one step read all keys (``flashinfer_backend.py``,
    ``spec_info.kv_indices``), and fa3 has the window for chains. Ours on a CPU always has it.
    """
    from sglang_eagle31.server.cpu import standin

    if spec.sliding_window is None or spec.attention == "mla" or standin.installed():
        return []
    backend = server_args.speculative_draft_attention_backend or server_args.attention_backend
    if backend == "fa3" and server_args.speculative_eagle_topk == 1:
        return []
    return [
        f"the head was trained with a window of {spec.sliding_window} keys, and with "
        f"--speculative-draft-attention-backend {backend or 'as SGLang chooses'} and "
        f"--speculative-eagle-topk {server_args.speculative_eagle_topk} SGLang's "
        "draft steps may see all keys; fix: --speculative-draft-attention-backend fa3 --speculative-eagle-topk 1, or "
        "--eagle31-override sliding_window=none to serve it with full attention all the same"
    ]


def _latent_target_reasons(model_path: str, config: Any) -> list[str]:
    """On a CPU without sgl_kernel, SGLang builds the RoPE of an MLA target only for yarn."""
    from sglang_eagle31.server.cpu import standin

    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    yarn = "yarn" in str(rope.get("rope_type", rope.get("type", "")))
    if not standin.installed() or getattr(config, "kv_lora_rank", None) is None or yarn:
        return []
    return [
        f"--model-path {model_path}: on a CPU SGLang builds an MLA target only with yarn positions "
        "(layers/rotary_embedding/factory.py); fix: serve it on a GPU"
    ]
