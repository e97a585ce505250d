"""SimHash in Numba; the definition is simhash_ref.

The 64 counts lie across the lanes of vectors, a byte each, and are emptied into 32-bit sums before they can overflow:
64 shifts, masks and additions a hash are then a handful of vector instructions.
"""

from __future__ import annotations

import numpy as np

from gpu_dedup.kernels.jit import frozen, jit
from gpu_dedup.kernels.simhash_ref import BITS, I64, U64, check

_0 = np.uint64(0)
_1 = np.uint64(1)
_SPREAD = np.uint64(0x0101010101010101)
BURST = 255  # hashes before a byte could overflow


@jit
def _simhash(hashes: U64, hash_offsets: I64, out: U64) -> None:
    counts = np.empty(BITS, np.int64)
    planes = np.empty(8, np.uint64)  # plane s: bits s, s + 8, ... s + 56, a byte each
    for d in range(len(out)):
        begin = hash_offsets[d]
        end = hash_offsets[d + 1]
        counts[:] = 0
        for at in range(begin, end, BURST):
            planes[:] = _0
            for i in range(at, min(at + BURST, end)):
                h = hashes[i]
                for s in range(8):
                    planes[s] += (h >> np.uint64(s)) & _SPREAD
            for bit in range(BITS):
                counts[bit] += np.int64((planes[bit & 7] >> np.uint64(bit & 56)) & np.uint64(255))
        word = _0
        for bit in range(BITS):
            if 2 * counts[bit] > end - begin:
                word |= _1 << np.uint64(bit)
        out[d] = word


def simhash(hashes: U64, hash_offsets: I64) -> U64:
    """64-bit SimHash of shingle sets; see simhash_ref.simhash."""
    check(hashes, hash_offsets)
    out = np.empty(len(hash_offsets) - 1, np.uint64)
    _simhash(frozen(hashes, np.uint64), frozen(hash_offsets, np.int64), out)
    return out
