"""Command line: each tool's ``command.py`` has ``HELP``, ``add_arguments(parser)`` and ``run(args) -> int``.

Help of all reads every module, so that each imports its libraries in ``run`` and not before.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

from sglang_eagle31 import __version__

COMMANDS = {
    "audit": "audit.command",
    "bench": "bench.command",
    "convert": "convert.command",
    "data": "train.data_command",
    "demo": "demo.command",
    "doctor": "doctor.command",
    "drift": "drift.command",
    "robust": "robust.command",
    "train": "train.command",
    "tune": "tune.command",
    "verify": "verify.command",
}
"""Name to module in this package."""


def load(name: str) -> ModuleType:
    """The module of a command."""
    return importlib.import_module(f"{__package__}.{COMMANDS[name]}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; a user's mistake (ValueError, OSError) is printed without a traceback: exit status 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="python -m sglang_eagle31", description="Draft heads for stock SGLang.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    asked = [name for name in COMMANDS if name in arguments[:1]] or list(COMMANDS)  # only what is needed is imported
    for name in asked:
        module = load(name)
        command = commands.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(command)
        command.set_defaults(run=module.run, fail=command.error)
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        args.fail(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        status: int = args.run(args)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error}; fix: check the path, its permissions and the space left", file=sys.stderr)
        return 2
    return status
