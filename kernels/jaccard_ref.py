"""Shared items of two sets (NumPy, the definition).

Sets stand one after the other in one array: set i is items[offsets[i]:offsets[i + 1]], ascending, each item once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]


def check_sets(items: npt.NDArray[Any], offsets: I64, left: I64, right: I64) -> None:
    """ValueError for offsets that do not cut `items` up or sides of unequal length, IndexError for a set not there."""
    if len(offsets) < 1 or offsets[0] < 0 or offsets[-1] > len(items) or bool((offsets[1:] < offsets[:-1]).any()):
        raise ValueError(f"offsets must rise from 0 or more to at most {len(items)}, the number of items")
    if len(left) != len(right):
        raise ValueError(f"{len(left)} sets on the left but {len(right)} on the right")
    for side in (left, right):
        if len(side) and (int(side.min()) < 0 or int(side.max()) >= len(offsets) - 1):
            raise IndexError(f"set outside 0 to {len(offsets) - 2}")


def jaccard(items: U64, offsets: I64, left: I64, right: I64) -> tuple[I64, I64]:
    """Items in both sets and in either set, for each pair of sets.

    items    uint64[offsets[n]]: n sets, ascending and unique within a set
    offsets  int64[n + 1]
    left     int64[p], sets
    right    int64[p], sets
    returns  shared int64[p], union int64[p]; 0, 0 for two empty sets

    The Jaccard similarity of a pair is shared / union, and 0 for two empty sets.
    Raises ValueError and IndexError as `check_sets`, ValueError for a set that is not ascending and unique.
    """
    check_sets(items, offsets, left, right)
    inside = np.ones(max(len(items) - 1, 0), np.bool_)
    inside[offsets[(offsets > 0) & (offsets < len(items))] - 1] = False
    inside[: offsets[0]] = False
    inside[max(int(offsets[-1]) - 1, 0) :] = False
    if bool((inside & (items[1:] <= items[:-1])).any()):
        raise ValueError("sets must be ascending, each item once")
    sizes = np.diff(offsets)
    shared = np.empty(len(left), np.int64)
    for i, (a, b) in enumerate(zip(left.tolist(), right.tolist(), strict=True)):
        one, other = items[offsets[a] : offsets[a + 1]], items[offsets[b] : offsets[b + 1]]
        shared[i] = len(np.intersect1d(one, other, assume_unique=True)) if a != b else len(one)
    return shared, sizes[left] + sizes[right] - shared
