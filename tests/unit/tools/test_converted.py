"""Heads that `convert` wrote: read back as they are, and asked about where somebody edited them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from heads import SHAPE, target_of
from truth import producers

from sglang_eagle31.head.check import resolve
from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.dialects.converted import CONVERTED
from sglang_eagle31.head.dialects.layer_ids import IDS
from sglang_eagle31.head.reading import Reading
from sglang_eagle31.tools.cli import main
from sglang_eagle31.tools.convert.formats import FORMATS
from sglang_eagle31.tools.convert.run import convert


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return producers.write_target(tmp_path / "target", SHAPE)


def made(tmp_path: Path, target: Path, to: str, **changes: Any) -> tuple[Reading, list[str]]:
    """An EAGLE 3.1 head with other layers than the default, converted, then edited."""
    shape = producers.Shape(boundaries=(1, 3, 6))
    head = producers.write(tmp_path / "head", "eagle31_native", shape)
    convert(str(head), tmp_path / "out", to, str(target))
    file = tmp_path / "out" / "config.json"
    config = json.loads(file.read_text())
    config = {key: value for key, value in {**config, **changes}.items() if value is not ...}
    file.write_text(json.dumps(config))
    return resolve(Checkpoint.read(tmp_path / "out"), target_of(shape), {})


@pytest.mark.parametrize("to", FORMATS)
def test_it_reads_back_as_it_was(tmp_path: Path, target: Path, to: str) -> None:
    reading, reasons = made(tmp_path, target, to)
    assert reasons == [] and reading.evidence == f"config key {CONVERTED}"
    spec = reading.spec()
    assert (spec.variant, spec.boundaries) == ("EAGLE 3.1", (1, 3, 6))
    assert json.loads((tmp_path / "out" / "config.json").read_text())[CONVERTED] == {
        "to": to,
        "trained_by": "sglang-eagle31",
        "boundaries": [1, 3, 6],
    }


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({IDS: [2, 4, 5]}, "aux_layers="),
        ({CONVERTED: {"to": "vllm"}}, "without boundaries"),
        ({CONVERTED: True}, CONVERTED),
        ({"norm_output": ...}, "feedback=post"),
        ({"logit_scale": 0.5}, "logit_scale=0.5"),
        ({"fc_norm": False}, "fc_norm=false"),
    ],
    ids=str,
)
def test_what_was_edited_is_noticed(tmp_path: Path, target: Path, changes: dict[str, Any], named: str) -> None:
    _, reasons = made(tmp_path, target, "vllm", **changes)
    assert any(named in reason for reason in reasons) and all("fix:" in reason for reason in reasons)


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = producers.write(tmp_path / "head", "eagle31_native", SHAPE)
    assert main(["convert", str(head), str(tmp_path), "--to", "vllm"]) == 2
    assert "is there already" in capsys.readouterr().err


def test_what_is_not_settled_is_not_converted(tmp_path: Path, target: Path) -> None:
    head = producers.write(tmp_path / "head", "specforge31", SHAPE)
    with pytest.raises(ValueError, match="feedback=post"):
        convert(str(head), tmp_path / "out", "sglang", str(target))
    convert(str(head), tmp_path / "out", "sglang", str(target), {"feedback": "post"})
    assert json.loads((tmp_path / "out" / "config.json").read_text())["norm_output"] is True


def test_stock_sglang_s_layer_ids_need_the_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = producers.write(tmp_path / "head", "eagle31_native", SHAPE)
    assert main(["convert", str(head), str(tmp_path / "out"), "--to", "sglang"]) == 2
    assert "fix: --target" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert main(["convert", str(head), str(tmp_path / "out"), "--to", "vllm"]) == 0


def test_a_path_that_cannot_be_written_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = producers.write(tmp_path / "head", "eagle31_native", SHAPE)
    (tmp_path / "file").write_text("")
    assert main(["convert", str(head), str(tmp_path / "file" / "out"), "--to", "vllm"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ") and str(tmp_path / "file") in printed and "fix: check the path" in printed


class Trap:
    """Runs code when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def test_pickles_are_read_when_asked_and_run_nothing(tmp_path: Path, target: Path) -> None:
    head = producers.write(tmp_path / "head", "eagle31_native", SHAPE)
    read = Checkpoint.read(head)
    torch.save({name: read.load(name) for name in read.tensors}, head / "pytorch_model.bin")
    (head / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="pickles.*--unpickle"):
        convert(str(head), tmp_path / "out", "specforge", str(target))
    convert(str(head), tmp_path / "out", "specforge", str(target), unpickle=True)
    back = Checkpoint.read(tmp_path / "out")
    assert torch.equal(back.load("fc.weight"), torch.load(head / "pytorch_model.bin", weights_only=True)["fc.weight"])
    mark = tmp_path / "mark"
    torch.save({"fc.weight": Trap(mark)}, head / "pytorch_model.bin")
    with pytest.raises(ValueError, match="weights_only"):
        convert(str(head), tmp_path / "bad", "specforge", str(target), unpickle=True)
    assert not mark.exists() and not (tmp_path / "bad").exists()
