"""Which cases `make test` runs: one of each kind; `make test-all` runs them all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def core(values: Iterable[Any], keep: Collection[Any], unpack: bool = False) -> list[Any]:
    """Values for ``parametrize``, of one name or (``unpack``) of several; those not kept carry the mark ``full``.

    Raises:
        ValueError: one to keep is not among the values.
    """
    found = list(values)
    missing = [value for value in keep if value not in found]
    if missing:
        raise ValueError(f"{missing[0]!r} is not among the cases")
    marks = [() if value in keep else pytest.mark.full for value in found]
    return [pytest.param(*(value if unpack else [value]), marks=mark) for value, mark in zip(found, marks, strict=True)]
