"""UTF-8: is it valid, how many code points, which. Numba; contracts are those of utf8_ref.

64 bytes at a time where they are ASCII; runs of three-byte characters (Chinese) on a road of their own. Blocks are read
only inside a document, so the blob needs no spare bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.jit import frozen, inline, jit
from gpu_dedup.kernels.simd import ctz64, load_u64, mask_high, mask_lt, popcount64

# Two three-byte characters in the low six bytes of a word: where the fixed bits are, and what they must be.
_SIX_MASK = 0xC0C0F0C0C0F0
_SIX_BITS = 0x8080E08080E0


@inline
def _document(blob: npt.NDArray[np.uint8], i: int, end: int) -> bool:
    while i < end:
        if i + 64 <= end:
            skip = ctz64(mask_high(blob, i))
            i += skip
            if skip == 64:
                continue
        lead = blob[i]
        if lead < 0x80:
            i += 1
            continue
        if lead < 0xE0:
            if lead < 0xC2 or i + 2 > end or blob[i + 1] & 0xC0 != 0x80:
                return False
            i += 2
        elif lead < 0xF0:
            # Two characters at a time while both are plain: lead E1 to EC, so neither overlong nor surrogate.
            while i + 8 <= end:
                word = load_u64(blob, i)
                if word & np.uint64(_SIX_MASK) != np.uint64(_SIX_BITS):
                    break
                one = (word & np.uint64(0x0F)) - np.uint64(1)
                two = ((word >> np.uint64(24)) & np.uint64(0x0F)) - np.uint64(1)
                if one >= np.uint64(12) or two >= np.uint64(12):
                    break
                i += 6
            if i >= end:
                break
            lead = blob[i]
            if lead < 0xE0 or lead >= 0xF0:
                continue
            if i + 3 > end or blob[i + 1] & 0xC0 != 0x80 or blob[i + 2] & 0xC0 != 0x80:
                return False
            if (lead == 0xE0 and blob[i + 1] < 0xA0) or (lead == 0xED and blob[i + 1] >= 0xA0):
                return False
            i += 3
        else:
            if lead > 0xF4 or i + 4 > end or blob[i + 1] & 0xC0 != 0x80:
                return False
            if blob[i + 2] & 0xC0 != 0x80 or blob[i + 3] & 0xC0 != 0x80:
                return False
            if (lead == 0xF0 and blob[i + 1] < 0x90) or (lead == 0xF4 and blob[i + 1] >= 0x90):
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
