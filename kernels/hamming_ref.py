"""Fingerprints of 64 bits that differ in few bits: keys of some of their bits, and the near pairs inside buckets of
equal keys (NumPy, the definition).

Two words at distance d or less, cut into B > d blocks, agree in B - d of them at least (Manku, Jain, Das Sarma, WWW
2007). So every such pair is in one bucket for one of the C(B, d) ways to leave d blocks out; a `mask` has the bits that
are left. A pair that agrees under several masks is given for the first of them alone, so that each comes once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.mix64 import mix64_array

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

BITS = 64
PAIR_BLOCK = 1 << 18  # pairs compared at a time
_ONES = np.array([i.bit_count() for i in range(256)], np.uint8)


def check_rows(values: U64, rows: I64) -> None:
    """IndexError unless every row is one of values."""
    if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= len(values)):
        raise IndexError(f"row outside 0 to {len(values) - 1}")


def check_distance(distance: int) -> None:
    """ValueError unless 0 <= distance <= 64."""
    if not 0 <= distance <= BITS:
        raise ValueError(f"distance {distance} is outside 0 to {BITS}")


def check_slice(members: I64, starts: I64, offsets: I64, first: int, last: int) -> None:
    """IndexError for members that are not there, ValueError for arrays that do not fit each other."""
    if not 0 <= first <= last <= len(members):
        raise IndexError(f"members {first} to {last} of {len(members)}")
    if len(starts) < 1 or int(starts[-1]) != len(members) or len(offsets) != len(members) + 1:
        raise ValueError(f"{len(offsets)} offsets and buckets up to {int(starts[-1])} for {len(members)} members")


def popcounts(words: U64) -> I64:
    """int64[n]: bits set in each word."""
    bytes_of = np.ascontiguousarray(words, "<u8").view(np.uint8).reshape(-1, 8)
    out: I64 = _ONES[bytes_of].sum(axis=1, dtype=np.int64)
    return out


def keys(values: U64, mask: int, start: int) -> U64:
    """A key of the masked bits of each word; two keys of one mask and start are equal if and only if these bits are.

    values   uint64[n]
    mask     bits that count, 0 to 2**64 - 1
    start    number that keeps the keys of different tables apart, 0 to 2**64 - 1
    returns  uint64[n]: mix64((value & mask) + start)
    """
    return mix64_array((np.asarray(values, np.uint64) & np.uint64(mask)) + np.uint64(start))


def distances(values: U64, left: I64, right: I64) -> I64:
    """Bits in which each pair of words differs.

    values       uint64[n]
    left, right  int64[p], rows of values
    returns      int64[p], 0 to 64

    Raises IndexError for a row that is not there, ValueError where left and right differ in length.
    """
    if len(left) != len(right):
        raise ValueError(f"{len(left)} left rows but {len(right)} right rows")
    check_rows(values, left)
    check_rows(values, right)
    return popcounts(values[left] ^ values[right])


def near_pairs(
    values: U64, members: I64, starts: I64, offsets: I64, first: int, last: int, earlier: U64, distance: int
) -> tuple[I64, I64]:
    """Pairs of members[first:last] with the members below them in their buckets that differ in few bits.

    values    uint64[n]
    members   int64[t] rows of values, starts int64[b + 1], offsets int64[t + 1]: buckets of equal keys and where the
              pairs of each member begin, all pairs of a bucket, as ``collide_ref.buckets`` and ``pair_offsets`` give
    earlier   uint64[e]: masks of the tables before this one; a pair that agrees under one of them is left out
    distance  most bits that may differ, 0 to 64
    returns   high int64[q], low int64[q]: high > low, members in turn, low ascending

    Raises IndexError unless 0 <= first <= last <= t and all members are rows; ValueError for arrays that do not fit
    each other and a distance outside 0 to 64.
    """
    check_slice(members, starts, offsets, first, last)
    check_rows(values, members[first:last])
    check_distance(distance)
    start = np.repeat(starts[:-1], np.diff(starts))  # of each member's bucket
    highs: list[I64] = [np.zeros(0, np.int64)]
    lows: list[I64] = [np.zeros(0, np.int64)]
    at = first
    while at < last:
        end = int(np.searchsorted(offsets, offsets[at] + PAIR_BLOCK, "right")) - 1
        end = min(max(end, at + 1), last)
        count = np.diff(offsets[at : end + 1])
        within = np.arange(offsets[end] - offsets[at]) - np.repeat(offsets[at:end] - offsets[at], count)
        high, low = np.repeat(members[at:end], count), members[np.repeat(start[at:end], count) + within]
        apart = values[high] ^ values[low]
        near = popcounts(apart) <= distance
        for mask in earlier:
            near &= (apart & mask) != 0
        highs.append(high[near])
        lows.append(low[near])
        at = end
    return np.concatenate(highs), np.concatenate(lows)
