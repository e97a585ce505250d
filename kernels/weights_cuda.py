"""Cells of documents on the device (weights.cu); the definition is weights_ref. The table itself is the host's."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_dedup.kernels.cuda import empty, launch, scan, zeros
from gpu_dedup.kernels.ranks_cuda import check_sorted


def cells(hashes: Any, hash_rows: Any, total: int) -> Any:
    """Cells of rows of hashes, each once for a row.

    hashes     uint64[total] on the device
    hash_rows  int64[rows + 1] on the device: row i has hashes[hash_rows[i]:hash_rows[i + 1]]; trusted
    returns    uint32[t] on the device, by row and ascending
    raises     MemoryError, RuntimeError: the device sorted or summed wrongly
    """
    import cupy

    if not total:
        return empty(0, np.uint32)
    size = np.int64(total)
    keys = empty(total, np.uint64)
    launch("weights", "cell_keys", total, (hashes, hash_rows, np.int64(hash_rows.size - 1), size, keys))
    keys = cupy.sort(keys)
    flags = empty(total, np.int64)
    report = zeros(1, np.uint32)
    launch("shingle_sets", "set_flags", total, (keys, size, flags, report))
    check_sorted(int(report.get()[0]), total)
    places, count = scan(flags)
    out = empty(count, np.uint32)
    launch("weights", "cell_items", total, (keys, flags, places, size, out))
    return out
