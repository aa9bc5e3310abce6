"""What a running server says of itself: the answer of ``/server_info``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import requests

TIMEOUT = 60.0
"""Seconds for an answer."""


def server_info(url: str, flag: str = "--url") -> dict[str, Any]:
    """The answer; raises ValueError where no SGLang server gives one, naming ``flag``."""
    try:
        response = requests.get(f"{url.rstrip('/')}/server_info", timeout=TIMEOUT)
        response.raise_for_status()
        info: dict[str, Any] = response.json()
    except (requests.RequestException, ValueError) as error:
        raise ValueError(
            f"{flag} {url}: no SGLang server answers /server_info there ({error}); "
            "fix: start it, or correct the address"
        ) from error
    return info


def schedulers(info: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What this package says of each data-parallel scheduler; empty records on servers without it."""
    return [state.get("eagle31") or {} for state in info.get("internal_states") or []]
