"""Buckets of equal band keys, their pairs, and equal slots of a pair (Numba). Contract: ``collide_ref.py``.

Grouping is one stable partition by the key's hash into pieces that fit the cache, then a hash table per piece, so it
costs about the same per key whatever the keys are: no sort, 24 bytes of scratch per key. (Where all keys are equal, one
piece holds them all and its table takes up to 32 bytes more.) Band keys are mixed hashes already; the multiplication
spreads keys that are not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.collide_ref import check_rows, check_segments
from gpu_dedup.kernels.jit import frozen, jit
from gpu_dedup.kernels.mix64 import GOLDEN

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

PIECE = 2048  # keys per piece aimed at: keys, positions and table take 64 KB, inside any L2 cache
MAX_PIECE_BITS = 12  # at most 4,096 write streams: more would miss the TLB on every key


@jit
def _agreements(signatures: U32, left: I64, right: I64, out: I64) -> None:
    k = signatures.shape[1]
    for i in range(len(left)):
        a = signatures[left[i]]
        b = signatures[right[i]]
        same = 0
        for j in range(k):
            same += a[j] == b[j]
        out[i] = same


def agreements(signatures: U32, left: I64, right: I64) -> I64:
    """Equal slots of each pair of signatures; see ``collide_ref.agreements``."""
    if len(left) != len(right):
        raise ValueError(f"{len(left)} left rows but {len(right)} right rows")
    check_rows(signatures, left)
    check_rows(signatures, right)
    out = np.empty(len(left), np.int64)
    _agreements(frozen(signatures, np.uint32), frozen(left, np.int64), frozen(right, np.int64), out)
    return out


@jit
def _lowest(keys: U64, segments: I64, lowest: I64, part_key: U64, part_at: I64) -> None:
    """lowest[i] = least position of i's segment with the key of i. part_*: scratch as long as the longest segment."""
    table = np.empty(2 * PIECE, np.int64)
    begin = np.empty((1 << MAX_PIECE_BITS) + 1, np.int64)
    for segment in range(len(segments) - 1):
        base = segments[segment]
        n = segments[segment + 1] - base
        bits = 0
        while (n >> bits) > PIECE and bits < MAX_PIECE_BITS:
            bits += 1
        # `>> 64` has no meaning, so one piece takes the shift 63 and an index that is masked to 0
        shift = np.uint64(min(64 - bits, 63))
        only = np.uint64((1 << bits) - 1)
        pieces = 1 << bits
        begin[: pieces + 1] = 0
        for i in range(n):
            begin[np.int64(((keys[base + i] * np.uint64(GOLDEN)) >> shift) & only) + 1] += 1
        most = 0
        for p in range(pieces):
            most = max(most, begin[p + 1])
            begin[p + 1] += begin[p]
        # begin[p] is where piece p starts; the scatter moves it to where the piece ends
        for i in range(n):
            key = keys[base + i]
            p = np.int64(((key * np.uint64(GOLDEN)) >> shift) & only)
            at = begin[p]
            part_key[at] = key
            part_at[at] = base + i
            begin[p] = at + 1
        if 2 * most > len(table):
            size = len(table)
            while size < 2 * most:
                size *= 2
            table = np.empty(size, np.int64)
        start = 0
        for p in range(pieces):
            stop = begin[p]
            level = 1
            while (1 << level) < 2 * (stop - start):
                level += 1
            table[: 1 << level] = -1
            mask = np.int64((1 << level) - 1)
            for e in range(start, stop):
                key = part_key[e]
                # the bits below those that chose the piece
                slot = np.int64(((key * np.uint64(GOLDEN)) << np.uint64(bits)) >> np.uint64(64 - level))
                while True:
                    other = table[slot]
                    if other < 0:
                        table[slot] = e
                        lowest[part_at[e]] = part_at[e]
                        break
                    if part_key[other] == key:
                        lowest[part_at[e]] = part_at[other]
                        break
                    slot = (slot + 1) & mask
            start = stop


@jit
def _bucket_sizes(lowest: I64, size: I64) -> tuple[int, int]:
    """size[i] = members of the bucket whose lowest position is i, 0 where there is none; buckets and members in all."""
    n = len(lowest)
    for i in range(n):
        size[i] = 0
    for i in range(n):
        if lowest[i] != i:
            size[lowest[i]] += 1
    count = 0
    total = 0
    for i in range(n):
        if size[i] > 0:
            size[i] += 1
            count += 1
            total += size[i]
    return count, total


@jit
def _bucket_fill(lowest: I64, size: I64, members: I64, starts: I64) -> None:
    """Consumes size: it becomes the place where a bucket's next member goes, -1 for a lone position."""
    at = 0
    count = 0
    for i in range(len(lowest)):
        if size[i] > 0:
            starts[count] = at
            count += 1
            at += size[i]
            size[i] = at - size[i]
        elif lowest[i] == i:
            size[i] = -1
    starts[count] = at
    for i in range(len(lowest)):
        place = size[lowest[i]]
        if place >= 0:
            members[place] = i
            size[lowest[i]] = place + 1


def buckets(keys: U64, segments: I64) -> tuple[I64, I64]:
    """Buckets of equal keys; see ``collide_ref.buckets``."""
    check_segments(segments, len(keys))
    longest = int(np.diff(segments).max()) if len(segments) > 1 else 0
    lowest = np.empty(len(keys), np.int64)
    part_at = np.empty(longest, np.int64)
    part_key = np.empty(longest, np.uint64)
    _lowest(frozen(keys, np.uint64), frozen(segments, np.int64), lowest, part_key, part_at)
    del part_key
    size = part_at if longest == len(keys) else np.empty(len(keys), np.int64)
    count, total = _bucket_sizes(lowest, size)
    members, starts = np.empty(total, np.int64), np.empty(count + 1, np.int64)
    _bucket_fill(lowest, size, members, starts)
    return members, starts


@jit
def _pair_offsets(starts: I64, cap: int, lowest: int, out: I64) -> None:
    total = 0
    for bucket in range(len(starts) - 1):
        size = starts[bucket + 1] - starts[bucket]
        limit = lowest if size > cap else size
        for place in range(size):
            out[starts[bucket] + place] = total
            total += min(place, limit)
    out[starts[len(starts) - 1]] = total


def pair_offsets(starts: I64, cap: int, lowest: int) -> I64:
    """Where each member's pairs begin; see ``collide_ref.pair_offsets``."""
    out = np.empty(int(starts[-1]) + 1, np.int64)
    _pair_offsets(frozen(starts, np.int64), int(cap), int(lowest), out)
    return out


@jit
def _bucket_pairs(
    members: I64, starts: I64, offsets: I64, bucket: int, first: int, last: int, high: I64, low: I64
) -> None:
    """bucket: that of member `first`."""
    at = 0
    for e in range(first, last):
        while starts[bucket + 1] <= e:
            bucket += 1
        start = starts[bucket]
        for j in range(offsets[e + 1] - offsets[e]):
            high[at] = members[e]
            low[at] = members[start + j]
            at += 1


def bucket_pairs(members: I64, starts: I64, offsets: I64, first: int, last: int) -> tuple[I64, I64]:
    """The pairs of members[first:last]; see ``collide_ref.bucket_pairs``."""
    if not 0 <= first <= last <= len(members):
        raise IndexError(f"members {first} to {last} of {len(members)}")
    count = int(offsets[last] - offsets[first])
    high, low = np.empty(count, np.int64), np.empty(count, np.int64)
    if count:
        bucket = int(np.searchsorted(starts, first, side="right")) - 1
        plain = [frozen(array, np.int64) for array in (members, starts, offsets)]
        _bucket_pairs(plain[0], plain[1], plain[2], bucket, int(first), int(last), high, low)
    return high, low
