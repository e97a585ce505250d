"""UTF-8: is it valid, how many code points, which. Numba; contracts are those of utf8_ref.

64 bytes at a time, as masks with one bit a byte. Blocks are read only inside a document: the blob needs no spare bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.jit import frozen, inline, jit
from gpu_dedup.kernels.simd import clz64, mask_eq, mask_high, mask_lt, popcount64

# Bytes of the Unicode Standard's table 3-7.
_C0, _C2, _E0, _F0, _F5 = np.uint8(0xC0), np.uint8(0xC2), np.uint8(0xE0), np.uint8(0xF0), np.uint8(0xF5)
_ED, _F4, _90, _A0 = np.uint8(0xED), np.uint8(0xF4), np.uint8(0x90), np.uint8(0xA0)
_1, _2, _3 = np.uint64(1), np.uint64(2), np.uint64(3)


@inline
def _document(blob: npt.NDArray[np.uint8], i: int, end: int) -> bool:
    """True if blob[i:end] is strict UTF-8."""
    while i + 64 <= end:
        high = mask_high(blob, i)
        if high == np.uint64(0):
            i += 64
            continue
        tail = high & mask_lt(blob, i, _C0)
        lead = high & ~tail
        three = high & ~mask_lt(blob, i, _E0)  # or four
        four = high & ~mask_lt(blob, i, _F0)
        bad = tail ^ ((lead << _1) | (three << _2) | (four << _3))  # a block begins where a character does
        bad |= (lead & mask_lt(blob, i, _C2)) | ~mask_lt(blob, i, _F5)
        # Second bytes with bounds of their own: overlong forms, surrogates, beyond U+10FFFF.
        bad |= (mask_eq(blob, i, _E0) << _1) & mask_lt(blob, i, _A0)
        bad |= (mask_eq(blob, i, _ED) << _1) & ~mask_lt(blob, i, _A0)
        bad |= (mask_eq(blob, i, _F0) << _1) & mask_lt(blob, i, _90)
        bad |= (mask_eq(blob, i, _F4) << _1) & ~mask_lt(blob, i, _90)
        if bad != np.uint64(0):
            return False
        # A character that goes beyond the block begins the next one.
        cut = (lead >> np.uint64(63)) | (three >> np.uint64(62)) | (four >> np.uint64(61))
        i += 63 - clz64(lead) if cut != np.uint64(0) else 64
    while i < end:
        first = blob[i]
        if first < 0x80:
            i += 1
        elif first < 0xE0:
            if first < 0xC2 or i + 2 > end or blob[i + 1] & 0xC0 != 0x80:
                return False
            i += 2
        elif first < 0xF0:
            if i + 3 > end or blob[i + 1] & 0xC0 != 0x80 or blob[i + 2] & 0xC0 != 0x80:
                return False
            if (first == 0xE0 and blob[i + 1] < 0xA0) or (first == 0xED and blob[i + 1] >= 0xA0):
                return False
            i += 3
        else:
            if first > 0xF4 or i + 4 > end or blob[i + 1] & 0xC0 != 0x80:
                return False
            if blob[i + 2] & 0xC0 != 0x80 or blob[i + 3] & 0xC0 != 0x80:
                return False
            if (first == 0xF0 and blob[i + 1] < 0x90) or (first == 0xF4 and blob[i + 1] >= 0x90):
                return False
            i += 4
    return True


@jit
def _valid(blob: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], out: npt.NDArray[np.bool_]) -> None:
    for d in range(len(out)):
        out[d] = _document(blob, offsets[d], offsets[d + 1])


@jit
def _code_points(blob: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], out: npt.NDArray[np.int64]) -> None:
    for d in range(len(out)):
        i, end = offsets[d], offsets[d + 1]
        count = np.int64(0)
        while i + 64 <= end:
            continuation = mask_lt(blob, i, np.uint8(0xC0)) & mask_high(blob, i)
            count += 64 - popcount64(continuation)
            i += 64
        while i < end:
            if blob[i] & 0xC0 != 0x80:
                count += 1
            i += 1
        out[d] = count


@jit
def _decode(
    blob: npt.NDArray[np.uint8],
    offsets: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    out: npt.NDArray[np.uint32],
) -> None:
    for d in range(len(offsets) - 1):
        i, end = offsets[d], offsets[d + 1]
        # One value for each byte that is no continuation byte, as counted: `o` cannot pass ends[d + 1].
        o = ends[d]
        while i < end:
            if i + 64 <= end and mask_high(blob, i) == np.uint64(0):
                for j in range(64):
                    out[o + j] = blob[i + j]
                i += 64
                o += 64
                continue
            stop = min(i + 64, end)
            while i < stop:
                lead = np.uint32(blob[i])
                if lead < np.uint32(0x80):
                    out[o] = lead
                    i += 1
                    o += 1
                    continue
                if lead < np.uint32(0xC0):  # a continuation byte without its lead: not UTF-8
                    i += 1
                    continue
                size = 2 if lead < np.uint32(0xE0) else (3 if lead < np.uint32(0xF0) else 4)
                value = lead & np.uint32(0xFF >> (size + 1))
                last = min(i + size, end)
                i += 1
                while i < last and blob[i] & 0xC0 == 0x80:
                    value = np.uint32(value << np.uint32(6)) | (np.uint32(blob[i]) & np.uint32(0x3F))
                    i += 1
                out[o] = value
                o += 1


def valid(blob: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which of n documents are strict UTF-8; contract as utf8_ref.valid."""
    out = np.empty(len(offsets) - 1, np.bool_)
    _valid(frozen(blob, np.uint8), frozen(offsets, np.int64), out)
    return out


def code_points(blob: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Code points of each of n documents; contract as utf8_ref.code_points."""
    out = np.empty(len(offsets) - 1, np.int64)
    _code_points(frozen(blob, np.uint8), frozen(offsets, np.int64), out)
    return out


def decode(
    blob: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """The code points of n documents; contract as utf8_ref.decode."""
    ends = np.zeros(len(offsets), np.int64)
    np.cumsum(code_points(blob, offsets), out=ends[1:])
    out = np.empty(int(ends[-1]), np.uint32)
    _decode(frozen(blob, np.uint8), frozen(offsets, np.int64), frozen(ends, np.int64), out)
    return out, ends
