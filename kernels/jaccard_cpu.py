"""Shared items of two sets (Numba). Contract: ``jaccard_ref.py``.

A merge of two ascending lists without a branch on the items costs the latency of one step after another, about seven
cycles. Four merges side by side hide most of it: the larger list is cut into quarters, the other at the same values. On
one core 0.5 to 0.9 ns for each item of the two sets, a third of the plain merge.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.jaccard_ref import check_sets
from gpu_dedup.kernels.jit import frozen, inline, jit

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

PPM = 1_000_000


@inline
def _first(items: U64, start: int, stop: int, least: np.uint64) -> int:
    """First position of items[start:stop] whose item is not below `least`."""
    while start < stop:
        middle = (start + stop) >> 1
        if items[middle] < least:
            start = middle + 1
        else:
            stop = middle
    return start


@inline
def _step(items: U64, a: int, b: int) -> tuple[int, int, int]:
    """One step of a merge: new positions, and 1 where both items are equal."""
    x = items[a]
    y = items[b]
    return a + np.int64(x <= y), b + np.int64(y <= x), np.int64(x == y)


@jit
def overlap(items: U64, a: int, a_end: int, b: int, b_end: int, need: int) -> int:
    """Items that items[a:a_end] and items[b:b_end] share; -1 as soon as they cannot be `need` or more."""
    if a_end - a < b_end - b:
        a, a_end, b, b_end = b, b_end, a, a_end
    n = a_end - a
    a1, a2, a3 = a + n // 4, a + n // 2, a + 3 * n // 4
    b2 = b
    b1 = b
    b3 = b
    if b < b_end:  # then n > 0, and a1 to a3 are positions inside
        b2 = _first(items, b, b_end, items[a2])
        b1 = _first(items, b, b2, items[a1])
        b3 = _first(items, b2, b_end, items[a3])
    i0, i1, i2, i3 = a, a1, a2, a3
    j0, j1, j2, j3 = b, b1, b2, b3
    shared = np.int64(0)
    while True:
        r0, r1 = min(a1 - i0, b1 - j0), min(a2 - i1, b2 - j1)
        r2, r3 = min(a3 - i2, b3 - j2), min(a_end - i3, b_end - j3)
        if shared + r0 + r1 + r2 + r3 < need:
            return -1
        # so many steps stay inside all four merges; not more at once, so that the bound is looked at now and then
        steps = min(min(r0, r1), min(r2, r3), 32)
        if steps == 0:
            break
        for _ in range(steps):
            i0, j0, s0 = _step(items, i0, j0)
            i1, j1, s1 = _step(items, i1, j1)
            i2, j2, s2 = _step(items, i2, j2)
            i3, j3, s3 = _step(items, i3, j3)
            shared += (s0 + s1) + (s2 + s3)
    for lane in range(4):  # what is left, one after the other
        if lane == 0:
            i, i_end, j, j_end = i0, a1, j0, b1
        elif lane == 1:
            i, i_end, j, j_end = i1, a2, j1, b2
        elif lane == 2:
            i, i_end, j, j_end = i2, a3, j2, b3
        else:
            i, i_end, j, j_end = i3, a_end, j3, b_end
        steps = min(i_end - i, j_end - j)
        while steps > 0:
            for _ in range(steps):
                i, j, s = _step(items, i, j)
                shared += s
            steps = min(i_end - i, j_end - j)
    return shared if shared >= need else -1


@inline
def similar(items: U64, offsets: I64, a: int, b: int, threshold_ppm: int) -> tuple[int, int]:
    """(shared, union) of sets a and b if shared * 10**6 >= threshold_ppm * union, else shared is -1."""
    total = (offsets[a + 1] - offsets[a]) + (offsets[b + 1] - offsets[b])
    # shared * PPM >= ppm * (total - shared), solved for shared and rounded up
    need = (threshold_ppm * total + PPM + threshold_ppm - 1) // (PPM + threshold_ppm)
    shared = overlap(items, offsets[a], offsets[a + 1], offsets[b], offsets[b + 1], need)
    return shared, total - shared


@jit
def _jaccard(items: U64, offsets: I64, left: I64, right: I64, shared: I64, union: I64) -> None:
    for i in range(len(left)):
        shared[i], union[i] = similar(items, offsets, left[i], right[i], np.int64(0))


def jaccard(items: U64, offsets: I64, left: I64, right: I64) -> tuple[I64, I64]:
    """Items in both sets and in either set, for each pair of sets; see ``jaccard_ref.jaccard``.

    Sets are taken to be ascending and unique; others give a wrong count, never a read out of bounds.
    """
    check_sets(items, offsets, left, right)
    shared, union = np.empty(len(left), np.int64), np.empty(len(left), np.int64)
    _jaccard(
        frozen(items, np.uint64), frozen(offsets, np.int64), frozen(left, np.int64), frozen(right, np.int64),
        shared, union,
    )  # fmt: skip
    return shared, union
