"""The record of a live server, from its ``/server_info``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_eagle31.server.probe.record import Record
from sglang_eagle31.tools.shared.server_info import schedulers


def collect(info: Mapping[str, Any], url: str) -> tuple[Record, dict[str, Any]]:
    """Records of all schedulers of a server, merged, and what runs.

    Args:
        info: the server's answer.
        url: for messages.

    Raises:
        ValueError: the server has no probe, or has recorded nothing.
    """
    probes = [one["drift"] for one in schedulers(info) if "drift" in one]
    if not probes:
        raise ValueError(f"--url {url}: the server has no drift probe; fix: start it with --eagle31-drift-sample 0.05")
    record = Record()
    for probe in probes:
        record.merge(Record.from_json(probe["record"]))
    rounds = sum(probe["rounds"] for probe in probes)
    if not record.steps:
        raise ValueError(
            f"--url {url}: the probe has recorded no drafted row yet; fix: send requests first, and serve with "
            "--speculative-num-steps 2 or more"
        )
    ours = info.get("eagle31") or {}
    facts = {
        "url": url,
        "head": ours.get("head") or info.get("speculative_draft_model_path"),
        "variant": ours.get("variant") or info.get("speculative_algorithm"),
        "target": info.get("model_path"),
        "rounds": rounds,
        "rate": probes[0]["rate"],
        "heads": probes[0]["heads"],
        "layers_not_seen": sum(probe["layers_not_seen"] for probe in probes),
        "topk": info.get("speculative_eagle_topk"),
    }
    return record, facts
