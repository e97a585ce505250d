"""SimHash on the device (simhash.cu); the definition is simhash_ref."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_dedup.kernels.cuda import empty, launch, zeros
from gpu_dedup.kernels.simhash_ref import BITS
from gpu_dedup.kernels.tape_cuda import tile_rows

PER_WARP = 256  # hashes of a warp of simhash.cu


def simhash(hashes: Any, hash_offsets: Any) -> Any:
    """64-bit SimHash of shingle sets.

    hashes        uint64[total] on the device: shingle hashes, none twice within a document, in any order
    hash_offsets  int64[m + 1] on the device: document i has hashes[hash_offsets[i]:hash_offsets[i + 1]]; trusted
    returns       uint64[m] on the device
    raises        ValueError: m of 2**25 or more (the 64 sums of each are one array)
    """
    rows = hash_offsets.size - 1
    ones = zeros(rows * BITS, np.uint32)
    out = empty(2 * rows, np.uint32)
    tiles = -(-hashes.size // PER_WARP)
    if rows and tiles:
        begins = tile_rows(hash_offsets, rows, PER_WARP, tiles)
        arguments = (hashes, hash_offsets, begins, np.int64(rows), np.int64(tiles), ones)
        launch("simhash", "bit_counts", 32 * tiles, arguments)
    launch("simhash", "majorities", rows * BITS, (ones, hash_offsets, np.int64(rows), out))
    return out.view(np.uint64)
