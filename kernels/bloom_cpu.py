"""Bloom filters in Numba; the definition is bloom_ref.

Keys are taken AHEAD at a time: their blocks are worked out and asked for from memory first, so that the lines are in
the cache when the bits are set, in order, by one thread. Other threads may work on other blocks at the same time.
"""

from __future__ import annotations

import numpy as np

from gpu_dedup.kernels.bloom_ref import BLOCK_BITS, BLOCK_WORDS, FIELDS, I64, U8, U64, check, check_part
from gpu_dedup.kernels.jit import frozen, inline, jit
from gpu_dedup.kernels.mix64 import GOLDEN as GOLDEN_INT
from gpu_dedup.kernels.mix64 import MASK64
from gpu_dedup.kernels.mix64_cpu import GOLDEN, Word, mix64
from gpu_dedup.kernels.simd import mulhi64, popcount64, prefetch_line

AHEAD = 64

_GOLDEN2 = np.uint64(2 * GOLDEN_INT & MASK64)
_0, _1, _6, _9, _63, _511 = (np.uint64(v) for v in (0, 1, 6, 9, 63, 511))


@inline
def _bits(h1: Word, h2: Word, hashes: int, mask: U64) -> None:
    """mask[8] = the key's bits."""
    for w in range(BLOCK_WORDS):
        mask[w] = _0
    step = h1 | _1
    left = hashes
    while left > 0:
        x = mix64(h2)
        for _ in range(min(left, FIELDS)):
            bit = x & _511
            mask[bit >> _6] |= _1 << (bit & _63)
            x >>= _9
        h2 += step
        left -= FIELDS


@jit
def _add(words: U64, keys: U64, hashes: int, seen: U8, first: np.uint64, last: np.uint64) -> None:
    blocks = np.uint64(len(words))
    end = keys.shape[1] - 1
    mask = np.empty(BLOCK_WORDS, np.uint64)
    at, row = np.empty(AHEAD, np.int64), np.empty(AHEAD, np.int64)
    one, two = np.empty(AHEAD, np.uint64), np.empty(AHEAD, np.uint64)
    for start in range(0, len(keys), AHEAD):
        count = 0
        for i in range(start, min(start + AHEAD, len(keys))):
            h1 = mix64(keys[i, 0] + GOLDEN)
            block = mulhi64(h1, blocks)
            if block - first < last - first:  # unsigned: first <= block < last
                at[count], row[count], one[count] = np.int64(block), i, h1
                two[count] = mix64(keys[i, end] + _GOLDEN2)
                prefetch_line(words, np.int64(block) * 64)
                count += 1
        for c in range(count):
            _bits(one[c], two[c], hashes, mask)
            missing = _0
            own = at[c]
            for w in range(BLOCK_WORDS):
                missing |= mask[w] & ~words[own, w]
            if missing != _0:
                for w in range(BLOCK_WORDS):
                    words[own, w] |= mask[w]
            seen[row[c]] = missing == _0


@jit
def _ask(words: U64, keys: U64, hashes: int, seen: U8) -> None:
    blocks = np.uint64(len(words))
    end = keys.shape[1] - 1
    mask = np.empty(BLOCK_WORDS, np.uint64)
    at = np.empty(AHEAD, np.int64)
    one = np.empty(AHEAD, np.uint64)
    for start in range(0, len(keys), AHEAD):
        count = min(AHEAD, len(keys) - start)
        for c in range(count):
            one[c] = mix64(keys[start + c, 0] + GOLDEN)
            at[c] = np.int64(mulhi64(one[c], blocks))
            prefetch_line(words, at[c] * 64)
        for c in range(count):
            _bits(one[c], mix64(keys[start + c, end] + _GOLDEN2), hashes, mask)
            missing = _0
            for w in range(BLOCK_WORDS):
                missing |= mask[w] & ~words[at[c], w]
            seen[start + c] = missing == _0


@jit
def _fill(words: U64, out: I64) -> None:
    for b in range(len(words)):
        count = 0
        for w in range(BLOCK_WORDS):
            count += popcount64(words[b, w])
        out[count] += 1


def add(words: U64, keys: U64, hashes: int, seen: U8, first: int, last: int) -> None:
    """Set the bits of keys in order, and say which had all of theirs; see bloom_ref.add."""
    check(words, keys, hashes)
    check_part(words, keys, seen, first, last)
    if not words.flags.c_contiguous or not words.flags.writeable:
        raise ValueError("a table to add to is C-contiguous and writable")
    _add(words, frozen(keys, np.uint64), hashes, seen, np.uint64(first), np.uint64(last))


def ask(words: U64, keys: U64, hashes: int) -> U8:
    """Which keys have all their bits; see bloom_ref.ask."""
    check(words, keys, hashes)
    seen = np.empty(len(keys), np.uint8)
    _ask(frozen(words, np.uint64), frozen(keys, np.uint64), hashes, seen)
    return seen


def fill(words: U64) -> I64:
    """Blocks by bits set; see bloom_ref.fill."""
    out = np.zeros(BLOCK_BITS + 1, np.int64)
    _fill(frozen(words, np.uint64), out)
    return out
