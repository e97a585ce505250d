"""Shingle sets on the device (shingle_sets.cu); the definition is shingle_ref.shingle_sets."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_dedup.kernels.cuda import empty, launch, scan, zeros
from gpu_dedup.kernels.ranks_cuda import check_sorted, group, numbers, values


def unique_rows(hashes: Any, hash_rows: Any, total: int) -> tuple[Any, Any]:
    """Sets of rows of hashes.

    hashes     uint64[total] on the device
    hash_rows  int64[rows + 1] on the device: row i has hashes[hash_rows[i]:hash_rows[i + 1]]; trusted
    returns    items uint64[t], ascending and unique within a row, offsets int64[rows + 1]; on the device
    raises     MemoryError, RuntimeError: the device sorted or summed wrongly
    """
    items, _, offsets = _sets(hashes, hash_rows, total, False)
    return items, offsets


def counted_rows(hashes: Any, hash_rows: Any, total: int) -> tuple[Any, Any, Any]:
    """The same, and how often each item occurs. Arguments and errors of `unique_rows`.

    returns  items uint64[t]; starts int64[t]: item i occurs starts[i + 1] - starts[i] times, the last one
             total - starts[t - 1] times; offsets int64[rows + 1]
    """
    return _sets(hashes, hash_rows, total, True)


def _sets(hashes: Any, hash_rows: Any, total: int, counted: bool) -> tuple[Any, Any, Any]:
    import cupy

    rows = int(hash_rows.size) - 1
    starts = empty(0, np.int64)
    if not total:
        return empty(0, np.uint64), starts, zeros(rows + 1, np.int64)
    size = np.int64(total)
    groups = group(hashes)
    kinds, own = values(groups, hashes), numbers(groups)
    del groups
    packed = empty(total, np.uint64)
    launch("shingle_sets", "row_keys", total, (own, hash_rows, np.int64(rows), size, packed))
    del own
    packed = cupy.sort(packed)
    flags = empty(total, np.int64)
    report = zeros(1, np.uint32)
    launch("shingle_sets", "set_flags", total, (packed, size, flags, report))
    check_sorted(int(report.get()[0]), total)
    places, count = scan(flags)
    items = empty(count, np.uint64)
    launch("shingle_sets", "set_items", total, (packed, flags, places, kinds, size, items))
    if counted:
        starts = empty(count, np.int64)
        launch("shingle_sets", "set_starts", total, (flags, places, size, starts))
    offsets = empty(rows + 1, np.int64)
    launch("shingle_sets", "set_rows", rows + 1, (hash_rows, np.int64(rows), places, offsets))
    return items, starts, offsets
