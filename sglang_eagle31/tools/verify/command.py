"""``verify``: is the output with speculation what it is without: samplers' distribution, and answers of two servers."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

HELP = "show that speculation leaves the output alone: sampled distributions, and greedy answers token by token"
EPILOG = (
    "Exit status: 0 the same, 1 different (or a control was not found), 2 a mistake or a server that cannot be "
    "compared, 3 the same but for ties, 130 interrupted."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.epilog = EPILOG
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--distribution", action="store_true", help="test the CPU server's samplers; needs no server")
    what.add_argument("--requests", type=Path, metavar="FILE", help="replay a JSONL of /generate or chat bodies")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/verify"),
        metavar="DIR",
        help="for JSON and logs (default: build/verify)",
    )

    group = parser.add_argument_group("with --distribution")
    group.add_argument(
        "--steps", type=int, default=50_000, metavar="N", help="speculative steps a case, at least (default: 50000)"
    )
    group.add_argument("--seed", type=int, default=0, help="of tables and coins (default: 0)")
    group.add_argument("--only", metavar="TEXT", help="only cases whose name has this in it (rule, tree, drafter, ...)")

    group = parser.add_argument_group("with --requests: two servers that run")
    group.add_argument("--url", metavar="URL", help="the server with speculation")
    group.add_argument("--baseline", metavar="URL", help="the server without")
    group.add_argument("--any-servers", action="store_true", help="compare whatever these two servers are")
    group = parser.add_argument_group("with --requests: two servers that are started here, one after the other")
    group.add_argument("--target", type=Path, metavar="DIR", help="the target model")
    group.add_argument("--head", type=Path, metavar="DIR", help="its draft head")
    group.add_argument(
        "server_flags", nargs="*", metavar="-- FLAG ...", help="after --: SGLang's flags, --speculative-* for the first"
    )
    group = parser.add_argument_group("with --requests")
    group.add_argument("--greedy", action="store_true", help="send every request with temperature 0")
    group.add_argument("--limit", type=int, metavar="N", help="only the first N requests")
    group.add_argument("--concurrency", type=int, default=1, metavar="N", help="requests at a time (default: 1)")
    group.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds for a request (default: 600)")
    group.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="for ties (default: as served)")
    group.add_argument(
        "--logit-magnitude", type=float, metavar="X", help="size of the largest logits, for ties (default: 16)"
    )


def run(args: argparse.Namespace) -> int:
    """Run one of the two, print its table and write its JSON."""
    from sglang_eagle31.tools.shared.same_answers.logprobs import NotTold
    from sglang_eagle31.tools.shared.server_process import ServerFailed

    try:
        return _distribution(args) if args.distribution else _identity(args)
    except (ServerFailed, NotTold) as failure:
        print(failure, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130


def _distribution(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from sglang_eagle31.tools.verify import cases, distribution
    from sglang_eagle31.tools.verify.report import render_distribution
    from sglang_eagle31.tools.verify.served import RULES, sglang_draw

    if args.server_flags:
        raise ValueError(f"{' '.join(args.server_flags)}: --distribution starts no server; fix: leave it out")
    if args.steps < 1000:
        raise ValueError(f"--steps {args.steps}: too few to tell anything; fix: 50000, as the default has it")
    chosen = [case for case in cases.cases() if not args.only or args.only in case.name]
    controls = cases.controls()
    if not chosen:
        raise ValueError(f"--only {args.only}: no case has this in its name; fix: for example tree, reduced, or T 0.3")
    with tqdm(total=len(chosen) + len(controls), desc="cases", unit="case", file=sys.stdout) as bar:
        verdict = distribution.run(chosen, controls, RULES, args.steps, args.seed, sglang_draw, bar.update)
    record = {"seed": args.seed, "steps_a_case": args.steps, "only": args.only, **verdict.to_json()}
    _write(args.out / "distribution.json", record)
    _print(render_distribution(verdict), args.out / "distribution.json")
    return 0 if verdict.passed else 1


def _identity(args: argparse.Namespace) -> int:
    from sglang_eagle31.tools.verify import identity_run
    from sglang_eagle31.tools.verify.report import render_identity

    addresses, folders = (args.url, args.baseline), (args.target, args.head)
    if not (all(addresses) and not any(folders)) and not (all(folders) and not any(addresses)):
        raise ValueError(
            "--requests needs two servers; fix: --url and --baseline, or --target and --head to start them here"
        )
    if args.server_flags and not all(folders):
        raise ValueError(f"{' '.join(args.server_flags)}: flags for servers that run already; fix: --target and --head")
    for flag, least in (("concurrency", 1), ("timeout", 1e-3), ("logit_magnitude", 1e-6)):
        value = getattr(args, flag)
        if value is not None and value < least:
            raise ValueError(f"--{flag.replace('_', '-')} {value}: expected a positive number; fix: leave it out")
    more = {} if args.logit_magnitude is None else {"logit_magnitude": args.logit_magnitude}
    options = identity_run.Options(
        requests=args.requests,
        url=args.url and args.url.rstrip("/"),
        baseline=args.baseline and args.baseline.rstrip("/"),
        target=args.target,
        head=args.head,
        server_flags=args.server_flags,
        any_servers=args.any_servers,
        greedy=args.greedy,
        limit=args.limit,
        concurrency=args.concurrency,
        timeout=args.timeout,
        dtype=args.dtype,
        out=args.out,
        **more,
    )
    identity = identity_run.run(options, _console())
    _write(args.out / "identity.json", {"concurrency": args.concurrency, **identity.to_json()})
    _print(render_identity(identity), args.out / "identity.json")
    return identity.status


def _write(path: Path, record: dict[str, object]) -> None:
    from sglang_eagle31.tools.shared.provenance import provenance

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**provenance(sys.argv), **record}, indent=1) + "\n", encoding="utf-8")


def _print(what: RenderableType, path: Path) -> None:
    console = _console()
    console.print(what)
    console.print(f"everything: {path}", markup=False)


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 140)
