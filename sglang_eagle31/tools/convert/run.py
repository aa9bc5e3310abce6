"""Convert a head: read it strictly, write it in a format, and check what the format's engine makes of the result."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from sglang_eagle31.head.check import resolve
from sglang_eagle31.head.checkpoint import Checkpoint, local_folder
from sglang_eagle31.head.dialects.converted import CONVERTED
from sglang_eagle31.head.kinship import DTYPES, embedding_cosine
from sglang_eagle31.head.reading import Reading, Target
from sglang_eagle31.head.spec import FIRST_NORMS, DrafterSpec
from sglang_eagle31.head.target import guess_target, read_target
from sglang_eagle31.tools.audit.engines import predict
from sglang_eagle31.tools.audit.report import COPY
from sglang_eagle31.tools.convert.formats import FORMATS

NAME = "model.safetensors"

SPECFORGE: Mapping[str, tuple[Any, ...]] = {
    "attention": ("gqa",),
    "use_aux_hidden_state": (True,),
    "pre_fc_norm": ("none", "fc_norm"),
    "residual": ("pre",),
    "logits": ("norm",),
    "first_norms": (FIRST_NORMS,),
    "double_norm": (False,),
    "final_norm": (True,),
    "num_layers": (1,),
    "hidden_act": ("silu",),
    "fc_bias": (False,),
    "qkv_bias": (False,),
    "o_bias": (False,),
    "mlp_bias": (False,),
    "qk_norm": (False,),
    "own_head": (True,),
    "own_embedding": (False,),
    "partial_rotary_factor": (1.0,),
    "sliding_window": (None,),
}
"""What SpecForge's one model has, by the value that each switch may take."""


def convert(
    path: str,
    out: Path,
    to: str,
    target_path: str | None = None,
    overrides: Mapping[str, str] | None = None,
    unpickle: bool = False,
) -> DrafterSpec:
    """Write the head at ``path`` to ``out`` in the format ``to``; it computes the same there, or nothing is written.

    Args:
        path: the head's folder.
        out: a new folder.
        to: a key of `FORMATS`.
        target_path: the target; it decides how stock SGLang reads layer ids (without it, ``sglang`` is refused), and
            whether an embedding is a copy.
        overrides: as ``--eagle31-override``.
        unpickle: also read ``*.bin`` files, with ``weights_only``.

    Returns:
        what the head computes.

    Raises:
        ValueError: the head is refused, ``out`` is there, or the format cannot express the head; every reason is named.
    """
    if out.exists():
        raise ValueError(f"{out} is there already; fix: give a new folder")
    if to == "sglang" and target_path is None:
        raise ValueError("--to sglang: stock SGLang reads layer ids by the class of the target; fix: --target TARGET")
    with tempfile.TemporaryDirectory() as scratch:
        folder = local_folder(path)
        head = Checkpoint.read(_unpickled(folder, Path(scratch)) if unpickle else folder)
        target = read_target(target_path) if target_path else guess_target(head)
        reading, reasons = resolve(head, target, overrides or {})
        if reasons:
            raise ValueError(_listing(f"{path} is not settled", reasons))
        made = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=_parent(out)))
        try:
            _write(head, reading, target, to, made)
            reasons = check(made, to, target, reading.spec())
            if reasons:
                raise ValueError(_listing(f"the format {to} cannot express this head", reasons))
            made.chmod(0o755)
            made.rename(out)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return reading.spec()


def check(folder: Path, to: str, target: Target, spec: DrafterSpec) -> list[str]:
    """What would be lost: in stock SGLang or vLLM by their source, in SpecForge by what its model has."""
    head = Checkpoint.read(folder)
    if to in ("sglang", "vllm"):
        d2t = head.numbers("d2t").tolist() if "d2t" in head.tensors else None
        outcome = predict(head, target, spec, d2t=d2t)[to]
        settled = outcome.kind == "exact" or (outcome.kind == "unknown" and target.num_layers is None)
        return [] if settled else list(outcome.reasons)
    foreign = [name for name, plain in SPECFORGE.items() if getattr(spec, name) not in plain]
    if foreign:
        return [f"{name}={getattr(spec, name)!r} has no place in it" for name in foreign]
    reading, reasons = resolve(head, target, {})
    if reasons:
        return reasons
    found = reading.spec()
    names = [item.name for item in fields(spec) if item.name not in ("producer", "sources", "later_norm")]
    unequal = [name for name in names if getattr(found, name) != getattr(spec, name)]
    return [f"{name} would read back as {getattr(found, name)!r}" for name in unequal]


def _write(head: Checkpoint, reading: Reading, target: Target, to: str, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    spec, form = reading.spec(), FORMATS[to]
    kept = {new: old for old, new in reading.names.items()}
    name = kept.get("embed_tokens.weight")
    if name and target.folder and (embedding_cosine(head, name, target.folder) or 0.0) >= COPY:
        # A frozen copy of the target's: every engine shares the target's own.
        kept.pop("embed_tokens.weight")
        spec = DrafterSpec.from_json({**spec.to_json(), "own_embedding": False})
        reading.put("own_embedding", False, "a copy of the target's embedding")
    tensors = {form.rename(new): head.load(old) for new, old in kept.items()}
    if "d2t" not in tensors and form.always_d2t:
        tensors["d2t"] = torch.zeros(spec.draft_vocab_size, dtype=torch.int64)
    if "d2t" in tensors:
        used = tensors["d2t"].long() + torch.arange(spec.draft_vocab_size)
        tensors["t2d"] = torch.zeros(spec.vocab_size, dtype=torch.bool).index_fill_(0, used, True)
    dtype = DTYPES.get(head.tensors[kept["layers.0.post_attention_layernorm.weight"]].dtype, "bfloat16")
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / NAME, {"format": "pt"})
    made = {"to": to, "trained_by": spec.producer, "boundaries": list(spec.boundaries)}
    (folder / "config.json").write_text(json.dumps({**form.config(spec, target, dtype), CONVERTED: made}, indent=1))


def _unpickled(folder: Path, scratch: Path) -> Path:
    """A copy of the head as safetensors, its pickles read by torch with ``weights_only``, which runs no code."""
    import torch
    from safetensors.torch import save_file

    tensors: dict[str, Any] = {}
    for file in sorted(folder.glob("*.bin")):
        try:
            found = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many kinds for a file that is no plain dict of tensors
            raise ValueError(f"{file} cannot be read with weights_only ({error}); fix: fetch it again") from error
        if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
            raise ValueError(f"{file} holds more than tensors by name; fix: save the head's state dict")
        tensors |= found
    if not tensors:
        raise ValueError(f"{folder} holds no *.bin; fix: drop --unpickle")
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} holds no config.json; fix: give the folder of a draft head")
    shutil.copy(folder / "config.json", scratch / "config.json")
    save_file({str(name): value.clone().contiguous() for name, value in tensors.items()}, scratch / NAME)
    return scratch


def _parent(out: Path) -> Path:
    out.parent.mkdir(parents=True, exist_ok=True)
    return out.parent


def _listing(title: str, reasons: list[str]) -> str:
    return title + ":\n" + "\n".join(f"  - {reason}" for reason in reasons)
