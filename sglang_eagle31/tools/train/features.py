"""The target's states of finished conversations: cached in shards, or made for each batch as it is needed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from sglang_eagle31.tools.train.data import Sample, save_shard, shards_in
from sglang_eagle31.tools.train.target import Target

SHARD = 64
"""Samples a shard."""
BATCH_TOKENS = 4096
"""Padded tokens of one pass of the target."""


def batches(samples: Sequence[Sample], tokens: int = BATCH_TOKENS) -> Iterator[list[Sample]]:
    """Samples of about one length together, at most ``tokens`` padded ones."""
    batch: list[Sample] = []
    for sample in sorted(samples, key=lambda s: len(s.ids)):
        if batch and len(sample.ids) * (len(batch) + 1) > tokens:
            yield batch
            batch = []
        batch.append(sample)
    if batch:
        yield batch


def completed(target: Target, samples: Sequence[Sample]) -> list[Sample]:
    """The samples with the target's states, in their order; those that have them already are kept."""
    missing = [s for s in samples if not s.complete]
    made = {id(old): new for batch in batches(missing) for old, new in zip(batch, target.complete(batch), strict=True)}
    return [made.get(id(s), s) for s in samples]


def cache(target: Target, samples: Sequence[Sample], folder: Path) -> None:
    """Write the samples with their states to ``folder/shard-NNNN-DIGEST.safetensors``.

    Shards that are there already stay, if they hold the same tokens and captured layers; others are removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    groups = [samples[start : start + SHARD] for start in range(0, len(samples), SHARD)]
    names = [f"shard-{i:04d}-{_digest(group, target.boundaries)}.safetensors" for i, group in enumerate(groups)]
    for stale in set(shards_in(folder)) - {folder / name for name in names}:
        stale.unlink()
    for name, group in zip(tqdm(names, desc="features", unit="shard"), groups, strict=True):
        if not (folder / name).exists():
            save_shard(folder / name, completed(target, group))


def _digest(samples: Sequence[Sample], boundaries: Sequence[int]) -> str:
    whole = hashlib.sha1(str(list(boundaries)).encode())
    for sample in samples:
        whole.update(sample.ids.numpy().tobytes())
    return whole.hexdigest()[:8]
