"""MinHash on the device (minhash.cu); the definition is minhash_ref."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_dedup.kernels.cuda import empty, function, launch, scan
from gpu_dedup.kernels.minhash_ref import U32, check_slots
from gpu_dedup.kernels.tape_cuda import tile_rows

GROUPS = 256  # groups of four shingles of a block of minhash.cu
WARPS = 16  # of a block: a multiprocessor of 2,048 threads holds four such blocks, or more smaller ones


def shape(slots: int) -> tuple[int, int]:
    """Blocks across the slots, and threads of each: as few idle lanes as whole warps allow."""
    warps = -(-slots // 32)
    blocks = -(-warps // WARPS)
    return blocks, 32 * -(-warps // blocks)


def minhash(hashes: Any, hash_offsets: Any, a: U32, b: U32, out: Any = None) -> Any:
    """MinHash signatures of shingled documents.

    hashes        uint64[total] on the device: shingle hashes, repeats allowed
    hash_offsets  int64[m + 1] on the device: document i has hashes[hash_offsets[i]:hash_offsets[i + 1]]; trusted
    a, b          uint32[k] on the host: multipliers and addends, k >= 1
    out           uint32[m * k] on the device to write to; new if None
    returns       uint32[m, k] on the device; 0xFFFFFFFF throughout for a document without shingles
    raises        ValueError: a and b that differ in length; m * k of 2**31 or more
    """
    import cupy

    check_slots(a, b)
    rows, slots = hash_offsets.size - 1, len(a)
    if out is None:
        out = empty(rows * slots, np.uint32)
    launch("minhash", "fill_empty", rows * slots, (out, np.int64(rows * slots)))
    if rows and hashes.size:
        counts = empty(rows + 1, np.int64)
        launch("minhash", "group_counts", rows + 1, (hash_offsets, np.int64(rows), counts))
        group_rows, groups = scan(counts)
        if groups:
            tiles = -(-groups // GROUPS)
            begins = tile_rows(group_rows, rows, GROUPS, tiles)
            blocks, threads = shape(slots)
            factors, addends = (cupy.asarray(np.ascontiguousarray(v, np.uint32)) for v in (a, b))
            function("minhash", "minhash")(
                (tiles, blocks),
                (threads,),
                (hashes, hash_offsets, group_rows, begins, np.int64(rows), factors, addends, np.uint32(slots), out),
            )
    return out.reshape((rows, slots))
