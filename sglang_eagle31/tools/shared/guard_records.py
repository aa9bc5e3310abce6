"""What the guard of a running server tells in `/server_info`: which shapes it can run, and what it has counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from sglang_eagle31.maths.expected import Floats
from sglang_eagle31.maths.shape import Shape
from sglang_eagle31.tools.shared import counters

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Limits:
    """What may be pinned.

    Attributes:
        configured: the shape of the flags, which bounds the others.
        listed: the prepared shapes that draft.
        any: whether every smaller shape can be pinned too.
        mode: of the guard: on or observe.
        schedulers: of data parallelism, among which requests are divided.
    """

    configured: Shape
    listed: tuple[Shape, ...]
    any: bool
    mode: str
    schedulers: int = 1


@dataclass(frozen=True)
class Counts:
    """Sums over schedulers since the server's start, and typical seconds of recent rounds.

    Attributes:
        plain: rounds without a draft.
        drafted: rounds with one.
        tried: ``[D, K]`` as in `guard.evidence`.
        hit: ``[D, K]``.
        seconds: of a whole round, by shape and batch size.
    """

    plain: int
    drafted: int
    tried: Floats
    hit: Floats
    seconds: Mapping[Shape, Mapping[int, float]]


def guards(info: Mapping[str, Any], url: str) -> Sequence[Record]:
    """The guard's record of each scheduler.

    Raises ValueError for a server that does not run EAGLE31, for one whose guard is off, and for one that cannot run a
    round without a draft, to which all is compared.
    """
    records = counters.guards(info)
    if records and records[0]["mode"] == "observe" and not records[0]["any"]:
        raise ValueError(
            f"--url {url}: on this device no other shape can be run while the guard only observes; fix: start it with "
            "--eagle31-guard on and --speculative-eagle-topk 1"
        )
    if records and records[0]["mode"] != "off":
        return records
    if not info.get("eagle31"):
        runs = info.get("speculative_algorithm") or "no speculation"
        raise ValueError(
            f"--url {url}: this server runs {runs}, whose draft shape cannot be changed while it runs; "
            "fix: start it with --speculative-algorithm EAGLE31"
        )
    raise ValueError(
        f"--url {url}: this server runs EAGLE31 without a guard that times rounds; fix: start it with --eagle31-guard "
        "observe or on, and see its log if it says why the guard is off"
    )


def limits(records: Sequence[Record]) -> Limits:
    """From `guards`; all schedulers have the same flags."""
    one = records[0]
    return Limits(
        Shape.parse(one["configured"]),
        tuple(Shape.parse(text) for text in one["shapes"]),
        bool(one["any"]),
        str(one["mode"]),
        len(records),
    )


def counts(records: Sequence[Record]) -> Counts:
    """From `guards`: sums, and medians over schedulers."""
    cells: dict[Shape, dict[int, list[float]]] = {}
    for record in records:
        for text, sizes in record["seconds"].items():
            for batch, seconds in sizes.items():
                cells.setdefault(Shape.parse(text), {}).setdefault(int(batch), []).append(float(seconds))
    return Counts(
        sum(record["rounds"]["plain"] for record in records),
        sum(record["rounds"]["drafted"] for record in records),
        np.sum([np.asarray(record["tried"], np.float64) for record in records], 0),
        np.sum([np.asarray(record["hit"], np.float64) for record in records], 0),
        {shape: {batch: median(some) for batch, some in sizes.items()} for shape, sizes in cells.items()},
    )
