"""Buckets of equal band keys, the pairs inside them, and how many sketch slots a pair shares (NumPy, the definition).

A bucket is a set of two or more positions with the same key. Positions are ranks in keeper order, so "lowest" means
"would be kept first". Nothing here depends on how keys compare, only on which are equal: a sort, a hash table and a GPU
give the same arrays.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

PAIR_BLOCK = 1 << 16  # pairs compared at a time: bounds the copies of signature rows


def check_rows(signatures: U32, rows: I64) -> None:
    """IndexError unless every row is one of signatures."""
    if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= len(signatures)):
        raise IndexError(f"row outside 0 to {len(signatures) - 1}")


def agreements(signatures: U32, left: I64, right: I64) -> I64:
    """Equal slots of each pair of signatures.

    signatures  uint32[m, k]
    left        int64[p], rows of signatures
    right       int64[p]
    returns     int64[p], 0 to k: the number of j with signatures[left[i], j] == signatures[right[i], j]

    Raises IndexError for a row that is not there, ValueError where left and right differ in length.
    """
    if len(left) != len(right):
        raise ValueError(f"{len(left)} left rows but {len(right)} right rows")
    check_rows(signatures, left)
    check_rows(signatures, right)
    out = np.empty(len(left), np.int64)
    for start in range(0, len(left), PAIR_BLOCK):
        stop = start + PAIR_BLOCK
        out[start:stop] = np.count_nonzero(signatures[left[start:stop]] == signatures[right[start:stop]], axis=1)
    return out


def check_segments(segments: I64, n: int) -> None:
    """ValueError unless segments cut 0 to n into stretches, in order."""
    if len(segments) < 1 or segments[0] != 0 or segments[-1] != n or bool((segments[1:] < segments[:-1]).any()):
        raise ValueError(f"segments must rise from 0 to {n}, the number of keys")


def buckets(keys: U64, segments: I64) -> tuple[I64, I64]:
    """Buckets of equal keys. Positions in different segments never share one.

    keys      uint64[n]
    segments  int64[s + 1], non-decreasing from 0 to n: segment i is keys[segments[i]:segments[i + 1]]
    returns   members int64[t], starts int64[b + 1]: bucket i is members[starts[i]:starts[i + 1]], two positions or
              more, ascending; buckets ascend by their lowest position. Positions whose key is alone are left out.

    Raises ValueError for segments that do not cut the keys up.
    """
    n = len(keys)
    check_segments(segments, n)
    segment = np.repeat(np.arange(len(segments) - 1), np.diff(segments))
    order = np.lexsort((keys, segment))  # stable: equal keys of a segment stay ascending
    change = np.ones(n, np.bool_)
    change[1:] = (keys[order[1:]] != keys[order[:-1]]) | (segment[order[1:]] != segment[order[:-1]])
    first = np.flatnonzero(change)
    size = np.diff(np.append(first, n))
    first, size = first[size > 1], size[size > 1]
    by_lowest = np.argsort(order[first])  # lowest positions are distinct
    first, size = first[by_lowest], size[by_lowest]
    starts = np.concatenate(([0], np.cumsum(size))).astype(np.int64)
    place = np.repeat(first - starts[:-1], size) + np.arange(starts[-1])
    return order[place].astype(np.int64), starts


def pair_offsets(starts: I64, cap: int, lowest: int) -> I64:
    """Where each member's pairs begin in the list of all pairs that buckets give.

    starts   int64[b + 1], as from `buckets`
    cap      a bucket of at most so many members gives all its pairs
    lowest   a member of a larger one is paired with so many of the bucket's lowest (those below it)
    returns  int64[t + 1]: member e has pairs out[e] to out[e + 1]: one with each of the first out[e + 1] - out[e]
             members of its bucket
    """
    size = np.diff(starts)
    place = np.arange(starts[-1]) - np.repeat(starts[:-1], size)  # members below, in the bucket
    count = np.where(np.repeat(size, size) > cap, np.minimum(place, lowest), place)
    return np.concatenate(([0], np.cumsum(count))).astype(np.int64)


def bucket_pairs(members: I64, starts: I64, offsets: I64, first: int, last: int) -> tuple[I64, I64]:
    """The pairs of members[first:last] with the lowest of their buckets; see `pair_offsets`.

    members  int64[t], starts int64[b + 1], as from `buckets`
    offsets  int64[t + 1], as from `pair_offsets`
    returns  high int64[p], low int64[p], p = offsets[last] - offsets[first]: high > low, members in turn, low ascending

    Raises IndexError unless 0 <= first <= last <= t.
    """
    if not 0 <= first <= last <= len(members):
        raise IndexError(f"members {first} to {last} of {len(members)}")
    count = np.diff(offsets[first : last + 1])
    start = np.repeat(starts[:-1], np.diff(starts))[first:last]  # of the member's bucket
    within = np.arange(offsets[last] - offsets[first]) - np.repeat(offsets[first:last] - offsets[first], count)
    return np.repeat(members[first:last], count), members[np.repeat(start, count) + within]
