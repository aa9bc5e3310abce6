"""The feature matrix: every row with a chain and with a tree against no speculation, and its part of a document.

python tests/integration/matrix_report.py            run everything, write docs/results/compatibility.json and render
python tests/integration/matrix_report.py --render   the generated part of docs/compatibility.md from the JSON
python tests/integration/matrix_report.py --check    exit 1 when that part is not what the JSON says
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS, DOCUMENT = ROOT / "docs/results/compatibility.json", ROOT / "docs/compatibility.md"
Row = dict[str, Any]
GOOD = ("identical", "same law", "refused")


def run(only: Sequence[str] = (), at_once: int = 1) -> list[Row]:
    """The rows of every group, or of those named, into the JSON; those of other groups stay. Returns the new ones."""
    import matrix_model
    from checkpoint_report import header
    from conftest import COMMON, ENV
    from forked import ForkParent
    from matrix_run import CASES, MODES, NO_COMPILER, groups, rows

    names = [group for group in groups(CASES) if not only or group in only]
    kept = json.loads(RESULTS.read_text())["rows"] if only and RESULTS.is_file() else []
    found = {row["flags"]: [r for r in kept if r["flags"] == row["flags"]] for row in kept}
    told = {**header(), "argv": ["tests/integration/matrix_report.py", *sys.argv[1:]], "server": list(COMMON)}
    told |= {"trees": MODES, "environment": NO_COMPILER}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        folders = matrix_model.write(folder)
        parent = ForkParent(folder / "parent.log", {**ENV, **NO_COMPILER})
        try:
            for group in names:
                found[group] = rows(group, folders, folder, parent.launch, at_once=at_once)
                ordered = [row for name in groups(CASES) for row in found.get(name, ())]
                RESULTS.write_text(json.dumps({"header": told, "rows": ordered}, indent=1, ensure_ascii=False) + "\n")
        finally:
            parent.close()
    return [row for group in names for row in found[group]]


def main() -> int:
    """Entry point; 1 too when a row of this run differs."""
    from matrix_document import placed

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--render", action="store_true", help="write the generated part from the JSON")
    parser.add_argument("--check", action="store_true", help="compare that part with the JSON")
    parser.add_argument("--only", nargs="+", default=[], metavar="GROUP", help="run these, leave the other results")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="servers that run at a time (1 to 3)")
    args = parser.parse_args()
    bad: list[str] = []
    if not (args.render or args.check):
        started = time.monotonic()
        rows = run(args.only, args.at_once)
        bad = [
            f"{row['feature']}: {row['name']}, {m}: {row[m]}"
            for row in rows
            for m in ("chain", "tree")
            if is_bad(row[m])
        ]
        print(f"[features] {len(rows)} rows after {time.monotonic() - started:.0f} s", *bad, sep="\n")
    before = DOCUMENT.read_text()
    after = placed(before, json.loads(RESULTS.read_text()))
    if args.check and before != after:
        print(
            f"{DOCUMENT.relative_to(ROOT)} is stale: run {Path(__file__).relative_to(ROOT)} --render", file=sys.stderr
        )
        return 1
    if not args.check:
        DOCUMENT.write_text(after)
    return int(bool(bad))


def is_bad(found: Row) -> bool:
    """Whether a cell is neither the same nor SGLang's own refusal."""
    return found["outcome"] not in GOOD


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/integration")]
    sys.exit(main())
