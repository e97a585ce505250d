"""Pairs of 64-bit words that differ in few bits, on the device (hamming.cu); the definition is hamming_ref."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_dedup.kernels.cuda import empty, launch, scan
from gpu_dedup.kernels.hamming_ref import check_distance

PEAK = (
    48  # device memory of `near_pairs` at its peak, in bytes per pair that is looked at: flags, sums, the scan's, pairs
)


def keys(values: Any, mask: int, start: int) -> Any:
    """Keys of the masked bits: uint64[n] on the device, as hamming_ref.keys; values uint64[n] on the device."""
    n = int(values.size)
    out = empty(n, np.uint64)
    launch("hamming", "masked_keys", n, (values, np.int64(n), np.uint64(mask), np.uint64(start), out))
    return out


def distances(values: Any, left: Any, right: Any) -> Any:
    """Differing bits of pairs.

    values       uint64[n] on the device
    left, right  int64[p] on the device: rows of values; trusted
    returns      int64[p] on the device
    raises       ValueError: sides that differ in length
    """
    if left.size != right.size:
        raise ValueError(f"{left.size} left rows but {right.size} right rows")
    pairs = int(left.size)
    out = empty(pairs, np.int64)
    launch("hamming", "bits_apart", pairs, (values, left, right, np.int64(pairs), out))
    return out


def near_pairs(
    values: Any, members: Any, starts: Any, offsets: Any, first: int, last: int, base: int, count: int, earlier: Any,
    distance: int,
) -> tuple[Any, Any]:  # fmt: skip
    """Pairs of members[first:last] with those below them in their buckets that differ in few bits.

    values, members, starts, offsets  on the device, as in hamming_ref.near_pairs; trusted
    base      offsets[first]; count = offsets[last] - base, the pairs that are looked at
    earlier   uint64[e] on the device
    returns   high int64[q], low int64[q] on the device, as hamming_ref.near_pairs
    raises    IndexError unless 0 <= first <= last <= t; ValueError: distance outside 0 to 64; RuntimeError: a wrong sum
    """
    if not 0 <= first <= last <= int(members.size):
        raise IndexError(f"members {first} to {last} of {int(members.size)}")
    check_distance(distance)
    if not count:
        return empty(0, np.int64), empty(0, np.int64)
    where = (members, starts, np.int64(starts.size - 1), offsets)
    bounds = (np.int64(first), np.int64(last), np.int64(base), np.int64(count))
    flags = empty(count, np.int64)
    masks = (earlier, np.int64(earlier.size), np.int64(distance))
    launch("hamming", "near_flags", count, (values, *where, *bounds, *masks, flags))
    places, found = scan(flags)
    high, low = empty(found, np.int64), empty(found, np.int64)
    if found:
        launch("hamming", "near_fill", count, (*where, *bounds, flags, places, high, low))
    return high, low
