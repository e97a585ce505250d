"""Buckets, pairs and equal slots on the device (collide.cu); the definition is collide_ref."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_dedup.kernels.collide_ref import I64, check_segments
from gpu_dedup.kernels.cuda import empty, function, launch, scan, zeros
from gpu_dedup.kernels.ranks_cuda import PEAK as SORT_PEAK
from gpu_dedup.kernels.ranks_cuda import check_sorted, group, numbers

PEAK = SORT_PEAK + 32  # device memory of `buckets` at its peak, in bytes per key
PAIRS = 64  # of a block of `agreements`


def buckets(keys: Any, segments: I64) -> tuple[Any, Any]:
    """Buckets of equal keys. Positions in different segments never share one.

    keys      uint64[n] on the device
    segments  int64[s + 1] on the host, non-decreasing from 0 to n
    returns   members int64[t], starts int64[b + 1] on the device, as collide_ref.buckets
    raises    ValueError: segments that do not cut the keys up; MemoryError, RuntimeError: a wrong sort or sum
    """
    import cupy

    n = int(keys.size)
    check_segments(segments, n)
    if not n:
        return empty(0, np.int64), zeros(1, np.int64)
    size = np.int64(n)
    groups = group(keys)
    cuts = np.unique(segments)  # a segment without keys takes no part
    if len(cuts) > 2:
        packed = empty(n, np.uint64)
        own = numbers(groups)
        del groups
        cuts_d = cupy.asarray(np.ascontiguousarray(cuts, np.int64))
        launch("collide", "segment_keys", n, (own, cuts_d, np.int64(len(cuts) - 1), size, packed))
        del own, cuts_d
        groups = group(packed)
        del packed
    starts = empty(groups.count + 1, np.uint32)
    lowest = empty(groups.count, np.uint32)
    launch("collide", "run_starts", n, (groups.flags, groups.runs, size, starts))
    launch("collide", "fill_ones", groups.count, (lowest, np.int64(groups.count)))
    launch("collide", "run_lowest", n, (groups.order, groups.runs, size, lowest))
    flags = groups.flags
    launch("collide", "member_flags", n, (groups.runs, starts, size, flags))
    places, total = scan(flags)
    if not total:
        return empty(0, np.int64), zeros(1, np.int64)
    packed = empty(total, np.uint64)
    launch("collide", "member_keys", n, (groups.order, groups.runs, lowest, flags, places, size, packed))
    del groups, flags, places, starts, lowest
    packed = cupy.sort(packed)
    members = empty(total, np.int64)
    flags = empty(total, np.int64)
    report = zeros(1, np.uint32)
    launch("collide", "split_members", total, (packed, np.int64(total), members, flags, report))
    check_sorted(int(report.get()[0]), total)
    places, count = scan(flags)
    out = empty(count + 1, np.int64)
    launch("collide", "bucket_starts", total, (flags, places, np.int64(total), out))
    return members, out


def pair_offsets(starts: Any, members: int, cap: int, lowest: int) -> tuple[Any, int]:
    """Where each member's pairs begin, and how many there are.

    starts   int64[b + 1] on the device, as from `buckets`; members: its last entry
    cap      a bucket of at most so many members gives all its pairs
    lowest   a member of a larger one is paired with so many of the bucket's lowest (those below it)
    returns  int64[members + 1] on the device, as collide_ref.pair_offsets; its last entry
    """
    if not members:
        return zeros(1, np.int64), 0
    counts = empty(members + 1, np.int64)
    arguments = (starts, np.int64(starts.size - 1), np.int64(members), np.int64(cap), np.int64(lowest), counts)
    launch("collide", "pair_counts", members, arguments)
    return scan(counts)


def bucket_pairs(
    members: Any, starts: Any, offsets: Any, first: int, last: int, base: int, count: int
) -> tuple[Any, Any]:
    """The pairs of members[first:last].

    members, starts, offsets  on the device, as from `buckets` and `pair_offsets`
    base     offsets[first]; count = offsets[last] - base
    returns  high int64[count], low int64[count] on the device, as collide_ref.bucket_pairs
    raises   IndexError unless 0 <= first <= last <= t
    """
    if not 0 <= first <= last <= int(members.size):
        raise IndexError(f"members {first} to {last} of {int(members.size)}")
    high, low = empty(count, np.int64), empty(count, np.int64)
    bounds = (np.int64(first), np.int64(last), np.int64(base), np.int64(count))
    launch("collide", "bucket_pairs", count, (members, starts, np.int64(starts.size - 1), offsets, *bounds, high, low))
    return high, low


def agreements(signatures: Any, left: Any, right: Any) -> Any:
    """Equal slots of each pair of signatures.

    signatures   uint32[m, k] on the device
    left, right  int64[p] on the device: rows of signatures; trusted. Fastest where equal left rows stand together
    returns      int64[p] on the device
    raises       ValueError: sides that differ in length
    """
    if left.size != right.size:
        raise ValueError(f"{left.size} left rows but {right.size} right rows")
    pairs = int(left.size)
    out = empty(pairs, np.int64)
    if pairs:
        arguments = (signatures, np.uint32(signatures.shape[1]), left, right, np.int64(pairs), out)
        function("collide", "agreements")((-(-pairs // PAIRS),), (256,), arguments)
    return out
