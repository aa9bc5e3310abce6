"""How to optimise, and in which order the samples come."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """How to optimise. The run's length is ``steps``, unless ``epochs`` or ``minutes`` is positive."""

    steps: int = 1000
    epochs: int = 0
    minutes: float = 0.0
    """Wall minutes, over all resumed parts."""
    ttt: int = 5
    lr: float = 1e-3
    output_lr: float = 1.0
    """Learning rate of ``lm_head`` relative to the rest; 0 keeps the target's own rows."""
    warmup: float = 0.02
    """Share of the run."""
    batch_tokens: int = 2048
    accumulate: int = 1
    """Batches whose gradients make one step."""
    clip: float = 0.5
    dropout: float = 0.0
    """Against overfitting where data are few."""
    seed: int = 0
    eval_every: int = 100
    eval_depth: int = 5
    """Tokens drafted from every held-out position."""
    save_every: int = 100
    bf16: bool = False
    """Autocast. Faster on a GPU or a CPU with AMX; slower on a CPU with AVX-512 alone."""

    def __post_init__(self) -> None:
        for name in ("steps", "ttt", "batch_tokens", "accumulate", "eval_every", "eval_depth", "save_every"):
            if getattr(self, name) < 1:
                flag = f"--{name.replace('_', '-')}"
                raise ValueError(f"{flag} {getattr(self, name)}: too small; fix: a number of at least 1")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"--warmup {self.warmup}: not a share; fix: at least 0 and below 1")
        if self.epochs > 0 and self.minutes > 0:
            raise ValueError(f"--epochs {self.epochs} and --minutes {self.minutes}: two lengths; fix: give one of them")


def epoch_batches(lengths: list[int], batch_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """Sample indices in batches of at most ``batch_tokens`` padded tokens; the order depends on seed and epoch only."""
    rng = random.Random(f"{seed}/{epoch}")
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i] + rng.uniform(0, 32), i))
    batches: list[list[int]] = []
    longest = 0
    for index in order:
        longest = max(longest, lengths[index])
        if batches and longest * (len(batches[-1]) + 1) <= batch_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
            longest = lengths[index]
    rng.shuffle(batches)
    return batches


def steps_of(options: Options, lengths: list[int]) -> int:
    """Optimiser steps of the whole run; of ``epochs`` passes, where they are given."""
    if options.epochs < 1:
        return options.steps
    passes = range(options.epochs)
    batches = sum(len(epoch_batches(lengths, options.batch_tokens, options.seed, e)) for e in passes)
    return max(1, batches // options.accumulate)
