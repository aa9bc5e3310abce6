"""What a running server has counted, from its ``/server_info``: the sum over its data-parallel schedulers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from sglang_eagle31.tools.shared.server_info import schedulers


def collect(info: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record of `meter.Meter.to_json` with the counts of all schedulers; None if none has counted a round.

    ``alarm`` is the first one that is raised, with ``schedulers``, the number of those that raise one.
    """
    records = [record for one in schedulers(info) if (record := one.get("acceptance"))]
    if not records:
        return None
    alarms = [record["alarm"] for record in records]
    raised = [alarm for alarm in alarms if alarm["cause"]]
    merged: dict[str, Any] = {}
    for record in records:
        merged = _add(merged, {key: value for key, value in record.items() if key != "alarm"})
    for part in (merged["total"], *merged["by_context"].values(), *merged["by_template"].values()):
        part["accept_length"] = 1 + part["accepted_tokens"] / part["drafts"] if part["drafts"] else None
    merged["requests"]["accept_length"]["upper_edges"] = records[0]["requests"]["accept_length"]["upper_edges"]
    return {**merged, "alarm": {**(raised or alarms)[0], "schedulers": len(raised)}}


def _add(one: Any, two: Any) -> Any:
    if isinstance(one, dict):
        return {
            key: _add(one[key], two[key]) if key in one and key in two else {**two, **one}[key]
            for key in {**one, **two}
        }
    if isinstance(one, list):
        return [left + right for left, right in zip_longest(one, two, fillvalue=0)]
    return two if one is None or isinstance(one, str) or two is None else one + two
