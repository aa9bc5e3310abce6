"""With the plugin installed, a server that did not ask for EAGLE31 behaves as without it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from conftest import Models, Plain, prompt
from transformers import LlamaForCausalLM


def test_plain_server_equals_the_reference(plain: Plain, tiny: Models) -> None:
    model = LlamaForCausalLM.from_pretrained(tiny.target)
    for index, (length, seed) in enumerate([(17, 1), (4, 4), (60, 60), (33, 33), (200, 200)]):
        ids = torch.tensor([prompt(length, seed)])
        settings = {"max_new_tokens": 48, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        expected = model.generate(ids, **settings)[0, length:].tolist()
        assert plain.answers.ids[index] == expected


def test_plain_server_shows_nothing_of_ours(plain: Plain) -> None:
    assert "eagle31" not in plain.info
    assert plain.info["speculative_algorithm"] is None
    assert "EAGLE31:" not in plain.log
    assert "TreeAttention" not in plain.log


RESOLVE = """
import json, sys
from sglang_eagle31.server.cpu import standin

standin.prepare()  # what both need on a CPU without sgl_kernel
if sys.argv[1] == "with":
    from sglang.srt.plugins import load_plugins

    load_plugins()
from sglang.srt.server_args import prepare_server_args

args = prepare_server_args(["--model-path", sys.argv[2], "--device", "cpu", "--random-seed", "0", "--port", "31000"])
args.resolve_once()
print("RESOLVED" + json.dumps(args.resolved_dict(), default=str, sort_keys=True))
"""


def _resolved(which: str, target: str) -> dict[str, object]:
    command = [sys.executable, "-c", RESOLVE, which, target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESOLVED")]
    assert lines, done.stderr[-3000:]
    resolved: dict[str, object] = json.loads(lines[0].removeprefix("RESOLVED"))
    return resolved


@pytest.mark.full
def test_arguments_resolve_the_same_with_and_without_the_plugin(tiny: Models) -> None:
    assert _resolved("with", str(tiny.target)) == _resolved("without", str(tiny.target))
