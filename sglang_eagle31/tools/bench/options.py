"""What to measure, and the conditions that are written beside it."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from sglang_eagle31.maths.shape import Shape
from sglang_eagle31.tools.bench.arms import BUILT_IN, Arm
from sglang_eagle31.tools.bench.prompts import NAMES, PromptSet
from sglang_eagle31.tools.shared.demo_model import HEAD
from sglang_eagle31.tools.shared.provenance import provenance

FEWEST, MOST = 8, 64
"""Requests of a cell: twice the concurrency, within these, but one for each user at least."""
SLACK = 128
"""Tokens of KV a request beyond prompt and answer: a draft, and what the page size rounds up."""


@dataclass(frozen=True)
class Options:
    """Every field is an option of ``python -m sglang_eagle31 bench``."""

    model: Path | None = None
    """None: the demo's."""
    head: Path = HEAD
    shape: Shape = Shape(3, 1, 4)
    arms: Sequence[str] = BUILT_IN
    prompts: Sequence[str] = NAMES
    concurrency: Sequence[int] = (1, 4, 16, 32, 64)
    rounds: int = 3
    tokens: int = 64
    requests: int | None = None
    identity: int = 16
    long_tokens: int = 1024
    speed_category: str | None = None
    device: str = "cpu"
    dtype: str = "bfloat16"
    keep: bool | None = None
    """None: on a CPU."""
    resume: bool = False
    out: Path = Path("build/bench.json")
    flags: Sequence[str] = ()
    """Of every server."""
    replay: Path | None = None
    limit: int | None = None
    speed: float = 1.0
    replay_arms: Sequence[Arm] = ()

    @property
    def kept(self) -> bool:
        """Whether all servers stay up."""
        return self.device == "cpu" if self.keep is None else self.keep

    def count(self, concurrency: int) -> int:
        """Requests of a cell."""
        return self.requests or max(FEWEST, min(2 * concurrency, MOST), concurrency)

    def server_flags(self, longest: int) -> list[str]:
        """Flags of every server; ``longest`` is the longest prompt with its answer, in tokens."""
        users = max(self.concurrency) or MOST
        found = ["--device", self.device, "--dtype", self.dtype, "--random-seed", "0"]
        found += ["--max-running-requests", str(users)]
        if self.device == "cpu":  # SGLang would take most of the memory for each server
            found += ["--max-total-tokens", str(max(8192, users * (longest + SLACK)))]
        return [*found, *self.flags]


def conditions(
    options: Options,
    argv: Sequence[str],
    model: Path,
    arms: Sequence[Arm],
    flags: Sequence[str],
    prompts: Mapping[str, Mapping[str, Any]],
    left_out: Mapping[str, str],
) -> dict[str, Any]:
    """Everything that the numbers depend on."""
    return {
        **provenance(argv),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "device": options.device,
        "dtype": options.dtype,
        "model": model.name,
        **({} if options.replay else head_facts(options)),
        "tokens": options.tokens,
        "requests": {str(n): options.count(n) for n in options.concurrency},
        "identity_prompts": options.identity,
        "rounds": options.rounds,
        "servers": "kept" if options.kept else "restarted",
        "server_flags": list(flags),
        "arms": {arm.name: list(arm.flags) for arm in arms},
        "left_out": dict(left_out),
        "prompts": dict(prompts),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def about(prompts: PromptSet) -> dict[str, Any]:
    """A prompt set among the conditions."""
    tokens = {"least": min(prompts.tokens), "median": round(median(prompts.tokens)), "most": max(prompts.tokens)}
    return {"count": len(prompts.chats), "digest": prompts.digest, "tokens": tokens}


def head_facts(options: Options) -> dict[str, Any]:
    """The head and its shape among the conditions."""
    file = options.head / "model.safetensors"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.is_file() else None
    return {"head": options.head.name, "head_sha256": digest, "shape": str(options.shape)}
