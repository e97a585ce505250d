"""Levenshtein distance of two sequences (NumPy, the definition)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]

PPM = 1_000_000


def check_sequences(items: U32, offsets: I64, left: I64, right: I64) -> None:
    """ValueError for offsets that do not cut `items` up or unequal sides, IndexError for a sequence not there."""
    if len(offsets) < 1 or offsets[0] < 0 or offsets[-1] > len(items) or bool((offsets[1:] < offsets[:-1]).any()):
        raise ValueError(f"offsets must rise from 0 or more to at most {len(items)}, the number of items")
    if len(left) != len(right):
        raise ValueError(f"{len(left)} sequences on the left but {len(right)} on the right")
    for side in (left, right):
        if len(side) and (int(side.min()) < 0 or int(side.max()) >= len(offsets) - 1):
            raise IndexError(f"sequence outside 0 to {len(offsets) - 2}")


def distance(a: U32, b: U32) -> int:
    """Fewest insertions, deletions and replacements of one item that turn a into b (Levenshtein 1965).

    Row by row: D[i, j] = min(D[i-1, j] + 1, D[i, j-1] + 1, D[i-1, j-1] + (a[i] != b[j])). The step from the left is a
    running minimum of D[i, j] - j.
    """
    steps = np.arange(len(b) + 1, dtype=np.int64)
    row = steps
    for item in a:
        best = row + 1
        best[1:] = np.minimum(best[1:], row[:-1] + (b != item))
        row = np.minimum.accumulate(best - steps) + steps
    return int(row[-1])


def edit(items: U32, offsets: I64, left: I64, right: I64, threshold_ppm: int) -> tuple[I64, I64]:
    """Levenshtein similarity of each pair of sequences, as whole numbers; exact where it meets the threshold.

    items          uint32[offsets[n]]: n sequences, such as code points
    offsets        int64[n + 1]
    left           int64[p], sequences
    right          int64[p], sequences
    threshold_ppm  least similarity in millionths; 0: every distance is exact
    returns        same int64[p], longest int64[p]: longest = length of the longer one; same = longest - distance where
                   same * 10**6 >= threshold_ppm * longest, else -1

    The similarity is same / longest, and 0 for two empty sequences (so they meet only threshold 0).
    Exact below 2**41 items a sequence. Raises ValueError and IndexError as `check_sequences`.
    """
    check_sequences(items, offsets, left, right)
    sizes = np.diff(offsets)
    longest = np.maximum(sizes[left], sizes[right])
    same = np.full(len(left), -1, np.int64)
    for i, (a, b) in enumerate(zip(left.tolist(), right.tolist(), strict=True)):
        # no distance is below the difference of the lengths
        if int(min(sizes[a], sizes[b])) * PPM < threshold_ppm * int(longest[i]):
            continue
        equal = int(longest[i]) - distance(items[offsets[a] : offsets[a + 1]], items[offsets[b] : offsets[b + 1]])
        if equal * PPM >= threshold_ppm * int(longest[i]) and (longest[i] > 0 or threshold_ppm == 0):
            same[i] = equal
    return same, longest
