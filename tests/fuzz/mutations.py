"""Ways to break a draft head's files, or to change them without breaking them: by name, each from a stream of its own.

head = Head.of(variant, shape)          as the producer writes it
said = KINDS["d2t_absolute"](head, rng)  changes it; "" where the head has nothing of that kind to change
head.write(folder)
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from truth import producers


@dataclass
class Head:
    """A head before it is written, and what is done to the written files.

    ``overrides`` are more facts that the user states to us and ``facts`` the same ones in the reader's words; with
    ``silent`` the user states nothing. ``other`` is the variant whose config.json it has, if that is another one.
    """

    variant: str
    shape: producers.Shape
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    after: list[Callable[[Path], None]] = field(default_factory=list)
    silent: bool = False
    other: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    overrides: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, variant: str, shape: producers.Shape) -> Head:
        """The untouched head of a variant."""
        config, tensors, metadata = producers.VARIANTS[variant].files(producers.head(variant, shape), shape)
        return cls(variant, shape, copy.deepcopy(config), dict(tensors), metadata)

    def write(self, folder: Path) -> Path:
        """The files, changed in memory first and on the disk then."""
        producers.save(folder, self.config, self.tensors, self.metadata)
        for change in self.after:
            change(folder)
        return folder


Mutation = Callable[[Head, random.Random], str]
KINDS: dict[str, Mutation] = {}
"""Every mutation by its name; filled by the modules of this folder."""


def kind(function: Mutation) -> Mutation:
    """Register a mutation under its function's name."""
    KINDS[function.__name__] = function
    return function


def a_tensor(head: Head, rng: random.Random, dims: int | None = None) -> str:
    """The name of one tensor, of so many dimensions; "" if there is none."""
    names = sorted(name for name, value in head.tensors.items() if dims is None or value.dim() == dims)
    return rng.choice(names) if names else ""


def typo(text: str, rng: random.Random) -> str:
    """One letter more, less, other, or in the other case."""
    at = rng.randrange(len(text))
    return rng.choice(
        (
            text[:at] + text[at + 1 :] or "x",
            text[:at] + text[at] + text[at:],
            text[:at] + "z" + text[at + 1 :],
            text[:at] + text[at].swapcase() + text[at + 1 :],
            text + rng.choice(("_x", "s", " ", ".weight", "\n", "é")),
            rng.choice(("my_", "model.", " ")) + text,
        )
    )


def seeded(rng: random.Random) -> torch.Generator:
    """A torch stream from this one."""
    return torch.Generator().manual_seed(rng.getrandbits(32))
