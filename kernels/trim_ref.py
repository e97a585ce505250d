"""Ends of normalised texts: listed strings go, and the text is cut after N code points. The definition, plain Python.

Strip: while the text ends with one of the words, the longest of these goes from its end; then while it begins with one,
the longest goes from its beginning. With `blank` on, blanks (U+0020) that come to stand at that end go too.

Cut, where there are more than N code points, `t` the text and h = N // 2: at the greatest e with h < e <= N where

    t[:e] ends in a sentence: a terminator at h or later, then closers or nothing; and, where the terminator is a weak
    one, t[e] is White_Space or belongs to the SINGLE ones of unicode.py (a point inside `3.5` ends nothing)

else at the greatest e with h < e <= N where t[e] is White_Space, else at N. What is left does not depend on the machine
or on anything that follows t[N].
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.unicode import SINGLE, SPACE, class_table

PAD = 64  # spare bytes after the texts

# Terminators: those that stand inside words and numbers, too, and those that do not.
WEAK = tuple(map(ord, ".!?\u2026\uff0e"))
STRONG = tuple(map(ord, "\u3002\uff61\uff01\uff1f\u061f\u06d4\u0964\u0965\u1362\u17d4\u104b\u203c\u2047\u2048\u2049"))
CLOSERS = tuple(
    map(ord, "\"')]}\u00bb\u203a\u2019\u201d\u3009\u300b\u300d\u300f\u3011\u3015\u3017\uff09\uff3d\uff5d\uff63")
)


def check(words: npt.NDArray[np.uint8], places: npt.NDArray[np.int64], most: int) -> None:
    """Raises ValueError for an empty word, or a negative number of code points."""
    if np.any(np.diff(places) < 1) or places[0] < 0 or places[-1] > len(words):
        raise ValueError("every word to strip has a byte or more")
    if most < 0:
        raise ValueError(f"a text cannot be cut to {most} code points")


def stripped(text: bytes, words: list[bytes], blank: bool) -> bytes:
    """One text without the words at its ends; `words` longest first."""
    for at_end in (True, False):
        while True:
            matches = text.endswith if at_end else text.startswith
            word = next((word for word in words if matches(word)), None)
            if word is None:
                break
            text = text[: len(text) - len(word)] if at_end else text[len(word) :]
            if blank:
                text = text.rstrip(b" ") if at_end else text.lstrip(b" ")
    return text


def cut(text: str, most: int) -> str:
    """One text of more than `most` code points, cut."""
    stage1, stage2 = class_table()

    def kind(place: int) -> int:
        code = ord(text[place])
        return int(stage2[int(stage1[code >> 7]) * 128 + (code & 127)])

    half = most // 2
    for end in range(most, half, -1):
        last = end - 1
        while last >= half and ord(text[last]) in CLOSERS:
            last -= 1
        if last >= half and ord(text[last]) in STRONG:
            return text[:end]
        if last >= half and ord(text[last]) in WEAK and kind(end) & (SPACE | SINGLE):
            return text[:end]
    for end in range(most, half, -1):
        if kind(end) & SPACE:
            return text[:end]
    return text[:most]


def trim(
    blob: npt.NDArray[np.uint8],
    offsets: npt.NDArray[np.int64],
    words: npt.NDArray[np.uint8],
    places: npt.NDArray[np.int64],
    blank: bool,
    most: int,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Strip and then cut n texts.

    blob     uint8[>= offsets[n]], UTF-8, lone surrogates as three bytes
    offsets  int64[n + 1], non-decreasing; offsets[0] may be above 0
    words    uint8[>= places[w]], UTF-8; places int64[w + 1]: the strings to strip, none of them empty, in any order
    blank    whether blanks at a stripped end go too
    most     code points that are left at most; 0: all of them
    returns  uint8[>= the last offset], int64[n + 1]: the same arrays where no text changes

    Raises ValueError as `check` does.
    """
    check(words, places, most)
    listed = sorted({words[a:b].tobytes() for a, b in pairwise(places.tolist())}, key=len, reverse=True)
    parts = []
    changed = False
    for low, high in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        data = blob[low:high].tobytes()
        left = stripped(data, listed, blank)
        if 0 < most < len(left):
            text = left.decode("utf-8", "surrogatepass")
            if len(text) > most:
                left = cut(text, most).encode("utf-8", "surrogatepass")
        changed = changed or len(left) < len(data)
        parts.append(left)
    if not changed:
        return blob, offsets
    ends = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=ends[1:])
    return np.frombuffer(bytearray(b"".join(parts) + bytes(PAD)), np.uint8), ends
