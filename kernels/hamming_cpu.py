"""Pairs of 64-bit words that differ in few bits, in Numba; the definition is hamming_ref."""

from __future__ import annotations

import numpy as np

from gpu_dedup.kernels.hamming_ref import I64, U64, check_distance, check_rows, check_slice
from gpu_dedup.kernels.jit import frozen, jit
from gpu_dedup.kernels.mix64_cpu import mix64
from gpu_dedup.kernels.simd import popcount64

_0 = np.uint64(0)


@jit
def _keys(values: U64, mask: int, start: int, out: U64) -> None:
    for i in range(len(values)):
        out[i] = mix64((values[i] & mask) + start)


def keys(values: U64, mask: int, start: int) -> U64:
    """Keys of the masked bits; see hamming_ref.keys."""
    out = np.empty(len(values), np.uint64)
    _keys(frozen(values, np.uint64), np.uint64(mask), np.uint64(start), out)
    return out


@jit
def _distances(values: U64, left: I64, right: I64, out: I64) -> None:
    for i in range(len(left)):
        out[i] = np.int64(popcount64(values[left[i]] ^ values[right[i]]))


def distances(values: U64, left: I64, right: I64) -> I64:
    """Differing bits of pairs; see hamming_ref.distances."""
    if len(left) != len(right):
        raise ValueError(f"{len(left)} left rows but {len(right)} right rows")
    check_rows(values, left)
    check_rows(values, right)
    out = np.empty(len(left), np.int64)
    _distances(frozen(values, np.uint64), frozen(left, np.int64), frozen(right, np.int64), out)
    return out


@jit
def _near_pairs(
    values: U64, members: I64, starts: I64, offsets: I64, bucket: int, first: int, last: int, earlier: U64,
    distance: int, high: I64, low: I64,
) -> int:  # fmt: skip
    """bucket: that of member `first`. Pairs found."""
    at = 0
    for e in range(first, last):
        while starts[bucket + 1] <= e:
            bucket += 1
        start = starts[bucket]
        own = values[members[e]]
        for j in range(start, start + offsets[e + 1] - offsets[e]):
            apart = own ^ values[members[j]]
            if np.int64(popcount64(apart)) <= distance:
                fresh = True
                for mask in earlier:
                    if apart & mask == _0:
                        fresh = False
                        break
                if fresh:
                    high[at] = members[e]
                    low[at] = members[j]
                    at += 1
    return at


def near_pairs(
    values: U64, members: I64, starts: I64, offsets: I64, first: int, last: int, earlier: U64, distance: int
) -> tuple[I64, I64]:
    """Near pairs of buckets; see hamming_ref.near_pairs."""
    check_slice(members, starts, offsets, first, last)
    check_rows(values, members[first:last])
    check_distance(distance)
    most = int(offsets[last] - offsets[first])
    high, low = np.empty(most, np.int64), np.empty(most, np.int64)  # pages that are not written to cost nothing
    if not most:
        return high, low
    bucket = int(np.searchsorted(starts, first, side="right")) - 1
    plain = [frozen(array, np.int64) for array in (members, starts, offsets)]
    count = _near_pairs(
        frozen(values, np.uint64), plain[0], plain[1], plain[2], bucket, int(first), int(last),
        frozen(earlier, np.uint64), int(distance), high, low,
    )  # fmt: skip
    return high[:count].copy(), low[:count].copy()
