"""Our options in SGLang's own parser.

Target: sglang.srt.server_args.ServerArgs.add_cli_args
Why: `launch_server` refuses unknown flags, so `--eagle31-*` must be known to its parser to be used and
    to show in `--help`.
How: after SGLang added its flags, an argument group of ours is added to the same parser.
Upstream: SGLang has no hook for options of plugins (0.5.23).
Remove when: SGLang lets a plugin declare server arguments.
"""

from __future__ import annotations

import argparse

from sglang_eagle31.patches._seam import Seam


def add_options(result: None, parser: argparse.ArgumentParser) -> None:
    """AFTER hook: add the EAGLE 3.1 group to SGLang's parser."""
    from sglang_eagle31.server.options import add_arguments

    add_arguments(parser)


SEAM = Seam("sglang.srt.server_args.ServerArgs.add_cli_args", ("parser",), "AFTER", "server", add_options)
