"""A draft head's files, read by their headers: config.json and the names, shapes and dtypes of its tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST = 2000
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Tensor:
    """One tensor of a checkpoint: its shape, safetensors dtype name (e.g. ``BF16``) and file."""

    shape: tuple[int, ...]
    dtype: str
    file: Path


@dataclass(frozen=True)
class Checkpoint:
    """A head as it lies on disk.

    Attributes:
        folder: local folder.
        config: config.json as written.
        tensors: every tensor by its original name.
        metadata: safetensors metadata, merged over the files.
    """

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]

    @classmethod
    def read(cls, folder: Path) -> Checkpoint:
        """Read the headers in ``folder``; no tensor data is read.

        Raises:
            ValueError: the folder has no readable config.json or no safetensors; the message names what is there.
        """
        config_file = folder / "config.json"
        if not config_file.is_file():
            raise ValueError(f"{folder} holds no config.json; fix: give the folder of a draft head")
        metadata: dict[str, str] = {}
        _check_files(folder)
        tensors = tensor_files(folder, metadata, MOST)
        _check_index(folder, tensors)
        if not tensors:
            other = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
            command = f"python -m sglang_eagle31 convert {folder} OUT --to specforge --unpickle"
            pickles = (
                f" (only {', '.join(other)}, which are pickles); fix: {command}, which reads them with weights_only"
            )
            hint = pickles if other else "; fix: fetch the head's weights"
            raise ValueError(f"{folder} holds no safetensors{hint}")
        return cls(folder, _object(config_file), tensors, metadata)

    @property
    def architectures(self) -> tuple[str, ...]:
        """The class names in config.json; empty when they are not a list of text."""
        named = self.config.get("architectures")
        return tuple(map(str, named)) if isinstance(named, list) else ()

    def load(self, name: str) -> Any:
        """One tensor's data, as a torch tensor on the CPU."""
        return self._data(name, "pt")

    def numbers(self, name: str) -> Any:
        """The data of a tensor of integers or booleans, as a numpy array; torch is not imported."""
        return self._data(name, "np")

    def _data(self, name: str, framework: str) -> Any:
        from safetensors import safe_open

        with safe_open(self.tensors[name].file, framework=framework) as handle:
            return handle.get_tensor(name)


def tensor_files(folder: Path, metadata: dict[str, str] | None = None, most: int | None = None) -> dict[str, Tensor]:
    """Every tensor of a folder's safetensors, by its header; of those in the index, if there is one.

    Args:
        folder: a checkpoint; it may have no safetensors.
        metadata: filled with the files' metadata.
        most: how many tensors there may be.

    Raises:
        ValueError: a file cannot be read, is missing, or has a tensor that another file has too.
    """
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, Tensor] = {}
    for file in _files(folder):
        try:
            handle = safe_open(file, framework="np")  # for headers alone: "pt" imports torch
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{file} cannot be read ({error}); fix: fetch it again") from error
        with handle:
            if metadata is not None:
                metadata.update(handle.metadata() or {})
            names = handle.keys()
            if most is not None and len(tensors) + len(names) > most:
                raise ValueError(f"{file} holds {len(names)} tensors, more than any draft head; fix: give a draft head")
            for name in names:
                if name in tensors:
                    both = f"{tensors[name].file.name} and in {file.name}"
                    raise ValueError(f"{folder}: tensor {name} is in {both}; fix: remove one of them")
                view = handle.get_slice(name)
                tensors[name] = Tensor(tuple(view.get_shape()), view.get_dtype(), file)
    return tensors


def _check_files(folder: Path) -> None:
    """Raises ValueError for what is named like weights and is none: it may have held tensors of the head."""
    for file in sorted(folder.glob("*.safetensors")):
        if not file.is_file():
            what = "a link to nothing" if file.is_symlink() and not file.exists() else "no regular file"
            raise ValueError(f"{file} is {what}; fix: fetch the head again")


def _check_index(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Raises ValueError when the index names other tensors, or other files, than the folder has."""
    if not (folder / INDEX).is_file():
        return
    placed = _object(folder / INDEX)["weight_map"]
    found = {name: tensor.file.name for name, tensor in tensors.items()}
    wrong = sorted(name for name in {*placed, *found} if placed.get(name) != found.get(name))
    left_out = sorted({file.name for file in folder.glob("*.safetensors")} - set(placed.values()))
    if wrong or left_out:
        what = f"tensor {wrong[0][:200]!r}" if wrong else left_out[0]
        raise ValueError(f"{folder / INDEX} and the files beside it disagree about {what}; fix: fetch the head again")


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if not index.is_file():
        return [file for file in sorted(folder.glob("*.safetensors")) if file.is_file()]
    placed = _object(index).get("weight_map")
    if not isinstance(placed, dict) or not all(isinstance(name, str) for name in placed.values()):
        raise ValueError(f"{index} has no weight_map; fix: fetch it again")
    files = [folder / name for name in sorted(set(placed.values()))]
    for file in files:
        if file.parent != folder or not file.is_file():
            raise ValueError(f"{index} names {file.name}, which is not there; fix: fetch the head again")
    return files


def _object(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON ({error}); fix: fetch it again") from error
    if not isinstance(config, dict):
        raise ValueError(f"{file} holds no JSON object; fix: fetch it again")
    return config


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; readers differ about a key that it has twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(name for name in names if names.count(name) > 1)!r} is there twice")
    return found


def local_folder(path: str, revision: str | None = None) -> Path:
    """The local folder of ``path``: itself, or a snapshot of the hub repository of that name.

    Raises:
        ValueError: it is neither a folder nor a repository that can be fetched or is cached.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if folder.is_file():
        raise ValueError(f"{path} is a file; fix: give its folder")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        patterns = ["*.json", "*.safetensors"]
        return Path(snapshot_download(path, revision=revision, allow_patterns=patterns))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = f"neither a folder nor a repository that could be fetched ({type(error).__name__})"
        raise ValueError(f"{path} is {reason}; fix: check the path") from error
