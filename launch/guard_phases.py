"""The guard where acceptance goes from good to dead and back: does it leave, what does it cost, does it return?

    python launch/guard_phases.py [--concurrency 4] [--turns 10]      writes docs/results/guard.json

Two servers of the demo model take turns batch by batch, one without speculation and one with the guard. In the phases
*good* they are asked questions. In the phase *dead* the same questions carry a logit bias that makes the target answer
with one token which the head's reduced vocabulary lacks: its drafts are all wrong, as those of a broken head. The
prompts, the work of the target and the length of the answers stay the same.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import requests
import torch
from safetensors import safe_open
from tqdm import tqdm

from sglang_eagle31.maths.shape import Shape
from sglang_eagle31.tools.bench.arms import NONE, Arm, built_in
from sglang_eagle31.tools.bench.turns import turns
from sglang_eagle31.tools.shared.client import load_prompts
from sglang_eagle31.tools.shared.counters import guards
from sglang_eagle31.tools.shared.demo_model import HEAD, PROMPTS, prepare_model
from sglang_eagle31.tools.shared.provenance import provenance
from sglang_eagle31.tools.shared.server_process import Server, serve_sglang

PHASES = ("good", "dead", "good again")
FLAGS = ("--device", "cpu", "--dtype", "bfloat16", "--random-seed", "0", "--max-total-tokens", "16384")


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--turns", type=int, default=10, help="batches of each phase (default: 10)")
    parser.add_argument("--tokens", type=int, default=64, help="length of an answer (default: 64)")
    parser.add_argument("--shape", type=Shape.parse, default=Shape.chain(3), help="configured shape (default: 3,1,4)")
    parser.add_argument("--out", type=Path, default=Path("docs/results/guard.json"))
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    phases = dict(measure(args))
    record = {"phases": phases, "conditions": {**provenance(sys.argv), **conditions(args)}}
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    for name, phase in phases.items():
        print(f"{name}: ratio {phase['ratio']:.3f} to no speculation; rounds {phase['rounds']}; {phase['running']}")
    return 0


def conditions(args: argparse.Namespace) -> dict[str, Any]:
    """What the figures depend on, beside versions."""
    named = {name: getattr(args, name) for name in ("concurrency", "turns", "tokens")}
    return {**named, "shape": str(args.shape), "head": HEAD.name, "server_flags": list(FLAGS)}


def measure(args: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each phase, one after the other, on the same two servers."""
    model = prepare_model()
    plain, guarded = built_in((NONE, "guard"), HEAD, args.shape)
    chats = [str(messages[-1]["content"]) for messages in load_prompts(PROMPTS)]
    users = str(args.concurrency)
    with turns(model, [*FLAGS, "--max-running-requests", users], Path("build/guard"), True, serve_sglang) as turn:
        for name in PHASES:
            bias = {str(unknown_token(HEAD)): 1e4} if name == "dead" else None
            yield name, phase(args, turn, (plain, guarded), chats, bias)


def phase(args: argparse.Namespace, turn: Any, arms: tuple[Arm, Arm], chats: list[str], bias: Any) -> dict[str, Any]:
    """Batches in turns; the guard's record after each."""
    ratios, running, counts = [], [], []
    for index in tqdm(range(args.turns)):
        texts = [chats[(index * args.concurrency + i) % len(chats)] for i in range(args.concurrency)]
        rates = {}
        for arm in arms if index % 2 else arms[::-1]:
            with turn(arm) as server:
                rates[arm.name] = rate(server, texts, args.tokens, bias)
                if arm.name != NONE:
                    record = guard(server)
        ratios.append(rates["guard"] / rates[NONE])
        running.append(record["running"])
        counts.append(record["rounds"])
    return {"ratio": median(ratios), "ratios": ratios, "rounds": counts, "running": running[-1], "runs": running}


def rate(server: Server, texts: list[str], tokens: int, bias: Any) -> float:
    """Output tokens per second of one batch."""
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, "logit_bias": bias}
    requests.post(f"{server.url}/flush_cache", timeout=60)
    start = perf_counter()
    answer = requests.post(f"{server.url}/generate", json={"text": texts, "sampling_params": sampling}, timeout=600)
    answer.raise_for_status()
    return tokens * len(texts) / (perf_counter() - start)


def guard(server: Server) -> dict[str, Any]:
    """Its record."""
    return guards(requests.get(f"{server.url}/server_info", timeout=60).json())[0]


def unknown_token(head: Path) -> int:
    """The last token that the head's vocabulary lacks."""
    with safe_open(head / "model.safetensors", framework="pt") as tensors:
        offsets = tensors.get_tensor("d2t")
    known = set((torch.arange(len(offsets)) + offsets).tolist())
    return max(set(range(max(known))) - known)


if __name__ == "__main__":
    sys.exit(main())
