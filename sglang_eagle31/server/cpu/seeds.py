"""The hash from which SGLang's deterministic sampling takes its random numbers.

`torch.ops.sgl_kernel.murmur_hash32_cpu` of the real `sgl_kernel`: MurmurHash3, x86, 32 bits (Appleby), seed 0, over the
16 bytes of a 64-bit request seed, a position and a column, all little-endian.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Words = NDArray[np.uint32]


def murmur_hash32_cpu(seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor) -> torch.Tensor:
    """Hash every pair of a row and a column.

    Args:
        seed: [R] 64-bit integers.
        positions: [R] integers; the low 32 bits count.
        col_indices: [C] integers; the low 32 bits count.

    Returns:
        uint32 [R, C].
    """
    seeds = seed.numpy().astype(np.uint64)
    state = np.zeros(len(seeds), dtype=np.uint32)
    for block in (_low(seeds), _low(seeds >> np.uint64(32)), _low(positions.numpy())):
        state = _mix(state, block)
    mixed = _mix(state[:, None], _low(col_indices.numpy())[None, :])
    return torch.from_numpy(_finish(mixed ^ np.uint32(16)))


def _low(values: NDArray[Any]) -> Words:
    return (values.astype(np.uint64) & np.uint64(0xFFFFFFFF)).astype(np.uint32)


def _rotate(values: Words, by: int) -> Words:
    rotated: Words = (values << np.uint32(by)) | (values >> np.uint32(32 - by))
    return rotated


def _mix(state: Words, block: Words) -> Words:
    scrambled = _rotate(block * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    mixed: Words = _rotate(state ^ scrambled, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    return mixed


def _finish(state: Words) -> Words:
    state = (state ^ (state >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    state = (state ^ (state >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    finished: Words = state ^ (state >> np.uint32(16))
    return finished
