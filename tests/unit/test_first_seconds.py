"""What a command imports before it has its first answer: help nothing but Python, an audit neither torch nor SGLang."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from truth import producers

from sglang_eagle31.tools.cli import COMMANDS
from sglang_eagle31.tools.convert import command as convert
from sglang_eagle31.tools.convert.formats import FORMATS

ENGINES = {"torch", "transformers", "sglang", "sgl_kernel", "tokenizers", "scipy", "matplotlib", "huggingface_hub"}
"""Each takes a good part of a second, and some take several."""
LIBRARIES = ENGINES | {"numpy", "safetensors", "rich", "requests", "tqdm", "packaging", "prometheus_client", "psutil"}
RUN = """
import json, sys
from sglang_eagle31.tools.cli import main
try:
    status = main(sys.argv[1:])
except SystemExit as end:
    status = end.code
print(json.dumps([status, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def run(*arguments: str) -> tuple[int, str, set[str]]:
    """A command in a process of its own: status, what it printed, and the top-level modules that it imported."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], capture_output=True, text=True, timeout=100, check=True
    )
    printed, _, last = done.stdout.rstrip().rpartition("\n")
    status, modules = json.loads(last)
    return status, printed, set(modules)


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)], ids=lambda words: " ".join(words) or "program")
def test_help_imports_no_library(words: list[str]) -> None:
    status, printed, modules = run(*words, "--help")
    assert status == 0 and printed.startswith(f"usage: {' '.join(['python -m sglang_eagle31', *words])} ")
    assert modules & LIBRARIES == set()


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["table", "json"])
def test_an_audit_imports_no_engine(tmp_path: Path, more: list[str]) -> None:
    head = producers.write(tmp_path / "head", "torchspec31")
    target = producers.write_target(tmp_path / "target")
    for target_words in ([], ["--target", str(target)]):
        status, printed, modules = run("audit", str(head), *target_words, *more)
        assert status == 0 and "exact" in printed and "vllm" in printed
        assert modules & ENGINES == set()


def test_nor_does_one_that_compares_the_rows_of_two_embeddings(tmp_path: Path) -> None:
    head = producers.write(tmp_path / "head", "nemo", dtype=torch.bfloat16)
    target = producers.write_target(tmp_path / "target")
    shape = producers.Shape()
    weights = torch.randn(shape.vocab, shape.hidden, generator=torch.Generator().manual_seed(1)).bfloat16()
    save_file({"model.embed_tokens.weight": weights}, target / "model.safetensors")
    status, printed, modules = run("audit", str(head), "--target", str(target))
    assert status == 0 and "is unrelated to the target's embedding" in printed
    assert modules & ENGINES == set()


def test_doctor_and_a_calculated_answer_import_no_engine(tmp_path: Path) -> None:
    head = producers.write(tmp_path / "head", "torchspec31")
    target = producers.write_target(tmp_path / "target")
    _, printed, modules = run("doctor", "--quick", "--head", str(head), "--target", str(target))
    assert "EAGLE 3.1" in printed and modules & ENGINES == set()
    status, printed, modules = run("tune", "--simulate", "--acceptance", "0.8", "--cost", "0.05")
    assert status == 0 and "is predicted at" in printed and modules & ENGINES == set()


def test_a_conversion_that_is_refused_imports_no_engine(tmp_path: Path) -> None:
    head = producers.write(tmp_path / "head", "specforge31")
    status, _, modules = run("convert", str(head), str(tmp_path / "out"), "--to", "vllm")
    assert status == 2 and modules & ENGINES == set()


def test_the_plugin_imports_no_library() -> None:
    code = "import json, sys, sglang_eagle31.plugin\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert "sglang_eagle31.plugin" in (modules := set(json.loads(done.stdout))) and modules & LIBRARIES == set()


def test_every_format_can_be_asked_for() -> None:
    """The option states the formats itself, for their module imports the whole audit."""
    parser = argparse.ArgumentParser()
    convert.add_arguments(parser)
    (option,) = (action for action in parser._actions if action.dest == "to")
    assert option.choices == tuple(FORMATS)
