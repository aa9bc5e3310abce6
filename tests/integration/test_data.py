"""The command data on SGLang's engine: the same greedy answers as transformers gives, and shards to train on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import models
import pytest
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import models as tokenizer_models
from transformers import PreTrainedTokenizerFast

from sglang_eagle31.tools.train.data import load_shards

DEADLINE = 300.0
WORDS = [f"t{i}" for i in range(models.VOCAB)]
TEMPLATE = (
    "{% for m in messages %}{{ ('t3 ' if m['role'] == 'user' else 't4 ') + m['content'] + ' t2 ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 't4 ' }}{% endif %}"
)


def write_tokenizer(folder: Path) -> None:
    """Token i is the word ti."""
    inner = Tokenizer(tokenizer_models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="t0"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="t2", pad_token="t0")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)


def make(target: Path, prompts: Path, out: Path, engine: str) -> dict[str, Any]:
    """Run the command in a process of its own; returns the first-turn answers by id, and their provenance."""
    command = [sys.executable, "-m", "sglang_eagle31", "data", "--target", str(target), "--out", str(out)]
    command += ["--engine", engine, "--dtype", "float32", "--prompts", str(prompts), "--hold-out", "4"]
    command += ["--sampled", "0.3", "--max-new-tokens", "24", "--batch", "8", "--layers", "2,4,5", "--threads", "1"]
    done = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CC": "/nonexistent", "CXX": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    files = [path for path in sorted((out / "answers").glob("*.jsonl")) if not path.stem.endswith("-2")]
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    return {line["id"]: line for line in lines}


@pytest.mark.full
def test_sglang_answers_as_transformers_does(tmp_path: Path) -> None:
    target = models.write_target(tmp_path / "target")
    write_tokenizer(target)
    chats = [{"id": f"p{i}", "messages": [{"role": "user", "content": f"t{7 + i} t{40 + 3 * i}"}]} for i in range(16)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, chats)))
    ours = make(target, tmp_path / "mine.jsonl", tmp_path / "torch", "torch")
    served = make(target, tmp_path / "mine.jsonl", tmp_path / "sglang", "sglang")
    assert served.keys() == ours.keys() and len(ours) > 8
    greedy = {name for name, line in ours.items() if line["temperature"] == 0}
    assert 4 < len(greedy) < len(ours)
    assert {name: served[name]["ids"] for name in greedy} == {name: ours[name]["ids"] for name in greedy}
    assert any(len(line["ids"]) - line["prompt_length"] > 12 for line in served.values())
    record = json.loads((tmp_path / "sglang" / "provenance.json").read_text())
    assert record["engine"] == "sglang" and record["held_out"]["answers"] > 0
    samples = load_shards(tmp_path / "sglang" / "samples", 3)
    assert len(samples) == record["train"]["samples"] > 0
    assert all(sample.complete and bool(sample.mask.any()) for sample in samples)
    held = {json.loads(x)["id"] for x in (tmp_path / "sglang/held_out/answers/0000.jsonl").read_text().splitlines()}
    assert not held & {sample.info["id"].removesuffix("-2") for sample in samples}
