"""Bloom filters on the device (bloom.cu); the definition is bloom_ref."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_dedup.kernels.bloom_ref import BLOCK_BITS, BLOCK_WORDS, check
from gpu_dedup.kernels.cuda import empty, function, launch, zeros
from gpu_dedup.kernels.ranks_cuda import PEAK as SORT_PEAK
from gpu_dedup.kernels.ranks_cuda import group

PEAK = SORT_PEAK + 40  # device memory of `add` at its peak, in bytes per key
THREADS = 64  # of a block of `add_groups`


def add(words: Any, keys: Any, hashes: int) -> Any:
    """Set the bits of keys, and say which had all of theirs, as if they came one after the other.

    words    uint64[blocks, 8] on the device, changed in place
    keys     uint64[n, 1] or uint64[n, 2] on the device
    hashes   bits of a key
    returns  uint8[n] on the device: 1 where all bits were set before or are also bits of earlier rows
    raises   ValueError: what bloom_ref.check refuses; MemoryError, RuntimeError: a wrong sort or sum
    """
    check(words, keys, hashes)
    n, width = keys.shape
    seen = empty(n, np.uint8)
    if not n:
        return seen
    blocks = np.uint64(words.shape[0])
    numbers = empty(n, np.uint64)
    launch("bloom", "block_numbers", n, (keys, np.int64(n), np.uint32(width), blocks, numbers))
    groups = group(numbers)
    del numbers
    starts = empty(groups.count + 1, np.int64)
    launch("bloom", "group_starts", n, (groups.flags, groups.runs, np.int64(n), starts))
    arguments = (words, blocks, keys, np.uint32(width), np.uint32(hashes), groups.order, starts, seen)
    function("bloom", "add_groups")((groups.count,), (THREADS,), arguments)
    return seen


def ask(words: Any, keys: Any, hashes: int) -> Any:
    """Which keys have all their bits.

    words    uint64[blocks, 8] on the device
    keys     uint64[n, 1] or uint64[n, 2] on the device
    returns  uint8[n] on the device
    raises   ValueError: what bloom_ref.check refuses
    """
    check(words, keys, hashes)
    n, width = keys.shape
    seen = empty(n, np.uint8)
    arguments = (words, np.uint64(words.shape[0]), keys, np.int64(n), np.uint32(width), np.uint32(hashes), seen)
    launch("bloom", "ask_keys", n, arguments)
    return seen


def fill(words: Any) -> Any:
    """uint64[513] on the device: blocks with 0, 1 ... 512 bits set.

    words    uint64[blocks, 8] on the device
    """
    counts = zeros(BLOCK_BITS + 1, np.uint64)
    blocks = int(words.size) // BLOCK_WORDS
    launch("bloom", "fill_counts", blocks, (words, np.int64(blocks), counts))
    return counts
