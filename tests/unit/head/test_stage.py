"""Staging: what SGLang is given in the place of a head."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import heads
import pytest
import torch
from safetensors.torch import load_file, save_file

from sglang_eagle31.head.check import resolve
from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.spec import DrafterSpec
from sglang_eagle31.head.stage import ARCHITECTURE, cache_dir, stage


def staged(folder: Path, cache: Path, overrides: dict[str, str] | None = None) -> tuple[Path, DrafterSpec]:
    head = Checkpoint.read(folder)
    reading, reasons = resolve(head, heads.target(), overrides or {})
    assert reasons == []
    return stage(head, reading, "bfloat16", cache), reading.spec()


def test_the_config_is_canonical(tmp_path: Path) -> None:
    folder, spec = staged(heads.write(tmp_path / "head", "native"), tmp_path / "cache")
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == [ARCHITECTURE]
    assert config["eagle_config"] == {heads.IDS: [1, 5, 8], "use_aux_hidden_state": True}
    assert config["num_aux_hidden_states"] == 3 and config["tie_word_embeddings"] is False
    assert (config["hidden_size"], config["target_hidden_size"]) == (heads.HIDDEN, heads.HIDDEN)
    assert (config["vocab_size"], config["draft_vocab_size"]) == (heads.VOCAB, heads.DRAFT_VOCAB)
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 500000.0}
    assert config["torch_dtype"] == "bfloat16"
    assert DrafterSpec.from_json(config["eagle31_spec"]) == spec


def test_weights_are_links_to_the_original(tmp_path: Path) -> None:
    source = heads.write(tmp_path / "head")
    folder, _ = staged(source, tmp_path / "cache")
    link = folder / "model.safetensors"
    assert link.is_symlink() and link.resolve() == (source / "model.safetensors").resolve()
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_staging_again_finds_the_folder(tmp_path: Path) -> None:
    source = heads.write(tmp_path / "head")
    first, _ = staged(source, tmp_path / "cache")
    before = (first / "config.json").stat().st_mtime_ns
    assert staged(source, tmp_path / "cache")[0] == first
    assert (first / "config.json").stat().st_mtime_ns == before
    assert [path.name for path in first.parent.iterdir()] == [first.name]


def test_other_weights_are_another_folder(tmp_path: Path) -> None:
    source = heads.write(tmp_path / "head")
    first, _ = staged(source, tmp_path / "cache")
    file = source / "model.safetensors"
    data = load_file(file)
    save_file({**data, "norm.weight": torch.ones(heads.HIDDEN, dtype=torch.bfloat16)}, file)
    os.utime(file, ns=(1, 1))
    assert staged(source, tmp_path / "cache")[0] != first


def test_another_spec_is_another_folder(tmp_path: Path) -> None:
    source = heads.write(tmp_path / "head")
    first, _ = staged(source, tmp_path / "cache")
    second, spec = staged(source, tmp_path / "cache", {"feedback": "post"})
    assert second != first and spec.feedback == "post"


@pytest.mark.parametrize("layout", heads.LAYOUTS)
def test_a_staged_folder_is_a_head_with_the_same_spec(tmp_path: Path, layout: str) -> None:
    overrides = {"feedback": "post"} if layout == "specforge31" else {}
    folder, spec = staged(heads.write(tmp_path / "head", layout), tmp_path / "cache", overrides)
    again, reasons = resolve(Checkpoint.read(folder), heads.target(), {})
    assert reasons == []
    assert again.spec() == spec and again.spec().sources == spec.sources
    assert staged(folder, tmp_path / "cache")[1] == spec


@pytest.mark.parametrize(
    ("target", "named"),
    [
        ({"hidden_size": 32}, "hidden size 16, this one has 32"),
        ({"vocab_size": 64}, "vocabulary size 40, this one has 64"),
    ],
)
def test_a_staged_head_is_refused_by_another_target(tmp_path: Path, target: dict[str, int], named: str) -> None:
    folder, _ = staged(heads.write(tmp_path / "head"), tmp_path / "cache")
    reasons = resolve(Checkpoint.read(folder), heads.target(**target), {})[1]
    assert any(named in reason for reason in reasons) and all("fix: " in reason for reason in reasons)


def test_a_staged_head_whose_weights_lost_a_tensor_is_refused(tmp_path: Path) -> None:
    source = heads.write(tmp_path / "head")
    folder, _ = staged(source, tmp_path / "cache")
    heads.write(source, change={"norm.weight": None})
    assert resolve(Checkpoint.read(folder), heads.target(), {})[1] == [
        "tensor norm.weight [16] is missing; fix: export the head again"
    ]


def test_a_race_leaves_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def second(self: Path, target: Path) -> Path:
        shutil.copytree(self, target, symlinks=True)  # what another process did meanwhile
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", second)
    folder, spec = staged(heads.write(tmp_path / "head"), tmp_path / "cache")
    assert list(folder.parent.iterdir()) == [folder]
    assert resolve(Checkpoint.read(folder), heads.target(), {})[0].spec() == spec


def test_a_full_disk_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Path, target: Path) -> Path:
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="no space left"):
        staged(heads.write(tmp_path / "head"), tmp_path / "cache")
    assert list((tmp_path / "cache" / "staged").iterdir()) == []


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_EAGLE31_CACHE", raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_dir() == Path("/home/somebody/.cache/sglang-eagle31")
    monkeypatch.setenv("SGLANG_EAGLE31_CACHE", "~/heads")
    assert cache_dir() == Path("/home/somebody/heads")
    assert cache_dir("/option") == Path("/option")
