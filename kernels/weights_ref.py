"""Document frequencies and the weights made of them, in NumPy: the definition.

The table counts documents by cell, a cell being the top 24 bits of a shingle hash: a document adds 1 to each cell that
a shingle of it falls into, however many do. Counts of shards add up. From the counts, with D documents,

    idf(cell) = 2**16 + log2(D + 1) - log2(count + 1)

in 16.16 fixed point, log2 as `log2_16` has it, by whole numbers alone. (The smoothed form with 1 added that
scikit-learn's TfidfTransformer takes, with another base: no shingle has weight 0, so no text is without a direction
because all have its words.) Shingles of one cell share a count: at 2**24 cells a rare one stands among
(different shingles) / 2**24 others.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.shingle_ref import shingle
from gpu_dedup.kernels.units_ref import U8

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

CELL_BITS = 24
CELLS = 1 << CELL_BITS
ONE = 1 << 16  # 1.0 in 16.16
MOST_DOCUMENTS = (1 << 32) - 2
_SMALL = 1 << 16  # counts whose logarithm is looked up: nearly all of them
_BLOCK = 1 << 18


def cells(blob: U8, offsets: I64, select: I64, unit: int, n: int, stop: U64) -> tuple[U32, int]:
    """Cells of chosen documents, each once for a document.

    blob, offsets, select, unit, n, stop  as in shingle_ref.shingle
    returns  uint32[t], in any order; how many of the documents have a shingle
    raises   ValueError, UnicodeDecodeError as shingle_ref.shingle
    """
    hashes, bounds, _ = shingle(blob, offsets, select, unit, n, stop)
    parts = [np.unique(hashes[a:b] >> np.uint64(64 - CELL_BITS)) for a, b in pairwise(bounds)]
    out = np.concatenate([np.zeros(0, np.uint64), *parts]).astype(np.uint32)
    return out, int(np.count_nonzero(bounds[1:] > bounds[:-1]))


def check_table(table: U32, found: U32) -> None:
    """raises ValueError for a table of another size, or cells outside it."""
    if table.dtype != np.uint32 or table.shape != (CELLS,):
        raise ValueError(f"table is {table.dtype}{list(table.shape)}; it has to be uint32[{CELLS}]")
    if len(found) and int(found.max()) >= CELLS:
        raise ValueError(f"cell {int(found.max())} is outside 0 to {CELLS - 1}")


def add(table: U32, found: U32) -> None:
    """table[c] += 1 for each c of found; one thread at a time on one table.

    table  uint32[2**24]
    found  uint32[t], below 2**24
    raises ValueError
    """
    check_table(table, found)
    kinds, counts = np.unique(found, return_counts=True)
    table[kinds] += counts.astype(np.uint32)


def log2_16(values: U64) -> U64:
    """Base-2 logarithm in 16.16 fixed point, rounded down step by step; 1 <= values.

    The whole part is the place of the highest bit. What is left, x in [1, 2) with 31 bits after the point (further
    ones cut off), gives 16 more bits: x = x * x, cut to 31 bits; the next bit is whether x is 2 or more, and x is
    halved if so. It never falls as values grow, and is below the true logarithm by less than 2**-15.
    """
    x = np.asarray(values, np.uint64)
    whole = np.zeros(x.shape, np.uint64)
    for step in (32, 16, 8, 4, 2, 1):
        high = (x >> (whole + np.uint64(step))) != 0
        whole += np.where(high, np.uint64(step), np.uint64(0))
    thirty_one = np.uint64(31)
    up = np.where(whole < thirty_one, thirty_one - whole, np.uint64(0))
    down = np.where(whole > thirty_one, whole - thirty_one, np.uint64(0))
    x = (x >> down) << up
    out: U64 = whole << np.uint64(16)
    for bit in range(15, -1, -1):
        x = (x * x) >> thirty_one
        two = x >> np.uint64(32)
        out |= two << np.uint64(bit)
        x >>= two
    return out


def idf(table: U32, documents: int) -> U32:
    """Weights of the cells.

    table      uint32[2**24]: documents that have the cell
    documents  how many there are, 0 to 2**32 - 2
    returns    uint32[2**24]: 16.16 fixed point, 1.0 to 33.0
    raises     ValueError: a cell that more documents have than there are
    """
    check_table(table, np.zeros(0, np.uint32))
    if not 0 <= documents <= MOST_DOCUMENTS or int(table.max()) > documents:
        raise ValueError(f"{documents} documents, and {int(table.max())} of them in one cell")
    most = int(log2_16(np.array([documents + 1], np.uint64))[0]) + ONE
    small = (most - log2_16(np.arange(1, _SMALL + 1, dtype=np.uint64)).astype(np.int64)).astype(np.int64)
    out = np.empty(CELLS, np.uint32)
    for begin in range(0, CELLS, _BLOCK):
        counts = table[begin : begin + _BLOCK]
        found = small[np.minimum(counts, np.uint32(_SMALL - 1))]
        large = np.flatnonzero(counts >= _SMALL)
        found[large] = most - log2_16(counts[large].astype(np.uint64) + np.uint64(1)).astype(np.int64)
        out[begin : begin + _BLOCK] = found
    return out
