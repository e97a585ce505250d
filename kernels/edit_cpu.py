"""Levenshtein distance of two sequences, bounded (Numba). Contract: ``edit_ref.py``.

Myers' bit-parallel columns in blocks of 64 rows (Myers 1999; blocks and carries as Hyyrö 2003), the shorter sequence
down the rows. Common ends are cut off first. With a bound k only blocks that can hold a cell of a path of cost k or
less are worked on (Ukkonen 1985); k starts small and grows by fours up to the bound asked for, so that two sequences
that are near cost by their distance, not by the bound.

Why cutting is exact: what is left out is replaced by values that are never too small (+1 along each step at the edge
of the band), so no cell comes out below its true value; and no path of cost k or less leaves the band, so its cells
are true.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.edit_ref import check_sequences
from gpu_dedup.kernels.jit import frozen, inline, jit

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

PPM = 1_000_000
FIRST_BOUND = 32
_SPREAD = 0x9E3779B97F4A7C15


@inline
def _find(table: I64, keys: U32, shift: np.uint64, item: np.uint32) -> int:
    """Slot of `item` in an open table of numbers into `keys`, or the free slot (-1) where it belongs."""
    slot: int = np.int64((np.uint64(item) * np.uint64(_SPREAD)) >> shift)
    while table[slot] >= 0 and keys[table[slot]] != item:
        slot = (slot + 1) & (len(table) - 1)
    return slot


@inline
def _useless(score: int, top: int, bottom: int, diagonal: int, bound: int) -> bool:
    """True if no cell of rows top to bottom (`score` in the last) lies on a path of cost `bound` or less.

    top is the row above the block: a path may run along row 0, which no block holds, and come into the first one later.
    A cell `up` rows above the bottom costs at least score - up, and the rest of the way at least |row - diagonal|, its
    distance from the diagonal that ends in the last cell. The sum is least at every row from the top to `diagonal`, or
    at the top where the whole block is below it.
    """
    return score - bottom + max(diagonal, 2 * top - diagonal) > bound


@inline
def _within(
    n: int, text: I64, entry: I64, block_of: I64, bits: U64, at: I64, vp: U64, vn: U64, score: I64, bound: int
) -> int:
    """Distance of the pattern (n rows) and text (numbers of items), or -1 if it is above `bound`.

    entry, block_of, bits  for item number c: rows that hold it, as words `bits` of blocks `block_of`, ascending, at
                           entry[c]:entry[c + 1]; each list ends with a block number that is never reached
    at, vp, vn, score      scratch: a place in each item's list; vertical differences, last row's value of each block
    """
    m = len(text)
    blocks = len(vp)
    for c in range(len(entry) - 1):
        at[c] = entry[c]
    first = np.int64(0)
    last = np.int64(0)
    vp[0] = ~np.uint64(0)
    vn[0] = np.uint64(0)
    score[0] = min(np.int64(64), n)
    for j in range(m):
        # The path may go on into the next block from its last row: those cells are needed from this column on.
        while last + 1 < blocks and score[last] + abs(64 * (last + 1) - (n - m + j)) <= bound:
            last += 1
            vp[last] = ~np.uint64(0)
            vn[last] = np.uint64(0)
            score[last] = score[last - 1] + min(np.int64(64), n - 64 * last)
        # The row above the band grows by one in each column: true of row 0, never too small elsewhere.
        up = np.uint64(1)
        down = np.uint64(0)
        c = text[j]
        e = np.int64(0)
        if c >= 0:
            e = at[c]
            while block_of[e] < first:
                e += 1
            at[c] = e
        for b in range(first, last + 1):
            eq = np.uint64(0)
            if c >= 0 and block_of[e] == b:
                eq = bits[e]
                e += 1
            p = vp[b]
            x = eq | down
            d0 = (((x & p) + p) ^ p) | x | vn[b]
            hp = vn[b] | ~(d0 | p)
            hn = d0 & p
            low = np.uint64(63) if b + 1 < blocks else np.uint64((n - 1) & 63)
            next_up = (hp >> low) & np.uint64(1)
            next_down = (hn >> low) & np.uint64(1)
            hp = (hp << np.uint64(1)) | up
            hn = (hn << np.uint64(1)) | down
            vp[b] = hn | ~(d0 | hp)
            vn[b] = hp & d0
            up = next_up
            down = next_down
            score[b] += np.int64(up) - np.int64(down)
        diagonal = n - m + j + 1
        while last >= first and _useless(score[last], 64 * last, min(64 * last + 64, n), diagonal, bound):
            last -= 1
        while first <= last and _useless(score[first], 64 * first, min(64 * first + 64, n), diagonal, bound):
            first += 1
        if first > last:
            return -1
    # After the last column only the block of the last row holds a cell from which nothing is left to pay.
    return score[blocks - 1] if last == blocks - 1 and score[blocks - 1] <= bound else -1


@jit
def distance(items: U32, a: int, a_end: int, b: int, b_end: int, bound: int) -> int:
    """Levenshtein distance of items[a:a_end] and items[b:b_end], or -1 if it is above `bound`."""
    while a < a_end and b < b_end and items[a] == items[b]:
        a += 1
        b += 1
    while a < a_end and b < b_end and items[a_end - 1] == items[b_end - 1]:
        a_end -= 1
        b_end -= 1
    if a_end - a > b_end - b:
        a, a_end, b, b_end = b, b_end, a, a_end
    n = a_end - a
    m = b_end - b
    if m - n > bound:
        return -1
    if n == 0:
        return m

    # Number the items of the pattern, then list the rows of each as (block, word).
    level = 2
    while (np.int64(1) << level) < 2 * n:
        level += 1
    shift = np.uint64(64 - level)
    table = np.full(np.int64(1) << level, -1, np.int64)
    keys = np.empty(n, np.uint32)
    number = np.empty(n, np.int64)
    entry = np.zeros(n + 1, np.int64)
    seen = np.full(n, -1, np.int64)
    distinct = np.int64(0)
    for i in range(n):
        slot = _find(table, keys, shift, items[a + i])
        if table[slot] < 0:
            table[slot] = distinct
            keys[distinct] = items[a + i]
            distinct += 1
        c = table[slot]
        number[i] = c
        if seen[c] != i >> 6:
            seen[c] = i >> 6
            entry[c + 1] += 1
    for c in range(distinct):
        entry[c + 1] += entry[c] + 1
    blocks = (n + 63) >> 6
    block_of = np.full(entry[distinct], blocks, np.int64)
    bits = np.zeros(entry[distinct], np.uint64)
    at = np.empty(distinct, np.int64)
    for c in range(distinct):
        at[c] = entry[c] - 1
        seen[c] = -1
    for i in range(n):
        c = number[i]
        if seen[c] != i >> 6:
            seen[c] = i >> 6
            at[c] += 1
            block_of[at[c]] = i >> 6
        bits[at[c]] |= np.uint64(1) << np.uint64(i & 63)
    text = np.empty(m, np.int64)
    for j in range(m):
        text[j] = table[_find(table, keys, shift, items[b + j])]

    vp = np.empty(blocks, np.uint64)
    vn = np.empty(blocks, np.uint64)
    score = np.empty(blocks, np.int64)
    limit = max(np.int64(FIRST_BOUND), m - n)
    while True:
        limit = min(limit, bound)
        found = _within(n, text, entry[: distinct + 1], block_of, bits, at, vp, vn, score, limit)
        if found >= 0 or limit == bound:
            return found
        limit *= 4


@inline
def similar(items: U32, offsets: I64, a: int, b: int, threshold_ppm: int) -> tuple[int, int]:
    """(same, longest) of sequences a and b if same * 10**6 >= threshold_ppm * longest, else same is -1."""
    longest = max(offsets[a + 1] - offsets[a], offsets[b + 1] - offsets[b])
    if longest == 0:
        return -1 if threshold_ppm > 0 else np.int64(0), longest
    # greatest distance d with (longest - d) * PPM >= ppm * longest
    bound = (PPM - threshold_ppm) * longest // PPM
    cost = distance(items, offsets[a], offsets[a + 1], offsets[b], offsets[b + 1], bound)
    return longest - cost if cost >= 0 else -1, longest


@jit
def _edit(items: U32, offsets: I64, left: I64, right: I64, threshold_ppm: int, same: I64, longest: I64) -> None:
    for i in range(len(left)):
        same[i], longest[i] = similar(items, offsets, left[i], right[i], threshold_ppm)


def edit(items: U32, offsets: I64, left: I64, right: I64, threshold_ppm: int) -> tuple[I64, I64]:
    """Levenshtein similarity of each pair of sequences, exact where it meets the threshold; see ``edit_ref.edit``."""
    check_sequences(items, offsets, left, right)
    same, longest = np.empty(len(left), np.int64), np.empty(len(left), np.int64)
    _edit(
        frozen(items, np.uint32), frozen(offsets, np.int64), frozen(left, np.int64), frozen(right, np.int64),
        threshold_ppm, same, longest,
    )  # fmt: skip
    return same, longest
