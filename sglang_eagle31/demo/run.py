"""Serve one model with and without EAGLE31, send both the same chats, and compare the answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from tqdm import tqdm

from sglang_eagle31.bench import counters
from sglang_eagle31.demo import report
from sglang_eagle31.demo.client import Answer, Messages, Run, chat_all, load_prompts, next_token
from sglang_eagle31.demo.compare import Difference, Verdict, judge, settle, tie_bound
from sglang_eagle31.demo.logits import best_logit
from sglang_eagle31.demo.model import prepare_model
from sglang_eagle31.demo.servers import Server, serve_sglang
from sglang_eagle31.served import server_info

PROMPTS = Path(__file__).parent / "prompts.jsonl"
HEAD = Path(__file__).resolve().parents[2] / "launch" / "heads" / "smollm2-135m-eagle31"


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
    bound = tie_bound(options.dtype)
    prompts = load_prompts(PROMPTS, options.prompts)
    if not (options.head / "config.json").is_file():
        raise ValueError(no_head(options.head))
    _say("1/3 model: SmolLM2-135M-Instruct, dequantised from Q4_1")
    model = prepare_model()

    # EAGLE31 first: where an answer differs, the server without speculation is then still up and can be asked why.
    _say(f"2/3 with EAGLE31: head {options.head.name}")
    args = [*options.server_args(), *options.speculative_args()]
    log_dir = options.out.parent
    with serve_sglang("eagle31", model, args, log_dir=log_dir, console=console) as server:
        speculative = _answers(server, prompts, options)
        counted = counters.read(server_info(server.url))
    _say("3/3 without speculation")
    with serve_sglang("plain", model, options.server_args(), log_dir=log_dir, console=console) as server:
        plain = _answers(server, prompts, options)
        verdicts = judge_all(server.url, plain, speculative, bound)
    verdicts = settle_all(model, options.dtype, plain, verdicts)

    result = report.provenance(argv) | report.summarise(plain, speculative, verdicts, options.tree)
    result["fallback_ratio"] = counted.fallback_ratio
    result |= {"dtype": options.dtype, "tie_bound": bound, "concurrency": options.concurrency}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    console.print(report.render(result))
    _say(f"one server after the other, same prompts; everything measured: {options.out}")
    return 0 if result["identical"] else 1


def no_head(head: Path) -> str:
    """What to say of a folder without a head; the head that comes with this is not part of an installed package."""
    if head == HEAD:
        return f"{head}: the demo's head is only in a clone of the repository; fix: --head DIR, or run it in a clone"
    return f"--head {head}: holds no config.json; fix: the folder of an EAGLE-3 or 3.1 head"


def _say(text: str) -> None:
    print(f"[demo] {text}", flush=True)


def _answers(server: Server, prompts: Sequence[Messages], options: Options) -> Run:
    with tqdm(total=len(prompts), desc=server.name, unit="answer", file=sys.stdout) as bar:
        return chat_all(server.url, prompts, options.tokens, options.concurrency, bar.update)


def judge_all(url: str, plain: Run, speculative: Run, bound: float) -> list[Verdict]:
    """Verdict for each prompt; ``url`` is of the server without speculation, where the logits are looked up.

    Raises RuntimeError where the prompts of the two are not the same tokens.
    """
    return [_judge(url, a, b, bound) for a, b in zip(plain.answers, speculative.answers, strict=True)]


def settle_all(model: Path, dtype: str, plain: Run, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts, those on differences with the logits at that place, which the target in ``model`` is asked for."""

    def settled(answer: Answer, verdict: Verdict) -> Verdict:
        ids = [*answer.prompt_ids, *answer.token_ids]
        return settle(verdict, dtype, lambda index: best_logit(model, dtype, ids[: len(answer.prompt_ids) + index]))

    return [settled(answer, verdict) for answer, verdict in zip(plain.answers, verdicts, strict=True)]


def _judge(url: str, plain: Answer, speculative: Answer, bound: float) -> Verdict:
    if plain.prompt_ids != speculative.prompt_ids:
        raise RuntimeError(f"the servers tokenised the prompt {plain.prompt[:60]!r} differently")

    def look_up(difference: Difference) -> tuple[float, float, float]:
        assert difference.plain is not None and difference.speculative is not None
        prefix = plain.prompt_ids + plain.token_ids[: difference.index]
        found = next_token(url, prefix, (difference.plain, difference.speculative), top=5)
        return found.top[0], found.wanted[difference.plain], found.wanted[difference.speculative]

    return judge(plain.token_ids, speculative.token_ids, look_up, bound)
