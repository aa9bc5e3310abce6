"""Serve one model with and without EAGLE31, send both the same chats, and compare the answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from tqdm import tqdm

from sglang_eagle31.tools.demo import report
from sglang_eagle31.tools.shared import counters
from sglang_eagle31.tools.shared.client import Messages, Run, chat_all, load_prompts
from sglang_eagle31.tools.shared.demo_model import HEAD, PROMPTS, no_head, prepare_model
from sglang_eagle31.tools.shared.provenance import provenance
from sglang_eagle31.tools.shared.same_answers import logits
from sglang_eagle31.tools.shared.same_answers.compare import Verdict
from sglang_eagle31.tools.shared.same_answers.judge import judge_all
from sglang_eagle31.tools.shared.same_answers.ties import TieRule, tie_rule
from sglang_eagle31.tools.shared.server_info import server_info
from sglang_eagle31.tools.shared.server_process import Server, serve_sglang


@dataclass(frozen=True)
class Options:
    """What to run; every field is an option of ``python -m sglang_eagle31 demo``."""

    tree: report.Tree
    head: Path = HEAD
    prompts: int | None = None
    """How many of the prompts; None takes all."""
    tokens: int = 128
    """Largest number of tokens of an answer."""
    concurrency: int = 1
    dtype: str = "bfloat16"
    device: str = "cpu"
    out: Path = Path("build/demo.json")

    def server_args(self) -> list[str]:
        """Arguments of both servers; on a GPU SGLang would give them other attention kernels, which round otherwise."""
        same = ["--attention-backend", "flashinfer"] if self.device == "cuda" else []
        return [
            *same,
            *("--device", self.device, "--dtype", self.dtype, "--random-seed", "0"),
            *("--max-total-tokens", "8192", "--max-running-requests", str(max(4, self.concurrency))),
        ]

    def speculative_args(self) -> list[str]:
        """Arguments of the server with EAGLE31 only."""
        return [
            *("--speculative-algorithm", "EAGLE31"),
            *("--speculative-draft-model-path", str(self.head)),
            *self.tree.flags(),
        ]


def run(options: Options, argv: Sequence[str]) -> int:
    """Run the demo; 0 if the answers are the same up to ties, else 1.

    Raises ValueError for options that cannot work and ServerFailed when a server does not come up.
    """
    console = Console(highlight=False)
    prompts = load_prompts(PROMPTS, options.prompts)
    if not (options.head / "config.json").is_file():
        raise ValueError(no_head(options.head))
    _say("1/3 model: SmolLM2-135M-Instruct, dequantised from Q4_1")
    model = prepare_model()
    rule = tie_rule(options.dtype, best_logit=logits.of_target(model, options.dtype))

    # EAGLE31 first: the server without speculation is then still up when it is asked about the other's answers.
    _say(f"2/3 with EAGLE31: head {options.head.name}")
    args = [*options.server_args(), *options.speculative_args()]
    log_dir = options.out.parent
    with serve_sglang("eagle31", model, args, log_dir=log_dir, console=console) as server:
        speculative = _answers(server, prompts, options)
        counted = counters.read(server_info(server.url))
    _say("3/3 without speculation")
    with serve_sglang("plain", model, options.server_args(), log_dir=log_dir, console=console) as server:
        plain = _answers(server, prompts, options)
        verdicts = _verdicts(server, plain, speculative, rule)

    result = provenance(argv) | report.summarise(plain, speculative, verdicts, options.tree)
    result["fallback_ratio"] = counted.fallback_ratio
    bounds = {"tie_bound": rule.answers_bound, "token_tie_bound": rule.bound}
    result |= {"dtype": options.dtype, **bounds, "concurrency": options.concurrency}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    console.print(report.render(result))
    _say(f"one server after the other, same prompts; everything measured: {options.out}")
    return 0 if result["identical"] else 1


def _say(text: str) -> None:
    print(f"[demo] {text}", flush=True)


def _answers(server: Server, prompts: Sequence[Messages], options: Options) -> Run:
    with tqdm(total=len(prompts), desc=server.name, unit="answer", file=sys.stdout) as bar:
        return chat_all(server.url, prompts, options.tokens, options.concurrency, bar.update)


def _verdicts(server: Server, plain: Run, speculative: Run, rule: TieRule) -> list[Verdict]:
    with tqdm(total=len(plain.answers), desc="every token", unit="answer", file=sys.stdout) as bar:
        return judge_all(server.url, plain.answers, speculative.answers, rule, bar.update)
