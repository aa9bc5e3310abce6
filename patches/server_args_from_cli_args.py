"""Our options out of the parsed command line.

Target: sglang.srt.server_args.ServerArgs.from_cli_args
Why: ServerArgs has no field for options of a plugin, and child processes must see them.
How: before SGLang builds ServerArgs, our options are taken from the namespace into one environment variable (JSON),
    which every child process inherits and which `sgl.Engine(...)` users can set themselves.
Upstream: SGLang has no hook for options of plugins (0.5.23). `prepare_server_args` cannot be hooked: it is imported by
    name before plugins load, while this method is looked up on the class at call time.
Remove when: SGLang lets a plugin declare server arguments.
"""

from __future__ import annotations

import argparse
from typing import Any

from sglang_eagle31.patches._seam import Seam


def take_options(cls: Any, args: argparse.Namespace) -> None:
    """BEFORE hook: keep our options where every process finds them."""
    from sglang_eagle31.config import Eagle31Config

    Eagle31Config.from_namespace(args).export()


SEAM = Seam("sglang.srt.server_args.ServerArgs.from_cli_args", ("args",), "BEFORE", "server", take_options)
