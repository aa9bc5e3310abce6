"""``--override KEY=VALUE``: what ``--eagle31-override`` is for a server, for every command that reads a head."""

from __future__ import annotations

import argparse

WHAT = "a fact about the head that its files leave open, as --eagle31-override of the server; repeatable"


def add_override(options: argparse._ActionsContainer, what: str = WHAT) -> None:
    """Add the option to a parser or a group, also under the server's name, for that is how reasons name it."""
    names = ("--override", "--eagle31-override")
    options.add_argument(*names, dest="override", action="append", default=[], metavar="KEY=VALUE", help=what)
