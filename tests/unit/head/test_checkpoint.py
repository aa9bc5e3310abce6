"""A head's files: found, read by their headers, and refused by name where they are damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import heads
import pytest
import torch
from safetensors.torch import load_file, save_file

from sglang_eagle31.head.check import resolve
from sglang_eagle31.head.checkpoint import Checkpoint, local_folder


def reasons_of(head: Checkpoint) -> list[str]:
    return resolve(head, heads.target(), {})[1]


def test_a_missing_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match=r"neither a folder nor a repository .* fix: check the path") as error:
        local_folder(str(tmp_path / "nowhere"))
    assert str(tmp_path / "nowhere") in str(error.value)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="is a file; fix: give its folder"):
        local_folder(str(tmp_path / "config.json"))


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert local_folder(str(tmp_path)) == tmp_path.resolve()


def test_a_folder_of_bin_files_is_refused_with_a_fix(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="holds no safetensors; fix: fetch the head's weights$"):
        Checkpoint.read(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"only pytorch_model.bin, which are pickles\); fix: .*convert .* --unpickle"):
        Checkpoint.read(tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "named"),
    [
        ("config.json", None, "holds no config.json"),
        ("config.json", "{", "config.json is not JSON"),
        ("config.json", "[]", "config.json holds no JSON object"),
        ("model.safetensors", "garbage", "model.safetensors cannot be read"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, file: str, text: str | None, named: str) -> None:
    heads.write(tmp_path)
    (tmp_path / file).unlink()
    if text is not None:
        (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match=named):
        Checkpoint.read(tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    heads.write(tmp_path)
    (tmp_path / "more.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match="is in model.safetensors and in more.safetensors"):
        Checkpoint.read(tmp_path)


@pytest.mark.parametrize("kind", ["folder", "dead link"])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, kind: str) -> None:
    heads.write(tmp_path)
    odd = tmp_path / "more.safetensors"
    if kind == "folder":
        odd.mkdir()
    else:
        odd.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"more\.safetensors .*; fix: "):
        Checkpoint.read(tmp_path)


def sharded(folder: Path, weight_map: Any = None) -> Path:
    """A head in two files with an index; ``weight_map`` on top of what is right."""
    data = load_file(heads.write(folder) / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(data)
    parts = {"model-1.safetensors": names[:5], "model-2.safetensors": names[5:]}
    for file, members in parts.items():
        save_file({name: data[name] for name in members}, folder / file)
    right = {name: file for file, members in parts.items() for name in members}
    placed = {**right, **weight_map} if isinstance(weight_map, dict) else weight_map or right
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    return folder


def test_a_head_in_shards_is_read(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    head = Checkpoint.read(folder)
    assert reasons_of(head) == []
    assert {tensor.file.name for tensor in head.tensors.values()} == {"model-1.safetensors", "model-2.safetensors"}


def test_a_file_that_the_index_does_not_know_is_refused(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    save_file({"fc.weight": torch.ones(1)}, folder / "stale.safetensors")
    with pytest.raises(ValueError, match=r"index\.json .*stale\.safetensors; fix: "):
        Checkpoint.read(folder)


@pytest.mark.parametrize(
    ("weight_map", "named"),
    [
        ({"norm.weight": "model-3.safetensors"}, "names model-3.safetensors, which is not there"),
        ({"norm.weight": "../head/model-1.safetensors"}, "names model-1.safetensors, which is not there"),
        ({"norm.weight": "/etc/hostname"}, "names hostname, which is not there"),
        ({"norm.weight": "sub/model-1.safetensors"}, "which is not there"),
        ({"norm.weight": 3}, "has no weight_map"),
        ({"norm.weight": None}, "has no weight_map"),
        ("model-1.safetensors", "has no weight_map"),
        (["model-1.safetensors"], "has no weight_map"),
    ],
)
def test_a_broken_index_is_refused(tmp_path: Path, weight_map: Any, named: str) -> None:
    folder = sharded(tmp_path / "head", weight_map)
    with pytest.raises(ValueError, match=r"model\.safetensors\.index\.json .*fix: ") as error:
        Checkpoint.read(folder)
    assert named in str(error.value)


@pytest.mark.parametrize("text", ["{", "[]", "null", "[" * 100_000])
def test_an_index_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    folder = sharded(tmp_path)
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ValueError, match=r"index\.json .*; fix: "):
        Checkpoint.read(folder)


def test_files_of_a_cache_are_links_and_are_read(tmp_path: Path) -> None:
    source = heads.write(tmp_path / "blobs")
    (tmp_path / "snapshot").mkdir()
    for file in source.iterdir():
        os.symlink(file, tmp_path / "snapshot" / file.name)
    assert reasons_of(Checkpoint.read(tmp_path / "snapshot")) == []
