"""Throughput of no speculation, EAGLE3 and EAGLE31 with the same head, by concurrency, with sglang.benchmark.serving.

    python launch/batch_throughput.py [--rounds 3] [--concurrency 1 4 16] [--model DIR --head DIR]

One server runs at a time, and the three take turns round by round, so that a machine that slows down slows all of
them. The figures are medians over the rounds, ratios too; every single one is in the JSON. In the first round the
prompts are also answered one by one, untimed, for the exact accept length and to compare the tokens of EAGLE31 and
EAGLE3.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from sglang_eagle31.demo.client import Run, chat_all, load_prompts
from sglang_eagle31.demo.compare import accept_length
from sglang_eagle31.demo.model import prepare_model
from sglang_eagle31.demo.report import Tree, provenance
from sglang_eagle31.demo.run import HEAD, PROMPTS
from sglang_eagle31.demo.servers import Server, ServerFailed, serve_sglang

ALGORITHMS = ("none", "EAGLE3", "EAGLE31")


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="target (default: the demo model, prepared on first use)")
    parser.add_argument("--head", type=Path, default=HEAD, help="draft head (default: the demo model's)")
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=ALGORITHMS)
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--rounds", type=int, default=3, help="turns of each algorithm (default: 3)")
    parser.add_argument("--prompts", type=int, help="use the first N prompts only (default: all)")
    parser.add_argument("--tokens", type=int, default=128, help="longest answer (default: 128)")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--topk", type=int, default=1)
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--out", type=Path, default=Path("build/throughput.json"))
    return parser.parse_args()


def say(text: str) -> None:
    """One plain line of progress."""
    print(f"[bench] {text}", flush=True)


def server_args(args: argparse.Namespace, algorithm: str) -> list[str]:
    """Flags of one server; the three differ in the speculative ones only."""
    flags = ["--device", args.device, "--dtype", args.dtype, "--random-seed", "0"]
    flags += ["--max-running-requests", str(max(args.concurrency)), "--max-total-tokens", "16384"]
    if algorithm != "none":
        flags += ["--speculative-algorithm", algorithm, "--speculative-draft-model-path", str(args.head)]
        flags += Tree(args.steps, args.topk, args.draft_tokens).flags()
    return flags


def write_dataset(path: Path, args: argparse.Namespace) -> int:
    """The prompts as chat requests, in the form that the benchmark reads; returns their number."""
    prompts = load_prompts(PROMPTS, args.prompts)
    rows = [{"messages": messages, "max_tokens": args.tokens} for messages in prompts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return len(prompts)


def measure(server: Server, model: Path, dataset: Path, number: int, concurrency: int) -> dict[str, Any]:
    """One run of sglang.benchmark.serving; returns its own record."""
    record = dataset.with_name("bench_serving.jsonl")
    record.unlink(missing_ok=True)
    command = [sys.executable, "-m", "sglang.benchmark.serving", "--backend", "sglang-oai-chat"]
    command += ["--base-url", server.url, "--model", str(model), "--flush-cache", "--disable-ignore-eos"]
    command += ["--dataset-name", "openai", "--dataset-path", str(dataset), "--num-prompts", str(number)]
    command += ["--max-concurrency", str(concurrency), "--output-file", str(record)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # its progress bar is on stderr
    if done.returncode != 0 or not record.is_file():
        raise RuntimeError(f"sglang.benchmark.serving failed (see above):\n{done.stdout[-3000:]}")
    result: dict[str, Any] = json.loads(record.read_text().splitlines()[-1])
    if result["completed"] != number:
        raise RuntimeError(f"only {result['completed']} of {number} requests were answered; see {server.log_path}")
    return result


def run_rounds(args: argparse.Namespace, model: Path) -> tuple[list[dict[str, Any]], dict[str, Run]]:
    """All measurements, in the order in which they were made, and the answers of each algorithm that speculates."""
    dataset = args.out.with_name("bench_prompts.jsonl")
    number = write_dataset(dataset, args)
    rows: list[dict[str, Any]] = []
    answers: dict[str, Run] = {}
    for turn in range(1, args.rounds + 1):
        for algorithm in args.algorithms:
            say(f"round {turn} of {args.rounds}: {algorithm}")
            name = f"bench-{algorithm}"
            with serve_sglang(name, model, server_args(args, algorithm), log_dir=args.out.parent) as server:
                for concurrency in args.concurrency:
                    result = measure(server, model, dataset, number, concurrency)
                    row = {"round": turn, "algorithm": algorithm, "concurrency": concurrency}
                    row["tok_s"] = result["output_throughput"]
                    row |= {key: result[key] for key in ("mean_tpot_ms", "mean_ttft_ms", "duration")}
                    say(f"  concurrency {concurrency}: {row['tok_s']:.1f} tok/s")
                    rows.append(row)
                if turn == 1 and algorithm != "none":
                    answers[algorithm] = ask(server, args)
    return rows, answers


def ask(server: Server, args: argparse.Namespace) -> Run:
    """The answer to every prompt, one by one."""
    prompts = load_prompts(PROMPTS, args.prompts)
    with tqdm(total=len(prompts), desc=f"{server.name}: tokens", unit="answer") as bar:
        return chat_all(server.url, prompts, args.tokens, 1, bar.update)


def medians(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over the rounds by concurrency and algorithm: throughput, and its ratio to the others' of that round."""
    at = {(row["round"], row["algorithm"], row["concurrency"]): row["tok_s"] for row in rows}
    found = []
    for concurrency, algorithm in sorted(
        {(c, a) for _, a, c in at}, key=lambda key: (key[0], ALGORITHMS.index(key[1]))
    ):
        turns = sorted({turn for turn, a, c in at if (a, c) == (algorithm, concurrency)})
        entry: dict[str, Any] = {"concurrency": concurrency, "algorithm": algorithm}
        entry["tok_s"] = statistics.median(at[turn, algorithm, concurrency] for turn in turns)
        for other in ("none", "EAGLE3"):
            if (1, other, concurrency) in at and ALGORITHMS.index(other) < ALGORITHMS.index(algorithm):
                ratios = [at[turn, algorithm, concurrency] / at[turn, other, concurrency] for turn in turns]
                entry[f"to_{other}"] = statistics.median(ratios)
        found.append(entry)
    return found


def acceptance(answers: dict[str, Run]) -> dict[str, Any]:
    """Accept length by algorithm, and whether EAGLE31 and EAGLE3 gave the same tokens."""
    found: dict[str, Any] = {}
    for name, run in answers.items():
        counts = [len(answer.token_ids) for answer in run.answers]
        found[name] = accept_length(counts, [answer.verify_steps for answer in run.answers])
    if {"EAGLE3", "EAGLE31"} <= answers.keys():
        ours, theirs = answers["EAGLE31"].answers, answers["EAGLE3"].answers
        found["same_tokens"] = [a.token_ids for a in ours] == [a.token_ids for a in theirs]
    return found


def table(found: list[dict[str, Any]], accepted: dict[str, Any], rounds: int) -> Table:
    """Throughput by concurrency and algorithm."""
    view = Table("concurrency", "algorithm", "tok/s", "to none", "to EAGLE3", "accept length")
    view.title = f"medians of {rounds} rounds" if rounds > 1 else "one round"
    for entry in found:
        ratios = [f"{entry[key]:.2f}x" if key in entry else "" for key in ("to_none", "to_EAGLE3")]
        length = accepted.get(entry["algorithm"])
        shown = f"{length:.2f}" if length else ""
        view.add_row(str(entry["concurrency"]), entry["algorithm"], f"{entry['tok_s']:.1f}", *ratios, shown)
    return view


def main() -> int:
    """Measure, write the JSON, print the table."""
    args = parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    model = args.model or prepare_model()
    try:
        rows, answers = run_rounds(args, model)
    except ServerFailed as failure:
        print(failure, file=sys.stderr)
        return 2
    found, accepted = medians(rows), acceptance(answers)
    options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    record = provenance(sys.argv) | {"options": options, "medians": found, "acceptance": accepted, "rounds": rows}
    args.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    Console().print(table(found, accepted, args.rounds))
    if "same_tokens" in accepted:
        say(f"EAGLE31 and EAGLE3 gave the same tokens: {'yes' if accepted['same_tokens'] else 'NO'}")
    say(f"everything measured: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
