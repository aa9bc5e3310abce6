"""A draft head's files, read by their headers: config.json and the names, shapes and dtypes of its tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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
        from safetensors import SafetensorError, safe_open

        config_file = folder / "config.json"
        if not config_file.is_file():
            raise ValueError(f"{folder} holds no config.json; fix: give the folder of a draft head")
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            other = sorted(path.name for pattern in ("*.bin", "*.pt") for path in folder.glob(pattern))
            hint = f" (only {', '.join(other)}; fix: save it again as safetensors)" if other else ""
            raise ValueError(f"{folder} holds no safetensors{hint}")
        tensors: dict[str, Tensor] = {}
        metadata: dict[str, str] = {}
        for file in files:
            try:
                handle = safe_open(file, framework="pt")
            except (SafetensorError, OSError) as error:
                raise ValueError(f"{file} cannot be read ({error}); fix: fetch it again") from error
            with handle:
                metadata.update(handle.metadata() or {})
                for name in handle.keys():  # noqa: SIM118 (not a mapping)
                    if name in tensors:
                        raise ValueError(f"{folder}: {name} is in {tensors[name].file.name} and in {file.name}")
                    view = handle.get_slice(name)
                    tensors[name] = Tensor(tuple(view.get_shape()), view.get_dtype(), file)
        return cls(folder, _object(config_file), tensors, metadata)

    def load(self, name: str) -> Any:
        """One tensor's data, as a torch tensor on the CPU."""
        from safetensors import safe_open

        with safe_open(self.tensors[name].file, framework="pt") as handle:
            return handle.get_tensor(name)


def _object(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{file} is not JSON ({error}); fix: fetch it again") from error
    if not isinstance(config, dict):
        raise ValueError(f"{file} holds no JSON object; fix: fetch it again")
    return config


def local_folder(path: str, revision: str | None = None) -> Path:
    """The local folder of ``path``: itself, or a snapshot of the hub repository of that name.

    Raises:
        ValueError: it is neither a folder nor a repository that can be fetched or is cached.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder.resolve()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        patterns = ["*.json", "*.safetensors"]
        return Path(snapshot_download(path, revision=revision, allow_patterns=patterns))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = f"neither a folder nor a repository that could be fetched ({type(error).__name__})"
        raise ValueError(f"{path} is {reason}; fix: check the path") from error
