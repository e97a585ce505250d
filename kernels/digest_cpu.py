"""Digest of a text for exact classes, in Numba; the definition is digest_ref.

XXH64 of our own (published algorithm, doc/xxhash_spec.md of Cyan4973/xxHash on GitHub), both seeds in one sweep over
the bytes: they share the loads and the first multiplication of every lane.
"""

from __future__ import annotations

import numpy as np

from gpu_dedup.kernels.digest_ref import CHUNK, I64, SEEDS, U8, U64, check
from gpu_dedup.kernels.jit import frozen, inline, jit
from gpu_dedup.kernels.mix64_cpu import Word
from gpu_dedup.kernels.simd import load_u64, store_u64

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_SEED_0, _SEED_1 = (np.uint64(seed) for seed in SEEDS)
_0 = np.uint64(0)


@inline
def rotate(x: Word, left: int) -> Word:
    return (x << np.uint64(left)) | (x >> np.uint64(64 - left))


@inline
def lane(accumulator: Word, scaled: Word) -> Word:
    """XXH64's round on a word that was multiplied by P2 already."""
    return rotate(accumulator + scaled, 31) * _P1


@inline
def merge(h: Word, accumulator: Word) -> Word:
    return (h ^ lane(_0, accumulator * _P2)) * _P1 + _P4


@inline
def converge(v1: Word, v2: Word, v3: Word, v4: Word) -> Word:
    h = rotate(v1, 1) + rotate(v2, 7) + rotate(v3, 12) + rotate(v4, 18)
    return merge(merge(merge(merge(h, v1), v2), v3), v4)


@inline
def step8(h: Word, word: Word) -> Word:
    return rotate(h ^ lane(_0, word * _P2), 27) * _P1 + _P4


@inline
def avalanche(h: Word) -> Word:
    h = (h ^ (h >> np.uint64(33))) * _P2
    h = (h ^ (h >> np.uint64(29))) * _P3
    return h ^ (h >> np.uint64(32))


@jit
def xxh64_pair(data: U8, begin: int, end: int, s: Word, t: Word) -> tuple[Word, Word]:
    """XXH64 of data[begin:end] with seeds s and t. Reads nothing outside."""
    length = np.uint64(end - begin)
    i = begin
    if end - begin >= 32:
        s1, s2, s3, s4 = s + _P1 + _P2, s + _P2, s, s - _P1
        t1, t2, t3, t4 = t + _P1 + _P2, t + _P2, t, t - _P1
        while i + 32 <= end:
            w = load_u64(data, i) * _P2
            s1 = lane(s1, w)
            t1 = lane(t1, w)
            w = load_u64(data, i + 8) * _P2
            s2 = lane(s2, w)
            t2 = lane(t2, w)
            w = load_u64(data, i + 16) * _P2
            s3 = lane(s3, w)
            t3 = lane(t3, w)
            w = load_u64(data, i + 24) * _P2
            s4 = lane(s4, w)
            t4 = lane(t4, w)
            i += 32
        g = converge(s1, s2, s3, s4)
        h = converge(t1, t2, t3, t4)
    else:
        g = s + _P5
        h = t + _P5
    g += length
    h += length
    while i + 8 <= end:
        w = load_u64(data, i)
        g = step8(g, w)
        h = step8(h, w)
        i += 8
    if i + 4 <= end:
        w = np.uint64(data[i]) | np.uint64(data[i + 1]) << np.uint64(8)
        w |= np.uint64(data[i + 2]) << np.uint64(16) | np.uint64(data[i + 3]) << np.uint64(24)
        g = rotate(g ^ (w * _P1), 23) * _P2 + _P3
        h = rotate(h ^ (w * _P1), 23) * _P2 + _P3
        i += 4
    while i < end:
        w = np.uint64(data[i]) * _P5
        g = rotate(g ^ w, 11) * _P1
        h = rotate(h ^ w, 11) * _P1
        i += 1
    return avalanche(g), avalanche(h)


@jit
def _digest(blob: U8, offsets: I64, out: U64) -> None:
    longest = np.int64(0)
    for d in range(len(offsets) - 1):
        longest = max(longest, offsets[d + 1] - offsets[d])
    # Per seed the hashes of all chunks of a text and its length: 1/512 of the longest text.
    words = np.empty((2, 8 * (longest // CHUNK + 2)), np.uint8)
    left = words[0]
    right = words[1]
    for d in range(len(offsets) - 1):
        begin = offsets[d]
        end = offsets[d + 1]
        at = np.int64(0)
        for chunk in range(begin, end, CHUNK):
            g, h = xxh64_pair(blob, chunk, min(chunk + CHUNK, end), _SEED_0, _SEED_1)
            store_u64(left, at, g)
            store_u64(right, at, h)
            at += 8
        store_u64(left, at, np.uint64(end - begin))
        store_u64(right, at, np.uint64(end - begin))
        at += 8
        out[d, 0] = xxh64_pair(left, np.int64(0), at, _SEED_0, _SEED_0)[0]
        out[d, 1] = xxh64_pair(right, np.int64(0), at, _SEED_1, _SEED_1)[1]


def digest(blob: U8, offsets: I64) -> U64:
    """Two 64-bit words that stand for a text; see digest_ref.digest."""
    check(blob, offsets)
    out = np.empty((len(offsets) - 1, 2), np.uint64)
    _digest(frozen(blob, np.uint8), frozen(offsets, np.int64), out)
    return out
