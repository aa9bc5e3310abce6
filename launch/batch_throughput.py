"""Throughput of no speculation, EAGLE3 and EAGLE31 with the same head, by concurrency, with sglang.benchmark.serving.

    python launch/batch_throughput.py [--rounds 3] [--concurrency 1 4 16] [--model DIR --head DIR]

One server runs at a time, and the three take turns round by round, so that a machine that slows down slows all of
them. The figures are medians over the rounds; every single one is in the JSON.
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

from sglang_eagle31.demo.client import load_prompts
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
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not record.is_file():
        raise RuntimeError(f"sglang.benchmark.serving failed:\n{(done.stdout + done.stderr)[-3000:]}")
    result: dict[str, Any] = json.loads(record.read_text().splitlines()[-1])
    if result["completed"] != number:
        raise RuntimeError(f"only {result['completed']} of {number} requests were answered; see {server.log_path}")
    return result


def run_rounds(args: argparse.Namespace, model: Path) -> list[dict[str, Any]]:
    """All measurements, in the order in which they were made."""
    dataset = args.out.with_name("bench_prompts.jsonl")
    number = write_dataset(dataset, args)
    rows = []
    for turn in range(1, args.rounds + 1):
        for algorithm in args.algorithms:
            say(f"round {turn} of {args.rounds}: {algorithm}")
            name = f"bench-{algorithm}"
            with serve_sglang(name, model, server_args(args, algorithm), log_dir=args.out.parent) as server:
                for concurrency in args.concurrency:
                    result = measure(server, model, dataset, number, concurrency)
                    row = {"round": turn, "algorithm": algorithm, "concurrency": concurrency}
                    row |= {
                        key: result[key] for key in ("output_throughput", "accept_length", "mean_tpot_ms", "duration")
                    }
                    say(f"  concurrency {concurrency}: {row['output_throughput']:.1f} tok/s")
                    rows.append(row)
    return rows


def medians(rows: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, float | None]]:
    """Medians over the rounds by algorithm and concurrency."""
    found: dict[tuple[str, int], dict[str, float | None]] = {}
    for key in dict.fromkeys((row["algorithm"], row["concurrency"]) for row in rows):
        group = [row for row in rows if (row["algorithm"], row["concurrency"]) == key]
        lengths = [row["accept_length"] for row in group if row["accept_length"]]
        found[key] = {
            "tok_s": statistics.median(row["output_throughput"] for row in group),
            "accept_length": statistics.median(lengths) if lengths else None,
        }
    return found


def table(found: dict[tuple[str, int], dict[str, float | None]], title: str) -> Table:
    """Throughput by algorithm and concurrency, and the ratio to no speculation."""
    view = Table("concurrency", "algorithm", "tok/s", "to none", "accept length", title=title)
    for (algorithm, concurrency), values in sorted(found.items(), key=lambda item: item[0][1]):
        base = found.get(("none", concurrency), {}).get("tok_s")
        tok_s, length = values["tok_s"], values["accept_length"]
        assert tok_s is not None
        ratio = f"{tok_s / base:.2f}x" if base else "-"
        view.add_row(str(concurrency), algorithm, f"{tok_s:.1f}", ratio, f"{length:.2f}" if length else "-")
    return view


def main() -> int:
    """Measure, write the JSON, print the table."""
    args = parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    model = args.model or prepare_model()
    try:
        rows = run_rounds(args, model)
    except ServerFailed as failure:
        print(failure, file=sys.stderr)
        return 2
    found = medians(rows)
    summary = [{"algorithm": name, "concurrency": number, **values} for (name, number), values in found.items()]
    options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    record = provenance(sys.argv) | {"options": options, "medians": summary, "rounds": rows}
    args.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    Console().print(table(found, f"medians of {args.rounds} rounds"))
    say(f"everything measured: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
