"""The whole matrix: every case through EAGLE31 and through stock SGLang's EAGLE3, and docs/checkpoints.md from it.

python tests/integration/checkpoint_report.py             run everything, write docs/results/checkpoints.json and render
python tests/integration/checkpoint_report.py --render    the document from the JSON
python tests/integration/checkpoint_report.py --check     exit 1 when the document is not what the JSON says
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[2]
RESULTS, DOCUMENT = ROOT / "docs/results/checkpoints.json", ROOT / "docs/checkpoints.md"
Row = dict[str, Any]


def run(only: Iterable[str] = ()) -> list[str]:
    """Every case, or those named, into the JSON; what is there of other cases stays, in the order of the cases.

    Returns:
        what is wrong, a line each.
    """
    import markers
    from checkpoint_cases import cases
    from checkpoint_matrix import disagreement, problems, row
    from checkpoint_run import fork_parent

    wanted, every = set(only), cases()
    before = json.loads(RESULTS.read_text()) if wanted else {"header": header(), "cases": []}
    rows = {row["name"]: row for row in before["cases"]}
    chosen, wrong = [case for case in every if not wanted or case.name in wanted], []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        target = markers.write_target(folder / "target")
        with fork_parent(folder / "parent.log") as parent:
            for case in tqdm(chosen, unit="head"):
                found = rows[case.name] = row(case, parent, target, folder)
                results = {**before, "cases": [rows[c.name] for c in every if c.name in rows]}
                RESULTS.write_text(json.dumps(results, indent=1) + "\n")
                told = [*problems(case, found["ours"]), *filter(None, [disagreement(found["sglang"])])]
                wrong += [f"{case.name}: {text}" for text in told]
    return wrong


def header() -> dict[str, Any]:
    """On what the results were measured."""
    from checkpoint_run import FILLED, FLAGS

    from sglang_eagle31.tools.audit.engines.vllm import VERSION

    describe = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    sha = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return {
        "versions": {name: version(name) for name in ("sglang", "torch", "transformers")} | {"vllm (read)": VERSION},
        "python": platform.python_version(),
        "cpu": cpu_model(),
        "commit": sha,
        "argv": ["tests/integration/checkpoint_report.py", *sys.argv[1:]],
        "server": list(FLAGS),
        "environment": FILLED,
    }


def cpu_model() -> str:
    """As /proc/cpuinfo names it."""
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    return found[1] if found else platform.processor()


def main() -> int:
    """1 where EAGLE31 runs a head wrongly or refuses it late, or stock SGLang does other than ``audit`` says."""
    from checkpoint_document import render

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--render", action="store_true", help="write the document from the JSON")
    parser.add_argument("--check", action="store_true", help="compare the document with the JSON")
    parser.add_argument("--only", nargs="+", default=[], metavar="CASE", help="run these, leave the other results")
    args = parser.parse_args()
    wrong = [] if args.render or args.check else run(args.only)
    for line in wrong:
        print(f"[checkpoints] {line}", file=sys.stderr)
    text = render(json.loads(RESULTS.read_text()))
    if args.check:
        if DOCUMENT.is_file() and DOCUMENT.read_text() == text:
            return 0
        print(
            f"{DOCUMENT.relative_to(ROOT)} is stale: run {Path(__file__).relative_to(ROOT)} --render", file=sys.stderr
        )
        return 1
    DOCUMENT.write_text(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/integration")]
    sys.exit(main())
