"""Help texts that end with the option's default."""

from __future__ import annotations

import argparse


class Defaults(argparse.ArgumentDefaultsHelpFormatter):
    """As argparse's, but silent where there is no default or the text states it in words."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        unset = action.default is None or action.default is False or action.default == []
        if unset or "(default" in (action.help or ""):
            return action.help
        return super()._get_help_string(action)
