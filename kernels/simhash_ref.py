"""SimHash in NumPy: the definition.

    bit i of a document = 1 if more than half of its shingle hashes have bit i set, else 0

which is the sign of the sum over the SET of its shingles of +1 for a set bit and -1 for a clear one, weight 1 each
(Charikar 2002): sum > 0, so a tie gives 0. The kernel counts what it is given; that no hash comes twice is for the
caller to see to (shingle_ref.shingle_sets). A document without shingles has 0 and must meet no other.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

BITS = 64


def check(hashes: U64, hash_offsets: I64) -> None:
    """Refuse arguments that would read outside the arrays.

    raises  ValueError
    """
    if len(hash_offsets) < 1 or bool((hash_offsets[1:] < hash_offsets[:-1]).any()):
        raise ValueError("hash_offsets must have m + 1 entries and never fall")
    if hash_offsets[0] < 0 or hash_offsets[-1] > len(hashes):
        raise ValueError(f"hash_offsets {hash_offsets[0]} to {hash_offsets[-1]} leave {len(hashes)} hashes")


def simhash(hashes: U64, hash_offsets: I64) -> U64:
    """64-bit SimHash of shingle sets.

    hashes        uint64[total]: shingle hashes, none twice within a document, in any order
    hash_offsets  int64[m + 1]: document i has hashes[hash_offsets[i]:hash_offsets[i + 1]]
    returns       uint64[m]
    raises        ValueError: arguments that leave the arrays
    """
    check(hashes, hash_offsets)
    out = np.zeros(len(hash_offsets) - 1, np.uint64)
    for i in range(len(out)):
        own = hashes[hash_offsets[i] : hash_offsets[i + 1]]
        for bit in range(BITS):
            ones = int(((own >> np.uint64(bit)) & np.uint64(1)).sum())
            if 2 * ones - len(own) > 0:
                out[i] |= np.uint64(1 << bit)
    return out
