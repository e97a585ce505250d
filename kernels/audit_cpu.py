"""Sampled sets against every set (Numba). Contract: ``audit_ref.py``.

One look into the directory for each item, and mostly it finds an empty cell. Items ascend within a set, so the looks go
through the directory in one direction. What costs is shingles that many sampled sets have: one step for each of them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.audit_ref import audit_index, check_index, check_ragged
from gpu_dedup.kernels.jit import frozen, jit

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

PPM = 1_000_000
ROOM = 1 << 10  # pairs that fit at the first try


@jit
def _audit(
    items: U64, offsets: I64, keys: U64, starts: I64, owners: I64, directory: I64, shift: np.uint64, sizes: I64,
    threshold_ppm: int, counts: I64, touched: I64, out: I64,
) -> int:  # fmt: skip
    """Pairs found; those that fit are in `out`, int64[room, 4]. counts: zeros before and after. touched: scratch."""
    found = 0
    for document in range(len(offsets) - 1):
        many = 0
        for i in range(offsets[document], offsets[document + 1]):
            item = items[i]
            cell = np.int64(item >> shift)
            for key in range(directory[cell], directory[cell + 1]):
                if keys[key] == item:
                    for j in range(starts[key], starts[key + 1]):
                        owner = owners[j]
                        if counts[owner] == 0:
                            touched[many] = owner
                            many += 1
                        counts[owner] += 1
        size = offsets[document + 1] - offsets[document]
        for j in range(many):
            owner = touched[j]
            shared = counts[owner]
            counts[owner] = 0
            union = sizes[owner] + size - shared
            if shared * PPM >= threshold_ppm * union:
                if found < len(out):
                    out[found, 0] = document
                    out[found, 1] = owner
                    out[found, 2] = shared
                    out[found, 3] = union
                found += 1
    return int(found)


def audit(
    items: U64, offsets: I64, keys: U64, starts: I64, owners: I64, directory: I64, sizes: I64, threshold_ppm: int
) -> tuple[I64, I64, I64, I64]:
    """Pairs of a set and a sampled set at or above a Jaccard similarity; see ``audit_ref.audit``."""
    check_ragged(items, offsets)
    check_index(keys, starts, owners, directory, sizes)
    if threshold_ppm < 1:
        raise ValueError(f"threshold {threshold_ppm} is below 1 millionth: every pair would match")
    shift = np.uint64(64 - (len(directory) - 2).bit_length())  # 2**d cells: the highest d bits of an item
    counts, touched = np.zeros(len(sizes), np.int64), np.empty(len(sizes), np.int64)
    room = ROOM
    while True:
        out = np.empty((room, 4), np.int64)
        found = _audit(
            frozen(items, np.uint64), frozen(offsets, np.int64), frozen(keys, np.uint64), frozen(starts, np.int64),
            frozen(owners, np.int64), frozen(directory, np.int64), shift, frozen(sizes, np.int64),
            np.int64(threshold_ppm), counts, touched, out,
        )  # fmt: skip
        if found <= room:
            break
        room = found
    out = out[:found]
    out = out[np.lexsort((out[:, 1], out[:, 0]))]
    left, right, shared, union = out.T
    return left.copy(), right.copy(), shared.copy(), union.copy()


__all__ = ["audit", "audit_index"]
