"""Units of a text and their hashes, in NumPy: the definition that shingle_ref stands on.

A text is cut into units by one of five rules, numbered as in recipe.UNITS:

    TOKEN  IGNORABLE code points are dropped first, they are neither unit nor break; of the rest each SINGLE one is a
           unit, and so is each maximal run of WORD ones; all else breaks a run and belongs to no unit
    WORD   maximal runs of code points that are not SPACE
    CHAR   each code point, blanks included
    BYTE   each byte
    CODE   as TOKEN, and each PUNCT that is neither SINGLE nor WORD is a unit (the underscore is WORD: it stays in runs)

The bits are those of unicode.class_table; a lone surrogate has none of them, so it breaks. The hash of a unit is
mix64.chain over its bytes (ignorable ones left out) from length * GOLDEN.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.mix64 import GOLDEN, mix64_array
from gpu_dedup.kernels.unicode import IGNORABLE, PUNCT, SINGLE, SPACE, WORD, class_table

UNIT_TOKEN, UNIT_WORD, UNIT_CHAR, UNIT_BYTE, UNIT_CODE = range(5)

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


def check(blob: U8, offsets: I64, select: I64, unit: int, n: int) -> None:
    """Refuse arguments that would read outside the arrays, before a kernel trusts them.

    raises  ValueError
    """
    if len(offsets) < 1 or (len(offsets) > 1 and bool((offsets[1:] < offsets[:-1]).any())):
        raise ValueError("offsets must have n + 1 entries and never fall")
    if offsets[0] < 0 or offsets[-1] > len(blob):
        raise ValueError(f"offsets {offsets[0]} to {offsets[-1]} leave the blob of {len(blob)} bytes")
    if len(select) and not 0 <= int(select.min()) <= int(select.max()) < len(offsets) - 1:
        raise ValueError(f"select names documents outside 0 to {len(offsets) - 2}")
    if unit not in range(5):
        raise ValueError(f"unit {unit} is not one of 0 to 4")
    if not 1 <= n <= 1000:
        raise ValueError(f"n {n} is outside 1 to 1000")


def spans(text: bytes, unit: int) -> tuple[I64, I64, Bool]:
    """Units of one text as byte ranges.

    returns  starts int64[u], ends int64[u] (of the last code point that counts), counts bool[len(text)]: the byte
             enters a hash where a unit covers it (False for the bytes of ignorable code points)
    """
    data = np.frombuffer(text, np.uint8)
    counts = np.ones(len(data), np.bool_)
    if unit == UNIT_BYTE:
        at = np.arange(len(data), dtype=np.int64)
        return at, at + 1, counts
    points = np.frombuffer(text.decode("utf-8", "surrogatepass").encode("utf-32-le", "surrogatepass"), np.uint32)
    begin = np.flatnonzero((data & 0xC0) != 0x80).astype(np.int64)
    end = np.append(begin[1:], len(data)).astype(np.int64)[: len(begin)]
    if unit == UNIT_CHAR:
        return begin, end, counts
    stage1, stage2 = class_table()
    kind = stage2[stage1[points >> 7].astype(np.int64) * 128 + (points & 127)]
    if unit == UNIT_WORD:
        run = (kind & SPACE) == 0
        single = np.zeros(len(kind), np.bool_)
    else:
        kept = (kind & IGNORABLE) == 0
        counts = np.repeat(kept, end - begin)
        kind, begin, end = kind[kept], begin[kept], end[kept]
        single = (kind & SINGLE) != 0
        run = ((kind & WORD) != 0) & ~single
        if unit == UNIT_CODE:
            single |= ((kind & PUNCT) != 0) & ~run
    first = run & ~np.append(False, run[:-1])
    last = run & ~np.append(run[1:], False)
    return begin[first | single], end[last | single], counts


def unit_hashes(text: bytes, unit: int) -> U64:
    """uint64[u]: hash of each unit of one text, in order."""
    starts, ends, counts = spans(text, unit)
    if not len(starts):
        return np.zeros(0, np.uint64)
    data = np.frombuffer(text, np.uint8)[counts]
    place = np.append(0, np.cumsum(counts)).astype(np.int64)  # position of a byte once ignorable ones are gone
    starts, ends = place[starts], place[ends]
    padded = np.append(data, np.zeros(8, np.uint8))
    h: U64 = (ends - starts).astype(np.uint64) * np.uint64(GOLDEN)
    alive = np.arange(len(starts))
    at = starts.copy()
    while len(alive):
        word = np.zeros(len(alive), np.uint64)
        for j in range(8):
            inside = at[alive] + j < ends[alive]
            byte = padded[np.where(inside, at[alive] + j, 0)].astype(np.uint64)
            word |= np.where(inside, byte, np.uint64(0)) << np.uint64(8 * j)
        h[alive] = mix64_array(h[alive] + word)
        at[alive] += 8
        alive = alive[at[alive] < ends[alive]]
    return h
