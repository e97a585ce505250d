"""MinHash in NumPy: the definition.

    slot j of a document = min over its shingles of (a_j * x + b_j) mod 2**32,   x = high 32 bits of the shingle hash

with a_j odd, so that each slot is a permutation of the 32-bit numbers. Not the family modulo 2**61 - 1: its product
does not fit 64 bits, and it has no SIMD. A document without shingles has EMPTY in every slot and must meet no other.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

EMPTY = 0xFFFFFFFF


def check(hashes: U64, hash_offsets: I64, a: U32, b: U32) -> None:
    """Refuse arguments that would read outside the arrays.

    raises  ValueError
    """
    if len(hash_offsets) < 1 or bool((hash_offsets[1:] < hash_offsets[:-1]).any()):
        raise ValueError("hash_offsets must have m + 1 entries and never fall")
    if hash_offsets[0] < 0 or hash_offsets[-1] > len(hashes):
        raise ValueError(f"hash_offsets {hash_offsets[0]} to {hash_offsets[-1]} leave {len(hashes)} hashes")
    check_slots(a, b)


def check_slots(a: U32, b: U32) -> None:
    """raises ValueError unless a and b are alike and not empty."""
    if a.ndim != 1 or a.shape != b.shape or not len(a):
        raise ValueError(f"a {a.shape} and b {b.shape} must be two vectors of the same length, one or more")


def minhash(hashes: U64, hash_offsets: I64, a: U32, b: U32) -> U32:
    """MinHash signatures of shingled documents.

    hashes        uint64[total]: shingle hashes, repeats allowed
    hash_offsets  int64[m + 1]: document i has hashes[hash_offsets[i]:hash_offsets[i + 1]]
    a, b          uint32[k]: multipliers and addends, k >= 1
    returns       uint32[m, k]; EMPTY throughout for a document without shingles
    raises        ValueError: arguments that leave the arrays
    """
    check(hashes, hash_offsets, a, b)
    out = np.full((len(hash_offsets) - 1, len(a)), EMPTY, np.uint32)
    for i in range(len(out)):
        x = (hashes[hash_offsets[i] : hash_offsets[i + 1]] >> np.uint64(32)).astype(np.uint32)
        if len(x):
            for j in range(len(a)):
                out[i, j] = (a[j : j + 1] * x + b[j : j + 1]).min()  # slices: arrays wrap without a warning
    return out
