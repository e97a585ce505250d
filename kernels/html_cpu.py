"""The text of HTML, in Numba; contract and meaning are those of html_ref.

Text without `<` and `&` is passed over 64 bytes at a time. A search that fails is not repeated: where a document holds
a tag without an end, one pass from its end to its beginning finds for every `<` whether its tag has one, and a comment
or a script without an end is looked for once. So the time is linear in the size, whatever the text.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.html_ref import PAD
from gpu_dedup.kernels.html_tables import NOTHING, REPLACEMENT, trie
from gpu_dedup.kernels.jit import frozen, inline, jit
from gpu_dedup.kernels.simd import copy64, ctz64, mask_eq

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

LT, GT, AMP, EQUALS, QUOTE, APOSTROPHE, SLASH, BANG, QUESTION, SEMICOLON, HASH, DASH = map(ord, "<>&=\"'/!?;#-")
ROOM = 128  # bytes behind the texts: a block is stored whole
_TOO_LARGE = 0x110000


@inline
def _blank(byte: int) -> bool:
    return byte == 0x20 or byte == 0x09 or byte == 0x0A or byte == 0x0C or byte == 0x0D


@inline
def _letter(byte: int) -> bool:
    return 0x61 <= (byte | 0x20) <= 0x7A


@jit
def _find(src: U8, i: int, end: int) -> int:
    """Place of the first `<` or `&` in src[i:end]; `end` if there is none."""
    size = len(src)
    while i < end and i + 64 <= size:
        hit = mask_eq(src, i, np.uint8(LT)) | mask_eq(src, i, np.uint8(AMP))
        if hit != np.uint64(0):
            found: int = min(i + ctz64(hit), end)
            return found
        i += 64
    while i < end and src[i] != LT and src[i] != AMP:
        i += 1
    return min(i, end)


@jit
def _tag_end(src: U8, i: int, end: int) -> int:
    """The byte behind the tag whose third byte is src[i]; -1 if it has no end."""
    equals = False
    while i < end:
        byte = src[i]
        i += 1
        if byte == GT:
            return i
        if equals and byte in (QUOTE, APOSTROPHE):
            while i < end and src[i] != byte:
                i += 1
            i += 1
            equals = False
        elif byte == EQUALS:
            equals = True
        elif not _blank(byte):
            equals = False
    return -1


@jit
def _ending(src: U8, first: int, end: int) -> U8:
    """uint8[end - first]: 1 where the tag that begins there (its third byte is two further on) has an end."""
    out = np.zeros(end - first, np.uint8)
    # Whether an end follows, for each state that the scan of a tag may be in before src[i].
    tag = equals = quoted = single = np.uint8(0)
    tag_later = np.uint8(0)  # `tag` before src[i + 1]
    i = end - 1
    while i >= first:
        byte = src[i]
        new_tag, new_equals = tag, tag
        new_quoted, new_single = quoted, single
        if byte == GT:
            new_tag = new_equals = np.uint8(1)
        elif byte == EQUALS:
            new_tag = new_equals = equals
        elif byte == QUOTE:
            new_equals = quoted
            new_quoted = tag
        elif byte == APOSTROPHE:
            new_equals = single
            new_single = tag
        elif _blank(byte):
            new_equals = equals
        if byte == LT:
            out[i - first] = tag_later
        tag_later = tag
        tag, equals, quoted, single = new_tag, new_equals, new_quoted, new_single
        i -= 1
    return out


@jit
def _is_raw(src: U8, i: int, end: int, style: bool) -> bool:
    """True if the name at src[i] is `script` (or `style`), with white space, `/` or `>` behind it."""
    size = 5 if style else 6
    if i + size >= end:
        return False
    word = np.uint64(0)
    for j in range(size):
        word = word << np.uint64(8) | np.uint64(src[i + j] | 0x20)
    # The bit that makes letters small also turns some controls into other characters, none of them a letter.
    if word != (np.uint64(0x7374796C65) if style else np.uint64(0x736372697074)):
        return False
    behind = src[i + size]
    return behind in (SLASH, GT) or _blank(behind)


@jit
def _raw_end(src: U8, i: int, end: int, style: bool) -> int:
    """The byte behind the first end tag of a script (or style) in src[i:end]; -1 if there is none."""
    while i < end:
        if src[i] == LT and i + 1 < end and src[i + 1] == SLASH and _is_raw(src, i + 2, end, style):
            i += 7 if style else 8
            while i < end:
                if src[i] == GT:
                    return i + 1
                i += 1
            return -1
        i += 1
    return -1


@jit
def _comment_end(src: U8, i: int, end: int) -> int:
    """The byte behind the first `-->` in src[i:end]; -1 if there is none."""
    while i + 2 < end:
        if src[i + 2] == GT and src[i + 1] == DASH and src[i] == DASH:
            return i + 3
        i += 1
    return -1


@jit
def _store(dst: U8, o: int, code: int) -> int:
    """A code point as UTF-8; returns the place behind it."""
    if code < 0x80:
        dst[o] = np.uint8(code)
        return o + 1
    if code < 0x800:
        dst[o] = np.uint8(0xC0 | code >> 6)
        dst[o + 1] = np.uint8(0x80 | code & 0x3F)
        return o + 2
    if code < 0x10000:
        dst[o] = np.uint8(0xE0 | code >> 12)
        dst[o + 1] = np.uint8(0x80 | (code >> 6) & 0x3F)
        dst[o + 2] = np.uint8(0x80 | code & 0x3F)
        return o + 3
    dst[o] = np.uint8(0xF0 | code >> 18)
    dst[o + 1] = np.uint8(0x80 | (code >> 12) & 0x3F)
    dst[o + 2] = np.uint8(0x80 | (code >> 6) & 0x3F)
    dst[o + 3] = np.uint8(0x80 | code & 0x3F)
    return o + 4


@jit
def _number(src: U8, i: int, end: int, numbers: U32, dst: U8, o: int) -> tuple[int, int]:
    """The number behind `&#`, its first byte src[i]: places behind it in src and dst. The first is -1 if it is none."""
    hexadecimal = i < end and (src[i] | 0x20) == 0x78
    if hexadecimal:
        i += 1
    first = i
    code = np.int64(0)
    while i < end:
        byte = np.int64(src[i])
        digit = np.int64(-1)
        if 0x30 <= byte <= 0x39:
            digit = byte - 0x30
        elif hexadecimal and 0x61 <= (byte | 0x20) <= 0x66:
            digit = (byte | 0x20) - 0x57
        if digit < 0:
            break
        code = min(code * (16 if hexadecimal else 10) + digit, np.int64(_TOO_LARGE))
        i += 1
    if i == first:
        return -1, o
    if i < end and src[i] == SEMICOLON:
        i += 1
    if code < 0xA0:
        code = np.int64(numbers[code])
    elif 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
        code = np.int64(REPLACEMENT)
    elif 0xFDD0 <= code <= 0xFDEF or code & 0xFFFE == 0xFFFE:
        code = np.int64(NOTHING)
    if code != NOTHING:
        o = _store(dst, o, code)
    return i, o


@jit
def _name(
    src: U8, i: int, end: int, edges: I32, bytes_: U8, to: I32, value: I32, starts: I32, data: U8, dst: U8, o: int
) -> tuple[int, int]:
    """The name behind `&`, its first byte src[i]: as _number. The longest name in the table, for the names that end in
    `;` are longer than the same without."""
    node = np.int64(0)
    found, behind = np.int64(-1), np.int64(-1)
    while i < end:
        byte = src[i]
        after = np.int64(-1)
        for edge in range(edges[node], edges[node + 1]):
            if bytes_[edge] == byte:
                after = np.int64(to[edge])
                break
        if after < 0:
            break
        i += 1
        node = after
        if value[node] >= 0:
            found, behind = np.int64(value[node]), np.int64(i)
    if found >= 0:
        for k in range(starts[found], starts[found + 1]):
            dst[o] = data[k]
            o += 1
    return behind, o


@jit
def _run(
    src: U8, offsets: I64, edges: I32, bytes_: U8, to: I32, value: I32, starts: I32, data: U8, numbers: U32,
    dst: U8, ends: I64,
) -> None:  # fmt: skip
    size = len(src)
    o = np.int64(0)
    for d in range(len(offsets) - 1):
        i, end = offsets[d], offsets[d + 1]
        comments = scripts = styles = True  # an end of one may still be found
        ending = np.zeros(0, np.uint8)
        ending_at = np.int64(-1)
        while i < end:
            if i + 64 <= size:
                hit = mask_eq(src, i, np.uint8(LT)) | mask_eq(src, i, np.uint8(AMP))
                copy64(dst, o, src, i)
                step = min(ctz64(hit), end - i)
                i += step
                o += step
                if step == 64 or i == end:
                    continue
            behind = np.int64(-1)
            if src[i] == LT and i + 1 < end:
                byte = src[i + 1]
                if byte == BANG and i + 3 < end and src[i + 2] == DASH and src[i + 3] == DASH:
                    if comments:
                        behind = _comment_end(src, i + 2, end)
                        comments = behind >= 0
                elif _letter(byte) or byte in (SLASH, BANG, QUESTION):
                    if ending_at < 0 or ending[i - ending_at] != 0:
                        behind = _tag_end(src, i + 2, end)
                        if behind < 0:
                            ending = _ending(src, i, end)
                            ending_at = np.int64(i)
                    if behind >= 0:
                        raw_end = np.int64(-1)
                        if scripts and _is_raw(src, i + 1, end, False):
                            raw_end = _raw_end(src, behind, end, False)
                            scripts = raw_end >= 0
                        elif styles and _is_raw(src, i + 1, end, True):
                            raw_end = _raw_end(src, behind, end, True)
                            styles = raw_end >= 0
                        behind = max(behind, raw_end)
                if behind >= 0:
                    dst[o] = np.uint8(0x20)
                    o += 1
            elif src[i] == AMP:
                if i + 1 < end and src[i + 1] == HASH:
                    behind, o = _number(src, i + 2, end, numbers, dst, o)
                else:
                    behind, o = _name(src, i + 1, end, edges, bytes_, to, value, starts, data, dst, o)
            if behind < 0:
                dst[o] = src[i]
                o += 1
                i += 1
            else:
                i = behind
        ends[d + 1] = o


def plain(
    blob: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The texts of n HTML documents; contract as html_ref.plain."""
    src, places = frozen(blob, np.uint8), frozen(offsets, np.int64)
    low, high = int(offsets[0]), int(offsets[-1])
    if _find(src, low, high) == high:
        return blob, offsets
    total = high - low
    # The longest a reference becomes is six bytes of five (`&nGt;`); a tag becomes one of three or more.
    out = np.empty(total + total // 5 + ROOM + PAD, np.uint8)
    ends = np.zeros(len(offsets), np.int64)
    table = trie()
    _run(src, places, *table, out, ends)
    size = int(ends[-1])
    out[size : size + PAD] = 0
    return out[: size + PAD], ends
