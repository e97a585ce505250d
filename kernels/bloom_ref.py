"""Bloom filters of cache-line blocks in plain Python: the definition.

A table is `blocks` blocks of 512 bits, eight words each. A key of one or two 64-bit words has all its bits in one block
(Putze, Sanders, Singler 2007), so that asking costs one line of memory. With a = the key's first word, z its last one:

    h1 = mix64(a + GOLDEN)      h2 = mix64(z + 2 GOLDEN)      of a one-word key: outputs 1 and 2 of SplitMix64(key)
    block = floor(h1 * blocks / 2**64)                        64 bits, of any number of blocks
    x_j   = mix64(h2 + j * (h1 | 1))                          double hashing of the 128 bits, then the finaliser
    bit 7 j + t = bits 9 t ... 9 t + 8 of x_j, t = 0 ... 6    so `hashes` of them are independent, repeats allowed

The bits themselves are no arithmetic progression: in a block of 512 positions there are so few of these that two keys
would share all their bits once in some 10**5 (Kirsch and Mitzenmacher's argument needs a large table).

`add` is the sequential filter, whoever computes it: a row has been seen if and only if each of its bits was set before
the batch or is also a bit of an earlier row of the batch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.mix64 import GOLDEN, MASK64, mix64_array

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

BLOCK_BITS = 512
BLOCK_WORDS = 8
FIELDS = 7  # bits of a block that one hash word chooses, nine of its bits each
MAX_HASHES = 28

_9, _511 = np.uint64(9), np.uint64(BLOCK_BITS - 1)


def check(words: U64, keys: U64, hashes: int) -> None:
    """raises ValueError for a table, keys or a number of hashes that are none."""
    if words.ndim != 2 or words.shape[1] != BLOCK_WORDS or not words.shape[0] or words.dtype != np.uint64:
        raise ValueError(f"a table is uint64[blocks, {BLOCK_WORDS}], not {words.dtype}{list(words.shape)}")
    if keys.ndim != 2 or keys.shape[1] not in (1, 2) or keys.dtype != np.uint64:
        raise ValueError(f"keys are uint64[n, 1] or uint64[n, 2], not {keys.dtype}{list(keys.shape)}")
    if not 1 <= hashes <= MAX_HASHES:
        raise ValueError(f"{hashes} hashes are outside 1 to {MAX_HASHES}")


def check_part(words: U64, keys: U64, seen: U8, first: int, last: int) -> None:
    """raises ValueError for blocks that the table lacks, or a result of another size."""
    if not 0 <= first <= last <= len(words):
        raise ValueError(f"blocks {first} to {last} of a table of {len(words)}")
    if seen.shape != (len(keys),) or seen.dtype != np.uint8:
        raise ValueError(f"seen is uint8[{len(keys)}], not {seen.dtype}{list(seen.shape)}")


def places(keys: U64, blocks: int, hashes: int) -> tuple[U64, I64]:
    """Where the bits of keys are.

    keys     uint64[n, 1] or uint64[n, 2]
    returns  block uint64[n]; bits int64[n, hashes], each 0 to 511
    """
    h1 = mix64_array(keys[:, 0] + np.uint64(GOLDEN))
    h2 = mix64_array(keys[:, -1] + np.uint64(2 * GOLDEN & MASK64))
    block = np.array([int(h) * blocks >> 64 for h in h1], np.uint64)
    step = h1 | np.uint64(1)
    bits = np.empty((len(keys), hashes), np.int64)
    for k in range(hashes):
        word = mix64_array(h2 + np.uint64(k // FIELDS) * step)
        bits[:, k] = word >> (_9 * np.uint64(k % FIELDS)) & _511
    return block, bits


def add(words: U64, keys: U64, hashes: int, seen: U8, first: int, last: int) -> None:
    """Set the bits of keys, one after the other, and say which had all of theirs.

    words        uint64[blocks, 8], changed in place
    keys         uint64[n, 1] or uint64[n, 2]
    hashes       bits of a key, 1 to 28
    seen         uint8[n]: 1 where all bits were set already. Written for keys of the part alone
    first, last  the part: keys of blocks first <= b < last; parts are independent, so several threads may take one each
    raises       ValueError: what `check` and `check_part` refuse
    """
    check(words, keys, hashes)
    check_part(words, keys, seen, first, last)
    block, bits = places(keys, len(words), hashes)
    for i in range(len(keys)):
        if not first <= int(block[i]) < last:
            continue
        own = words[int(block[i])]
        mask = [0] * BLOCK_WORDS
        for bit in bits[i].tolist():
            mask[bit >> 6] |= 1 << (bit & 63)
        missing = 0
        for w in range(BLOCK_WORDS):
            missing |= mask[w] & ~int(own[w])
            own[w] |= np.uint64(mask[w])
        seen[i] = not missing


def ask(words: U64, keys: U64, hashes: int) -> U8:
    """Which keys have all their bits.

    words    uint64[blocks, 8]
    keys     uint64[n, 1] or uint64[n, 2]
    returns  uint8[n]: 1 for every key that was added, and by chance for some that were not
    raises   ValueError: what `check` refuses
    """
    check(words, keys, hashes)
    block, bits = places(keys, len(words), hashes)
    out = np.ones(len(keys), np.uint8)
    for k in range(hashes):
        word = words[block.astype(np.int64), bits[:, k] >> 6]
        out &= (word >> (bits[:, k] & 63).astype(np.uint64) & np.uint64(1)).astype(np.uint8)
    return out


def fill(words: U64) -> I64:
    """How full blocks are.

    words    uint64[blocks, 8]
    returns  int64[513]: blocks with 0, 1 ... 512 bits set
    """
    each = np.zeros(len(words), np.int64)
    for w in range(BLOCK_WORDS):
        own = np.ascontiguousarray(words[:, w]).view(np.uint8).reshape(-1, 8)
        each += np.unpackbits(own, axis=1).sum(axis=1, dtype=np.int64)
    return np.bincount(each, minlength=BLOCK_BITS + 1).astype(np.int64)
