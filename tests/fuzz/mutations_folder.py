"""Mutations of what lies in the folder: links, other files, pickles, and a config.json that is none."""

from __future__ import annotations

import json
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mutations import Head, a_tensor, kind
from mutations_files import WEIGHTS
from safetensors.torch import save_file

MARK = "pickle-was-run"


class Pickled:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.mark),)


def _moved(file: Path, to: Path, link: str | Path) -> None:
    file.rename(to)
    file.symlink_to(link)


@kind
def file_linked(head: Head, rng: random.Random) -> str:
    """Links, as a hub cache has them, and others."""
    changes: dict[str, Callable[[Path, Path], None]] = {
        "outside": lambda at, other: _moved(at / WEIGHTS, other, other),
        "inside": lambda at, other: _moved(at / WEIGHTS, at / "blob", "blob"),
        "config": lambda at, other: _moved(at / "config.json", other, other),
        "dangling": lambda at, other: ((at / WEIGHTS).unlink(), (at / WEIGHTS).symlink_to(other)) and None,
        "another dangling": lambda at, other: (at / "model-2.safetensors").symlink_to(other),
        "loop": lambda at, other: (at / "model-2.safetensors").symlink_to("model-2.safetensors"),
        "folder": lambda at, other: (at / "model-2.safetensors").mkdir(),
        "pipe": lambda at, other: os.mkfifo(at / "model-2.safetensors"),
        "device": lambda at, other: (at / "model-2.safetensors").symlink_to("/dev/zero"),
        "twice": lambda at, other: (at / "model-2.safetensors").symlink_to(WEIGHTS),
    }
    what = rng.choice(sorted(changes))
    head.after.append(lambda at: changes[what](at, at.parent / "elsewhere"))
    return what


@kind
def file_second(head: Head, rng: random.Random) -> str:
    """Another safetensors file: with one of the tensors, with an unknown one, empty, or no safetensors at all."""
    name = a_tensor(head, rng)
    tensor = head.tensors[name].clone().contiguous()
    what = rng.choice(("same tensor", "unknown tensor", "no tensors", "no bytes", "text", "t2d", "adapter"))

    def change(at: Path) -> None:
        file = at / "adapter_model.safetensors"
        held = {"same tensor": name, "unknown tensor": "unknown.weight", "t2d": "t2d"}
        held["adapter"] = f"base_model.model.{name}.lora_A.weight"
        if what in held:
            save_file({held[what]: tensor}, file)
        elif what == "no tensors":
            save_file({}, file)
        else:
            file.write_bytes(b"" if what == "no bytes" else b"version https://git-lfs.github.com/spec/v1\n")

    head.after.append(change)
    return f"{what} ({name})"


@kind
def file_pickled(head: Head, rng: random.Random) -> str:
    """A pickle that leaves a mark when it is run, beside the safetensors or alone."""
    alone, name = rng.random() < 0.5, rng.choice(("pytorch_model.bin", "model.pt", "weights.pth"))

    def change(at: Path) -> None:
        (at / name).write_bytes(pickle.dumps(Pickled(at.parent / MARK)))
        if alone:
            (at / WEIGHTS).unlink()

    head.after.append(change)
    return f"{name}, {'alone' if alone else 'beside'}"


@kind
def config_file(head: Head, rng: random.Random) -> str:
    """A config.json that is no JSON object, or an odd one."""
    what = rng.choice(
        ("list", "text", "empty", "cut", "deep", "deep object", "BOM", "utf-16", "latin-1", "twice", "gone")
    )
    what = rng.choice((what, what, "null", "folder", "binary", "padded", "comment", "number of many digits"))
    key = rng.choice(sorted(head.config))

    def change(at: Path) -> None:
        file = at / "config.json"
        text = file.read_text()
        again = json.dumps({key: rng_value})[1:-1]
        texts: dict[str, bytes] = {
            "list": f"[{text}]".encode(),
            "text": json.dumps(text).encode(),
            "empty": b"",
            "null": b"null",
            "cut": text[: len(text) // 2].encode(),
            "deep": b"[" * 200_000,
            "deep object": (text[:-2] + ', "deep": ' + '{"a":' * 50_000 + "1" + "}" * 50_000 + "}").encode(),
            "BOM": ("\ufeff" + text).encode(),
            "utf-16": text.encode("utf-16"),
            "latin-1": (text[:-2] + ', "note": "caf\xe9"}').encode("latin-1"),
            "twice": (text[:-2] + f", {again}}}").encode(),
            "binary": bytes(range(256)),
            "padded": b" " * 1000 + text.encode() + b"\n" * 1000,
            "comment": ("// a comment\n" + text).encode(),
            "number of many digits": (text[:-2] + ', "note": ' + "9" * 100_000 + "}").encode(),
        }
        if what in ("gone", "folder"):
            file.unlink()
            if what == "folder":
                file.mkdir()
        else:
            file.write_bytes(texts[what])

    rng_value = rng.choice((None, 1, "x", [], {}, True))
    head.after.append(change)
    return f"{what} ({key}={rng_value!r})"
