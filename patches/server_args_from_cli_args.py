"""Our options out of the parsed command line.

Target: sglang.srt.server_args.ServerArgs.from_cli_args
Why: ServerArgs has no field for options of a plugin.
How: after SGLang built the record, our options are kept on it beside its fields, where SGLang keeps its own
    bookkeeping, so that they travel to every child process with it. `sgl.Engine(...)` has no command line: it reads one
    environment variable.
Upstream: SGLang has no hook for options of plugins (0.5.23). `prepare_server_args` cannot be hooked: it is imported by
    name before plugins load, while this method is looked up on the class at call time.
Remove when: SGLang lets a plugin declare server arguments.
"""

from __future__ import annotations

import argparse
from typing import Any

from sglang_eagle31.patches._seam import Seam


def keep_options(result: Any, cls: Any, args: argparse.Namespace) -> None:
    """AFTER hook: keep our options on the record."""
    from sglang_eagle31.server.options import Eagle31Config

    Eagle31Config.from_namespace(args).attach(result)


SEAM = Seam("sglang.srt.server_args.ServerArgs.from_cli_args", ("args",), "AFTER", "server", keep_options)
