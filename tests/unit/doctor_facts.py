"""Made-up facts of a healthy machine, installation, head and server, and changes to them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from sglang_eagle31.tools.doctor.facts import GIB, Facts, Head, Machine, Plugins, Requirement, Server, Software, Started

MACHINE = Machine(
    system="Linux",
    arch="x86_64",
    flags=frozenset({"avx2", "avx512f", "avx512_bf16"}),
    cores=4,
    quota=None,
    load=0.5,
    memory=32 * GIB,
    free=30 * GIB,
    gpus=(),
    variables={},
    compiler="/usr/bin/g++",
    c_compiler="/usr/bin/gcc",
)
SOFTWARE = Software(
    python="3.11.7",
    python_bound=">=3.11",
    python_fits=True,
    ours="0.1.0",
    declared="0.1.0",
    sglang="0.5.23",
    tested=("0.5.23",),
    requirements=(
        Requirement("sglang<0.6,>=0.5.23", "sglang", "0.5.23", True),
        Requirement("torch", "torch", "2.14.1", True),
    ),
)
PLUGINS = Plugins(
    found={
        "sglang.srt.plugins": "sglang_eagle31.plugin:register",
        "sglang.srt.platforms": "sglang_eagle31.plugin:activate",
    },
    others=(),
    unfit={"server": (), "eagle31": (), "cpu": ()},
    options_error=None,
    cache="/cache",
    cache_error=None,
)
STARTED = Started(
    registered=True,
    kernel="stand-in",
    unpacked={"bfloat16": "", "float32": ""},
    dtype=("bfloat16", "because"),
)
GPU = Started(registered=True, kernel="real", gpus=(("H200", 139 * GIB),))
REPORT = {
    "verdict": "exact",
    "variant": "EAGLE 3.1",
    "producer": "SpecForge",
    "reasons": [],
    "elsewhere": {"sglang": {"outcome": "exact", "reasons": []}},
}
HEAD = Head("/head", "/target", None, REPORT, positions=8192, context=8192, depth=5, size=GIB)
TOTAL = {
    "rounds": 1000,
    "drafts": 1000,
    "accepted_by_depth": [700, 500, 300],
    "proposed_by_depth": [1000, 1000, 1000],
    "accept_length": 2.5,
    "accepted_tokens": 1500,
}
ACCEPTANCE = {
    "total": TOTAL,
    "by_context": {"0-511": TOTAL},
    "by_template": {"0123abcd": {"pattern": "<|im_start|> ... <|im_end|>", **TOTAL}},
    "requests": {"finished": 20, "aborted": 0, "accept_length": {"upper_edges": [1.0], "counts": [0, 20], "sum": 50.0}},
    "alarm": {"cause": None, "times": 0},
}
GUARD = {
    "mode": "on",
    "configured": "3,1,4",
    "shapes": ["3,1,4", "1,1,2"],
    "any": True,
    "rounds": {"plain": 100, "drafted": 900},
    "fallback_ratio": 0.1,
    "changes": 2,
    "acceptance": [[0.7], [0.7], [0.6]],
    "tried": [[1000.0], [700.0], [500.0]],
    "hit": [[700.0], [500.0], [300.0]],
    "seconds": {"0,1,1": {"1": 0.1}, "3,1,4": {"1": 0.15}},
    "running": {"1": "3,1,4", "4": "1,1,2"},
    "predicted": {"0,1,1": 1.0, "1,1,2": 1.2, "3,1,4": 1.4},
    "realised": 1.3,
}
INFO = {
    "model_path": "/target",
    "version": "0.5.23",
    "device": "cpu",
    "attention_backend": "torch_native",
    "launch_command": "python -m sglang.launch_server --speculative-algorithm EAGLE31",
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
    "context_length": None,
    "max_req_input_len": 8000,
    "max_total_num_tokens": 16000,
    "max_running_requests": 16,
    "enable_metrics": True,
    "internal_states": [{"eagle31": {"acceptance": ACCEPTANCE, "guard": GUARD}, "avg_spec_accept_length": 2.5}],
    "eagle31": {
        "algorithm": "EAGLE31",
        "version": "0.1.0",
        "variant": "EAGLE 3.1",
        "head": "/head",
        "captured_boundaries": [2, 15, 27],
        "target": {"context_length": 8192},
        "spec": {"feedback": "post", "sliding_window": None, "max_position_embeddings": 8192},
    },
}
SERVER = Server("http://x", None, INFO, depth=5, positions=8192)
FACTS = Facts(MACHINE, SOFTWARE, PLUGINS, STARTED, HEAD, SERVER)


def served(**changes: Any) -> Server:
    """The healthy server with other values in ``/server_info``."""
    return replace(SERVER, info={**INFO, **changes})


def stock(**changes: Any) -> Server:
    """A server of stock SGLang."""
    info = {key: value for key, value in INFO.items() if key != "eagle31"}
    states = [{"avg_spec_accept_length": 2.5}]
    known = {"internal_states": states, "launch_command": "--speculative-algorithm EAGLE3"}
    return replace(SERVER, info={**info, **known, **changes})


def marked(**changes: Any) -> Server:
    """The healthy server with other values in its marker."""
    return served(eagle31={**INFO["eagle31"], **changes})


def counted(total: dict[str, Any] | None = None, **changes: Any) -> Server:
    """The healthy server with another acceptance record."""
    record = copy.deepcopy(ACCEPTANCE)
    record["total"].update(total or {})
    return served(internal_states=[{"eagle31": {"acceptance": {**record, **changes}, "guard": GUARD}}])


def guarded(*changes: dict[str, Any]) -> Server:
    """The healthy server with other records of its guard, one a scheduler."""
    return served(internal_states=[{"eagle31": {"acceptance": ACCEPTANCE, "guard": GUARD | one}} for one in changes])
