"""Mutations of the weight files: headers, truncation, shards and their index."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mutations import Head, a_tensor, kind
from safetensors.torch import save_file

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def header(file: Path) -> tuple[dict[str, Any], bytes]:
    """The JSON header of a safetensors file, and the bytes after it."""
    raw = file.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def put_header(file: Path, text: str, data: bytes, length: int | None = None) -> None:
    """A safetensors file with any header, and any length stated for it."""
    raw = text.encode()
    file.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)


@kind
def file_truncated(head: Head, rng: random.Random) -> str:
    share = rng.choice((0.0, 1e-5, 0.001, 0.5, 0.999999))
    head.after.append(lambda at: os.truncate(at / WEIGHTS, int((at / WEIGHTS).stat().st_size * share)))
    return f"to {share} of its length"


@kind
def file_longer(head: Head, rng: random.Random) -> str:
    count = rng.choice((1, 8, 4096))

    def change(at: Path) -> None:
        with (at / WEIGHTS).open("ab") as file:
            file.write(b"\0" * count)

    head.after.append(change)
    return f"{count} bytes more"


@kind
def file_flipped(head: Head, rng: random.Random) -> str:
    """One byte of the header, of its length, or of the data is another one."""
    where, draw, byte = (
        rng.choice(("length", "header", "header", "header", "data")),
        rng.random(),
        rng.randrange(1, 256),
    )

    def change(at: Path) -> None:
        raw = bytearray((at / WEIGHTS).read_bytes())
        (length,) = struct.unpack("<Q", raw[:8])
        start, end = {"length": (0, 8), "header": (8, 8 + length), "data": (8 + length, len(raw))}[where]
        raw[start + int(draw * (end - start))] ^= byte
        (at / WEIGHTS).write_bytes(raw)

    head.after.append(change)
    return f"{where} at {draw:.6f} ^ {byte}"


@kind
def file_hostile(head: Head, rng: random.Random) -> str:
    """A header that lies."""
    name, other = a_tensor(head, rng), a_tensor(head, rng)
    lies: dict[str, Callable[[dict[str, Any]], Any]] = {
        "negative offsets": lambda h: h[name].update(data_offsets=[-8, h[name]["data_offsets"][1]]),
        "huge offsets": lambda h: h[name].update(data_offsets=[2**62, 2**63]),
        "offsets beyond 64 bits": lambda h: h[name].update(data_offsets=[0, 10**30]),
        "reversed offsets": lambda h: h[name].update(data_offsets=h[name]["data_offsets"][::-1]),
        "overlapping": lambda h: h[name].update(data_offsets=h[other]["data_offsets"]),
        "huge shape": lambda h: h[name].update(shape=[2**40, 2**40]),
        "shape that overflows": lambda h: h[name].update(shape=[2**63, 2]),
        "negative shape": lambda h: h[name].update(shape=[-1, *h[name]["shape"][1:]]),
        "shape of many ones": lambda h: h[name].update(shape=[1] * 3000 + h[name]["shape"]),
        "float shape": lambda h: h[name].update(shape=[float(i) for i in h[name]["shape"]]),
        "unknown dtype": lambda h: h[name].update(dtype="Q4"),
        "no dtype": lambda h: h[name].pop("dtype"),
        "other dtype": lambda h: h[name].update(dtype="I32" if h[name]["dtype"] == "F32" else "F32"),
        "metadata is a list": lambda h: h.update(__metadata__=[1]),
        "metadata of numbers": lambda h: h.update(__metadata__={"format": 3}),
        "metadata is text": lambda h: h.update(__metadata__="pt"),
        "no metadata": lambda h: h.pop("__metadata__", None),
        "much metadata": lambda h: h.update(__metadata__={str(i): "x" * 100 for i in range(20_000)}),
        "an entry is a list": lambda h: h.update({name: [1, 2]}),
        "a long name": lambda h: h.update({"x" * 200_000: h.pop(name)}),
        "many names": lambda h: h.update({f"t{i}": _empty() for i in range(50_000)}),
        "many layers": lambda h: h.update({f"layers.{i}.norm.weight": _empty() for i in range(9_000)}),
        "a name of paths": lambda h: h.update({"../../" + name: h.pop(name)}),
        "no tensors": lambda h: h.clear(),
    }
    what = rng.choice(sorted(lies))

    def change(at: Path) -> None:
        entries, data = header(at / WEIGHTS)
        lies[what](entries)
        put_header(at / WEIGHTS, json.dumps(entries), data)

    head.after.append(change)
    return f"{what} ({name})"


def _empty() -> dict[str, Any]:
    return {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


@kind
def file_header_text(head: Head, rng: random.Random) -> str:
    """A header that is no header."""
    name = a_tensor(head, rng)
    what = rng.choice(
        ("2**60", "2**64-1", "0", "short", "not JSON", "list", "deep", "twice", "twice, other shape", "nul")
    )

    def change(at: Path) -> None:
        entries, data = header(at / WEIGHTS)
        text = json.dumps(entries)
        again = json.dumps({name: {**entries[name], "shape": [1, *entries[name]["shape"]]}})[1:-1]
        same = json.dumps({name: entries[name]})[1:-1]
        texts = {
            "not JSON": text[:-2],
            "list": "[1, 2, 3]",
            "deep": "[" * 100_000,
            "twice": f"{text[:-1]}, {same}}}",
            "twice, other shape": f"{text[:-1]}, {again}}}",
            "nul": text + "\0\0",
        }
        lengths = {"2**60": 2**60, "2**64-1": 2**64 - 1, "0": 0, "short": len(text) - 5}
        put_header(at / WEIGHTS, texts.get(what, text), data, lengths.get(what))

    head.after.append(change)
    return f"{what} ({name})"


@kind
def file_split(head: Head, rng: random.Random) -> str:
    """Two shards, with an index that is right, that lies, or without one."""
    name = a_tensor(head, rng)
    names = sorted(head.tensors)
    first = set(rng.sample(names, len(names) // 2))
    shards = {1: "model-00001-of-00002.safetensors", 2: "model-00002-of-00002.safetensors"}
    placed: dict[str, Any] = {n: shards[1 if n in first else 2] for n in names}
    lies: dict[str, Any] = {
        "none": None,
        "right": placed,
        "one missing": {n: file for n, file in placed.items() if n != name},
        "one elsewhere": {**placed, name: shards[2 if name in first else 1]},
        "one more": {**placed, "unknown.weight": shards[1]},
        "one shard only": {n: file for n, file in placed.items() if file == shards[1]},
        "a file that is not there": {**placed, name: "model-00003-of-00002.safetensors"},
        "a file outside": {**placed, name: "../model.safetensors"},
        "an absolute file": {**placed, name: "/etc/hostname"},
        "a number": {**placed, name: 3},
        "empty": {},
        "a list": names,
    }
    what = rng.choice(sorted(lies))
    keep, tensor = rng.random() < 0.2, head.tensors[name]

    def change(at: Path) -> None:
        for number, file in shards.items():
            held = {n: value for n, value in head.tensors.items() if (n in first) == (number == 1)}
            part = {n: value.clone().contiguous() for n, value in held.items()}
            save_file(part, at / file, head.metadata)
        if keep:
            save_file({name: tensor.clone().contiguous()}, at.parent / WEIGHTS)
        (at / WEIGHTS).unlink()
        if lies[what] is not None:
            (at / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": lies[what]}))

    head.after.append(change)
    return f"index {what} ({name})"


@kind
def file_index(head: Head, rng: random.Random) -> str:
    """An index beside one file."""
    names = sorted(head.tensors)
    right = {"weight_map": dict.fromkeys(names, WEIGHTS)}
    texts = {
        "right": json.dumps(right),
        "not JSON": "{",
        "list": "[]",
        "no map": "{}",
        "empty": "",
        "deep": "[" * 100_000,
        "BOM": "\ufeff" + json.dumps(right),
        "partial": json.dumps({"weight_map": {names[0]: WEIGHTS}}),
        "null": json.dumps({"weight_map": None}),
    }
    what = rng.choice(sorted(texts))
    head.after.append(lambda at: (at / INDEX).write_text(texts[what]) and None)
    return what
