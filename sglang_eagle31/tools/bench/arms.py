"""What is compared: servers of one model whose flags differ in the speculative ones."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_eagle31.maths.shape import Shape

NONE = "none"
GUARD_FLAG = "--eagle31-guard"
BUILT_IN = (NONE, "eagle3", "eagle31", "guard")


@dataclass(frozen=True)
class Arm:
    """One of the servers; ``flags`` are those that the others do not have."""

    name: str
    flags: tuple[str, ...] = ()

    @property
    def speculates(self) -> bool:
        """Whether its flags ask for speculation."""
        return "--speculative-algorithm" in self.flags


def built_in(names: Sequence[str], head: Path, shape: Shape) -> list[Arm]:
    """The arms of a sweep, in the order of `BUILT_IN`.

    ``none`` drafts nothing; ``eagle3`` is stock SGLang's EAGLE3 with the same head; ``eagle31`` always runs the shape
    that is given; ``guard`` may run a smaller one or none.
    """
    head_flags = ("--speculative-draft-model-path", str(head), *shape.flags().split())
    flags: dict[str, tuple[str, ...]] = {
        NONE: (),
        "eagle3": ("--speculative-algorithm", "EAGLE3", *head_flags),
        "eagle31": ("--speculative-algorithm", "EAGLE31", *head_flags, GUARD_FLAG, "off"),
        "guard": ("--speculative-algorithm", "EAGLE31", *head_flags, GUARD_FLAG, "on"),
    }
    unknown = [name for name in names if name not in flags]
    if unknown:
        raise ValueError(f"--arms {unknown[0]}: no such arm; fix: of {', '.join(flags)}")
    return [Arm(name, flags[name]) for name in BUILT_IN if name in names]


def parse_arm(text: str) -> Arm:
    """``NAME="FLAGS"`` of ``bench --replay``. Raises ValueError for anything else."""
    match = re.fullmatch(r"([\w.+-]+)=(.*)", text, re.DOTALL)
    try:
        flags = shlex.split(match[2]) if match else None
    except ValueError:
        flags = None
    if match is None or flags is None or (flags and not flags[0].startswith("--")):
        raise ValueError(
            f'--arm {text}: expected NAME="FLAGS"; fix: for example --arm old="--speculative-algorithm EAGLE31 '
            '--speculative-draft-model-path HEAD", and --arm plain= for no speculation'
        )
    return Arm(match[1], tuple(flags))


def parse_arms(texts: Sequence[str]) -> list[Arm]:
    """All of them; raises ValueError for fewer than two and for a name that comes twice."""
    arms = [parse_arm(text) for text in texts]
    names = [arm.name for arm in arms]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"--arm {twice[0]}: given twice; fix: a name of its own for each")
    if len(arms) < 2:
        raise ValueError(f'--replay compares arms, found {len(arms)}; fix: --arm NAME="FLAGS" at least twice')
    return arms


def stock_can_read(head: Path, target: Path) -> str:
    """Why stock SGLang would not compute what the head was trained for; empty if it would, as ``audit`` predicts it.

    Raises ValueError where head or target cannot be read.
    """
    from sglang_eagle31.tools.audit.report import audit

    outcome = audit(str(head), str(target)).elsewhere["sglang"]
    return "" if outcome.kind == "exact" else f"{outcome.kind}: {'; '.join(outcome.reasons)}"
