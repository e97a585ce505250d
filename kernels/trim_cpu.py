"""Ends of normalised texts, in Numba; contract and meaning are those of trim_ref.

A text of no more bytes than it may have code points is not looked at for the cut; of a longer one the code points of
the second half, after the first have been counted 64 bytes at a time. Words are found by the byte at the end in
question.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.jit import frozen, inline, jit
from gpu_dedup.kernels.simd import copy64, mask_high, mask_lt, popcount64
from gpu_dedup.kernels.trim_ref import CLOSERS, PAD, STRONG, WEAK, check
from gpu_dedup.kernels.unicode import PUNCT, SINGLE, SPACE, class_table

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@inline
def _decode(src: U8, i: int) -> tuple[int, int]:
    """Code point and bytes of the (well-formed) character at src[i]."""
    lead = np.int64(src[i])
    if lead < 0x80:
        return lead, np.int64(1)
    if lead < 0xE0:
        return (lead & 0x1F) << 6 | np.int64(src[i + 1]) & 0x3F, np.int64(2)
    if lead < 0xF0:
        high = (lead & 0x0F) << 12 | (np.int64(src[i + 1]) & 0x3F) << 6
        return high | np.int64(src[i + 2]) & 0x3F, np.int64(3)
    high = (lead & 0x07) << 18 | (np.int64(src[i + 1]) & 0x3F) << 12
    return high | (np.int64(src[i + 2]) & 0x3F) << 6 | np.int64(src[i + 3]) & 0x3F, np.int64(4)


@jit
def _advance(src: U8, i: int, end: int, count: int) -> int:
    """Place of the code point that is `count` behind the one at src[i]; `end` where there are no more."""
    size = len(src)
    while count >= 64 and i + 64 <= end and i + 64 <= size:
        inside = mask_high(src, i) & mask_lt(src, i, np.uint8(0xC0))  # bytes that begin no code point
        begun = 64 - np.int64(popcount64(inside))
        if begun > count:
            break
        count -= begun
        i += 64
    # A block may have ended inside a code point; its other bytes are passed over with it, as they begin none.
    while i < end and (src[i] & 0xC0) == 0x80:
        i += 1
    while count > 0 and i < end:
        i += 1
        while i < end and (src[i] & 0xC0) == 0x80:
            i += 1
        count -= 1
    return i


@jit
def _cut(src: U8, first: int, end: int, most: int, stage1: U16, stage2: U8) -> int:
    """Where src[first:end], of more than `most` bytes, is cut; `end` if it has no more than `most` code points."""
    half = most // 2
    i: int = _advance(src, first, end, half)
    if _advance(src, i, end, most - half) >= end:
        return end
    kind = 0  # of the sentence end before src[i]: 0 none, 1 weak, 2 strong
    sentence: int = np.int64(-1)
    blank: int = np.int64(-1)
    for number in range(half, most + 1):
        code, step = _decode(src, i)
        bits = stage2[np.int64(stage1[code >> 7]) * 128 + (code & 127)]
        if number > half:
            if kind == 2 or (kind == 1 and bits & (SPACE | SINGLE) != 0):
                sentence = np.int64(i)
            if bits & SPACE != 0:
                blank = np.int64(i)
        if number == most:
            break
        if bits & PUNCT == 0:  # all of the three kinds are punctuation
            kind = 0
        elif code in STRONG:
            kind = 2
        elif code in WEAK:
            kind = 1
        elif code not in CLOSERS:
            kind = 0
        i += step
    if sentence >= 0:
        return sentence
    return blank if blank >= 0 else i


@jit
def _match(src: U8, first: int, end: int, words: U8, places: I64, of_byte: I64, order: I64, at_end: bool) -> int:
    """Bytes of the longest word at an end of src[first:end]; 0 where there is none."""
    if first == end:
        return 0
    byte = np.int64(src[end - 1] if at_end else src[first])
    for k in range(of_byte[byte], of_byte[byte + 1]):
        low, high = places[order[k]], places[order[k] + 1]
        size: int = high - low
        if size > end - first:
            continue
        at = end - size if at_end else first
        same = True
        for j in range(size):
            if src[at + j] != words[low + j]:
                same = False
                break
        if same:
            return size
    return 0


@jit
def _run(
    src: U8, offsets: I64, words: U8, places: I64, by_last: I64, last_order: I64, by_first: I64, first_order: I64,
    blank: bool, most: int, stage1: U16, stage2: U8, starts: I64, ends: I64,
) -> bool:  # fmt: skip
    """Where each text begins and ends now; whether any has changed."""
    changed = False
    for d in range(len(offsets) - 1):
        first, end = offsets[d], offsets[d + 1]
        if len(places) > 1:
            while True:
                size = _match(src, first, end, words, places, by_last, last_order, True)
                if size == 0:
                    break
                end -= size
                while blank and end > first and src[end - 1] == 0x20:
                    end -= 1
            while True:
                size = _match(src, first, end, words, places, by_first, first_order, False)
                if size == 0:
                    break
                first += size
                while blank and first < end and src[first] == 0x20:
                    first += 1
        if most > 0 and end - first > most:
            end = _cut(src, first, end, most, stage1, stage2)
        starts[d], ends[d] = first, end
        changed = changed or end - first < offsets[d + 1] - offsets[d]
    return changed


@jit
def _gather(src: U8, starts: I64, ends: I64, dst: U8, offsets: I64) -> None:
    """The texts src[starts[d]:ends[d]], one after another. dst has 64 spare bytes."""
    size = len(src)
    o = np.int64(0)
    for d in range(len(starts)):
        i, end = starts[d], ends[d]
        while i < end:
            if i + 64 <= size:
                copy64(dst, o, src, i)
                step = min(np.int64(64), end - i)
                i += step
                o += step
            else:
                dst[o] = src[i]
                i += 1
                o += 1
        offsets[d + 1] = o


def _by_byte(words: U8, places: I64, last: bool) -> tuple[I64, I64]:
    """Words by the byte at one end, the longest first: where those of each byte begin, and their numbers."""
    sizes = np.diff(places)
    byte = words[places[1:] - 1] if last else words[places[:-1]]
    order = np.lexsort((-sizes, byte)).astype(np.int64)
    return np.searchsorted(byte[order], np.arange(257)).astype(np.int64), order


def trim(
    blob: npt.NDArray[np.uint8],
    offsets: npt.NDArray[np.int64],
    words: npt.NDArray[np.uint8],
    places: npt.NDArray[np.int64],
    blank: bool,
    most: int,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Strip and then cut n texts; contract as trim_ref.trim."""
    check(words, places, most)
    src, begins = frozen(blob, np.uint8), frozen(offsets, np.int64)
    listed, where = frozen(words, np.uint8), frozen(places, np.int64)
    stage1, stage2 = class_table()
    starts, ends = np.empty(len(offsets) - 1, np.int64), np.empty(len(offsets) - 1, np.int64)
    tables = *_by_byte(listed, where, True), *_by_byte(listed, where, False)
    stages = frozen(stage1, np.uint16), frozen(stage2, np.uint8)
    if not _run(src, begins, listed, where, *tables, bool(blank), int(most), *stages, starts, ends):
        return blob, offsets
    out = np.empty(int(np.sum(ends - starts)) + 64 + PAD, np.uint8)
    made = np.zeros(len(offsets), np.int64)
    _gather(src, starts, ends, out, made)
    size = int(made[-1])
    out[size : size + PAD] = 0
    return out[: size + PAD], made
