"""UTF-8: is it valid, how many code points, which. The definition, in Python and NumPy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def valid(blob: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which of n documents are strict UTF-8: no surrogates, no overlong forms, at most U+10FFFF, nothing cut off.

    blob     uint8[>= offsets[n]], any bytes
    offsets  int64[n + 1], non-decreasing; offsets[0] may be above 0
    returns  bool[n]
    """
    out = np.ones(len(offsets) - 1, np.bool_)
    for i, (low, high) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        data = blob[low:high].tobytes()
        if not data.isascii():
            try:
                data.decode("utf-8", "strict")
            except UnicodeDecodeError:
                out[i] = False
    return out


def code_points(blob: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Code points of each of n documents: its bytes that are no continuation bytes (0x80 to 0xBF).

    blob     uint8[>= offsets[n]], UTF-8, lone surrogates as three bytes (each counts as one)
    offsets  int64[n + 1], non-decreasing; offsets[0] may be above 0
    returns  int64[n]
    """
    low, high = int(offsets[0]), int(offsets[-1])
    sums = np.zeros(high - low + 1, np.int64)
    np.cumsum((blob[low:high] & 0xC0) != 0x80, out=sums[1:])
    return sums[offsets[1:] - low] - sums[offsets[:-1] - low]


def decode(
    blob: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """The code points of n documents.

    blob     uint8[>= offsets[n]], UTF-8, lone surrogates as three bytes
    offsets  int64[n + 1], non-decreasing; offsets[0] may be above 0
    returns  uint32[total] code points, int64[n + 1] from 0 to total

    Bytes that are not UTF-8 give as many values as `code_points` says, of no particular meaning.
    """
    counts = code_points(blob, offsets)
    ends = np.zeros(len(offsets), np.int64)
    np.cumsum(counts, out=ends[1:])
    low, high = int(offsets[0]), int(offsets[-1])
    data = np.concatenate([blob[low:high], np.zeros(3, np.uint8)]).astype(np.uint32)
    lead = np.flatnonzero((data[: high - low] & 0xC0) != 0x80)
    b0, b1, b2, b3 = data[lead], data[lead + 1] & 0x3F, data[lead + 2] & 0x3F, data[lead + 3] & 0x3F
    two = (b0 & 0x1F) << 6 | b1
    three = (b0 & 0x0F) << 12 | b1 << 6 | b2
    four = (b0 & 0x07) << 18 | b1 << 12 | b2 << 6 | b3
    out = np.select([b0 < 0x80, b0 < 0xE0, b0 < 0xF0], [b0, two, three], four)
    return out.astype(np.uint32), ends
