"""What EAGLE31 refuses, through SGLang's parser and resolution, before weights load: flag, value and fix are named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import models
import pytest
from conftest import Models
from transformers import GPT2Config, LlamaConfig

CASES = """
import json, sys
from sglang_eagle31.server.cpu import standin

standin.prepare()
from sglang.srt.plugins import load_plugins

load_plugins()
from sglang.srt.server_args import prepare_server_args

for name, flags in json.loads(sys.argv[1]).items():
    try:
        args = prepare_server_args(["--device", "cpu", *flags])
        args.resolve_once()
        message = "RESOLVED " + args.speculative_algorithm
    except SystemExit as error:
        message = f"EXIT {error.code}"
    except ValueError as error:
        message = str(error)
    print("CASE" + json.dumps([name, message]))
"""


@pytest.fixture(scope="module")
def messages(tiny: Models, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The message of every case, all of them in one process."""
    folder = tmp_path_factory.mktemp("refused")
    target, head = str(tiny.target), str(tiny.eagle31)
    base = ["--model-path", target, "--speculative-algorithm", "EAGLE31"]
    draft = ["--speculative-draft-model-path", head]
    empty = folder / "empty"
    empty.mkdir()
    (empty / "config.json").write_text("{}")
    short = models.write_head(folder / "short", max_position_embeddings=2048)
    shallow, foreign = folder / "shallow", folder / "gpt2"
    LlamaConfig(
        num_hidden_layers=4, hidden_size=64, vocab_size=512, architectures=["LlamaForCausalLM"]
    ).save_pretrained(shallow)
    GPT2Config(n_embd=64, n_layer=8, vocab_size=512, architectures=["GPT2LMHeadModel"]).save_pretrained(foreign)
    cases = {
        "no head": base,
        "no such path": [*base, "--speculative-draft-model-path", str(folder / "nowhere")],
        "no safetensors": [*base, "--speculative-draft-model-path", str(empty)],
        "only draft tokens": [*base, *draft, "--speculative-num-draft-tokens", "4"],
        "adaptive": [*base, *draft, "--speculative-adaptive"],
        "too many draft tokens": [*base, *draft, *tree(2, 2, 32)],
        "short head": [*base, "--speculative-draft-model-path", str(short)],
        "short head served anyway": [
            *base,
            "--speculative-draft-model-path",
            str(short),
            "--eagle31-override",
            "max_position_embeddings=8192",
        ],
        "shallow target": ["--model-path", str(shallow), *base[2:], *draft],
        "no capture": ["--model-path", str(foreign), *base[2:], *draft],
        "unknown option": [*base, *draft, "--eagle31-overide", "x=1"],
        "unknown key": [*base, *draft, "--eagle31-override", "colour=red"],
        "option alone": ["--model-path", target, "--eagle31-override", "feedback=post"],
        "good": [*base, *draft, *tree(3, 1, 4)],
    }
    done = subprocess.run([sys.executable, "-c", CASES, json.dumps(cases)], capture_output=True, text=True, timeout=300)
    found = dict(json.loads(line.removeprefix("CASE")) for line in done.stdout.splitlines() if line.startswith("CASE"))
    assert set(found) == set(cases), done.stderr[-3000:]
    found["unknown option"] += done.stderr
    return found


def tree(steps: int, topk: int, tokens: int) -> list[str]:
    """The three flags of a tree."""
    flags = ("--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens")
    return [part for flag, value in zip(flags, (steps, topk, tokens), strict=True) for part in (flag, str(value))]


@pytest.mark.parametrize(
    ("case", "parts"),
    [
        ("no head", ["--speculative-draft-model-path is not given", "fix: --speculative-draft-model-path HEAD"]),
        ("no such path", ["--speculative-draft-model-path", "nowhere", "neither a folder nor a repository", "fix:"]),
        ("no safetensors", ["--speculative-draft-model-path", "empty", "holds no safetensors"]),
        ("adaptive", ["--speculative-adaptive", "drop it", "--eagle31-guard on"]),
        ("only draft tokens", ["--speculative-num-draft-tokens 4", "--speculative-num-steps", "give all three"]),
        ("too many draft tokens", ["--speculative-num-draft-tokens 32", "has only 7 tokens", "or less"]),
        ("short head", ["2048 positions", "context is 8192", "6144 more", "--context-length 2048"]),
        ("short head served anyway", ["RESOLVED EAGLE3"]),
        ("shallow target", ["captured layers [2, 4, 5] are outside 0..4", "aux_layers"]),
        ("no capture", ["--model-path", "GPT2LMHeadModel", "set_eagle3_layers_to_capture", "fix:"]),
        ("unknown option", ["EXIT 2", "--eagle31-overide", "did you mean --eagle31-override"]),
        ("unknown key", ["--eagle31-override colour=red", "unknown key", "aux_layers"]),
        ("option alone", ["--eagle31-override", "has no effect", "add --speculative-algorithm EAGLE31"]),
        ("good", ["RESOLVED EAGLE3"]),
    ],
)
def test_message(messages: dict[str, str], case: str, parts: list[str]) -> None:
    for part in parts:
        assert part in messages[case], messages[case]


def test_launch_server_stops_before_weights_load(tiny: Models, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny.eagle31, broken)
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "norm_before_residual": True}))
    command = [sys.executable, "-m", "sglang.launch_server", "--device", "cpu", "--model-path", str(tiny.target)]
    command += ["--speculative-algorithm", "EAGLE31", "--speculative-draft-model-path", str(broken)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1
    assert "EAGLE31 cannot run this set-up" in done.stderr
    assert "norm_before_residual=True" in done.stderr
    assert "Load weight" not in done.stderr


def test_help_shows_our_options_in_their_own_group() -> None:
    command = [sys.executable, "-m", "sglang.launch_server", "--help"]
    done: Any = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0
    group = done.stdout.split("EAGLE 3.1 (sglang-eagle31):")[1]
    assert "--eagle31-override KEY=VALUE" in group
    assert "--eagle31-cache-dir DIR" in group
