"""The process that sends the load: ``sglang.benchmark.serving``, imported once and run for every cell.

Reads a JSON list of its arguments a line from stdin, and answers a line: null, or what went wrong. What it prints goes
to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import traceback


def main() -> None:
    """Answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from sglang.benchmark import serving

    print(json.dumps(None), file=answers, flush=True)
    for line in sys.stdin:
        sys.argv = ["sglang.benchmark.serving", *json.loads(line)]
        error = None
        try:
            serving.cli_main()
        except SystemExit as leaving:
            error = f"exit status {leaving.code}" if leaving.code else None
        except Exception:  # whatever it was, the parent raises it
            error = traceback.format_exc()
        print(json.dumps(error), file=answers, flush=True)


if __name__ == "__main__":
    main()
