"""JSON lines taken apart, on the CPU: one sweep per line that checks all of it and un-escapes the wanted texts.

Same functions as ``jsonl_ref``. A line is TEXT only if json.loads would accept it and give this text; anything else (a
malformed line, a wanted field of another type, an escape in a key that may be wanted, too deep nesting) is ODD. 64-byte
masks find the next quote, backslash or control character; bytes before it are copied 64 at a time. Whatever is skipped
is checked by the same code, its copy landing behind the text where the next one overwrites it. UTF-8 is checked line by
line in mask arithmetic, 64 bytes at a time whatever the script, so Chinese costs about as much as English.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.jit import frozen, jit
from gpu_dedup.kernels.jsonl_ref import BLANK, MAX_DEPTH, ODD, PAD, SKIPPED, TEXT, check
from gpu_dedup.kernels.simd import copy64, ctz64, load_u64, mask_eq, mask_high, mask_lt, popcount64

_U8 = npt.NDArray[np.uint8]
_I64 = npt.NDArray[np.int64]
_U64 = npt.NDArray[np.uint64]

# What an escape's letter stands for; 0 for letters that are no escape. `u` has its own code.
_ESCAPES = np.zeros(256, np.uint8)
for _letter, _byte in zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True):
    _ESCAPES[_letter] = _byte
# Value of a hexadecimal digit; 255 for any other byte.
_HEX = np.full(256, 255, np.int64)
for _value, _digits in enumerate(zip(b"0123456789abcdef", b"0123456789ABCDEF", strict=True)):
    _HEX[_digits[0]] = _HEX[_digits[1]] = _value
# The low L bytes of a word.
_LOW = np.array([(1 << (8 * i)) - 1 for i in range(9)], np.uint64)

# Kinds of a value that was found.
_NONE, _STRING, _OTHER, _NULL = 0, 1, 2, 3

# What may come next.
_VALUE, _VALUE_OR_END, _KEY, _KEY_OR_END, _COMMA_OR_END = 0, 1, 2, 3, 4
_OBJECT, _ARRAY = 1, 2


@jit
def _count_lf(data: _U8, size: int) -> int:
    n: int = np.int64(0)
    i = np.int64(0)
    while i + 64 <= size:
        n += popcount64(mask_eq(data, i, np.uint8(10)))
        i += 64
    while i < size:
        n += np.int64(data[i] == 10)
        i += 1
    return n


@jit
def _fill_starts(data: _U8, size: int, starts: _I64) -> None:
    starts[0] = 0
    n = np.int64(1)
    i = np.int64(0)
    while i < size:
        m = mask_eq(data, i, np.uint8(10))
        while m != np.uint64(0):
            at = i + ctz64(m) + 1
            if at <= size:
                starts[n] = at
                n += 1
            m &= m - np.uint64(1)
        i += 64
    starts[len(starts) - 1] = size


@jit
def _utf8(data: _U8, start: int, end: int) -> bool:
    """True if data[start:end] is strict UTF-8: continuation bytes exactly where leads ask for them, and second bytes
    clear of overlong forms, surrogates and what lies above U+10FFFF (Unicode 15, table 3-7)."""
    one = np.uint64(1)
    need = np.uint64(0)  # continuation bytes still wanted from the block before, at their places in this one
    after_e0 = np.uint64(0)
    after_ed = np.uint64(0)
    after_f0 = np.uint64(0)
    after_f4 = np.uint64(0)
    i = start
    while i < end:
        inside = np.uint64(0xFFFFFFFFFFFFFFFF)
        if end - i < 64:
            inside = (one << np.uint64(end - i)) - one
        high = mask_high(data, i) & inside
        if high == np.uint64(0):
            if need != np.uint64(0):
                return False
            i += 64
            continue
        below_c0 = mask_lt(data, i, np.uint8(0xC0))
        below_e0 = mask_lt(data, i, np.uint8(0xE0))
        below_f0 = mask_lt(data, i, np.uint8(0xF0))
        never = ~mask_lt(data, i, np.uint8(0xF5)) | (mask_lt(data, i, np.uint8(0xC2)) & ~below_c0)
        lead = ~below_c0 & inside
        lead34 = ~below_e0 & inside
        lead4 = ~below_f0 & inside
        wanted = need | (lead << one) | (lead34 << np.uint64(2)) | (lead4 << np.uint64(3))
        e0 = mask_eq(data, i, np.uint8(0xE0)) & inside
        ed = mask_eq(data, i, np.uint8(0xED)) & inside
        f0 = mask_eq(data, i, np.uint8(0xF0)) & inside
        f4 = mask_eq(data, i, np.uint8(0xF4)) & inside
        below_a0 = mask_lt(data, i, np.uint8(0xA0))
        below_90 = mask_lt(data, i, np.uint8(0x90))
        second = ((e0 << one) | after_e0) & below_a0
        second |= ((ed << one) | after_ed) & ~below_a0
        second |= ((f0 << one) | after_f0) & below_90
        second |= ((f4 << one) | after_f4) & ~below_90
        if ((wanted ^ (high & below_c0)) | (never & inside) | (second & inside)) != np.uint64(0):
            return False
        need = (lead >> np.uint64(63)) | (lead34 >> np.uint64(62)) | (lead4 >> np.uint64(61))
        after_e0 = e0 >> np.uint64(63)
        after_ed = ed >> np.uint64(63)
        after_f0 = f0 >> np.uint64(63)
        after_f4 = f4 >> np.uint64(63)
        i += 64
    return bool(need == np.uint64(0))


@jit
def _string(data: _U8, p: int, end: int, blob: _U8, w: int) -> tuple[int, int]:
    """A string from the byte after its opening quote: un-escaped to blob[w:], (place after its closing quote, new w).
    (-1, w) if it is none. Never writes past blob[w + 64 + what it read]; reads up to 64 bytes after `end`."""
    while p < end:
        m = mask_eq(data, p, np.uint8(34)) | mask_eq(data, p, np.uint8(92)) | mask_lt(data, p, np.uint8(32))
        copy64(blob, w, data, p)
        if m == np.uint64(0):
            p += 64
            w += 64
            continue
        step = ctz64(m)
        p += step
        w += step
        if p >= end:
            return -1, w
        c = data[p]
        if c == 34:
            return p + 1, w
        if c != 92:
            return -1, w
        while c == 92 and p < end:  # escapes come in runs: \r\n, or every character of a text written as ASCII
            kind = data[p + 1]
            if kind != 117:
                plain = _ESCAPES[kind]
                if plain == 0:
                    return -1, w
                blob[w] = plain
                p += 2
                w += 1
                c = data[p]
                continue
            a, b, d, e = _HEX[data[p + 2]], _HEX[data[p + 3]], _HEX[data[p + 4]], _HEX[data[p + 5]]
            if (a | b | d | e) > 15:
                return -1, w
            v = (a << 12) | (b << 8) | (d << 4) | e
            p += 6
            if v < 0x80:
                blob[w] = v
                w += 1
            elif v < 0x800:
                blob[w] = 0xC0 | (v >> 6)
                blob[w + 1] = 0x80 | (v & 63)
                w += 2
            else:
                if 0xD800 <= v < 0xDC00 and data[p] == 92 and data[p + 1] == 117:
                    a, b, d, e = _HEX[data[p + 2]], _HEX[data[p + 3]], _HEX[data[p + 4]], _HEX[data[p + 5]]
                    low = (a << 12) | (b << 8) | (d << 4) | e
                    if (a | b | d | e) <= 15 and 0xDC00 <= low < 0xE000:
                        v = 0x10000 + ((v - 0xD800) << 10) + (low - 0xDC00)
                        p += 6
                if v < 0x10000:
                    blob[w] = 0xE0 | (v >> 12)
                    blob[w + 1] = 0x80 | ((v >> 6) & 63)
                    blob[w + 2] = 0x80 | (v & 63)
                    w += 3
                else:
                    blob[w] = 0xF0 | (v >> 18)
                    blob[w + 1] = 0x80 | ((v >> 12) & 63)
                    blob[w + 2] = 0x80 | ((v >> 6) & 63)
                    blob[w + 3] = 0x80 | (v & 63)
                    w += 4
            c = data[p]
    return -1, w


@jit
def _space(data: _U8, p: int, end: int) -> int:
    """First place from p that is no JSON white space (a line holds no LF)."""
    while p < end and (data[p] == 32 or data[p] == 13 or data[p] == 9):
        p += 1
    return p


@jit
def _is(data: _U8, p: int, word: _U8) -> bool:
    """True if data goes on with `word` at p; the caller's end check follows."""
    for i in range(len(word)):  # noqa: SIM110 - Numba compiles no generator
        if data[p + i] != word[i]:
            return False
    return True


_TRUE, _FALSE, _NULL_WORD, _NAN, _INFINITY = (
    np.array(bytearray(word), np.uint8) for word in (b"true", b"false", b"null", b"NaN", b"Infinity")
)


@jit
def _scalar(data: _U8, p: int, end: int) -> int:
    """Place after the number, true, false, null, NaN or Infinity at p; -1 if none. What follows is the caller's."""
    c = data[p]
    if c == 116:
        return p + 4 if _is(data, p, _TRUE) else -1
    if c == 102:
        return p + 5 if _is(data, p, _FALSE) else -1
    if c == 110:
        return p + 4 if _is(data, p, _NULL_WORD) else -1
    if c == 78:
        return p + 3 if _is(data, p, _NAN) else -1
    if c == 45:
        p += 1
        c = data[p]
    if c == 73:
        return p + 8 if _is(data, p, _INFINITY) else -1
    if c < 48 or c > 57:
        return -1
    p += 1
    if c != 48:
        while p < end and 48 <= data[p] <= 57:
            p += 1
    if data[p] == 46:
        p += 1
        if data[p] < 48 or data[p] > 57:
            return -1
        while p < end and 48 <= data[p] <= 57:
            p += 1
    if data[p] == 101 or data[p] == 69:
        p += 1
        if data[p] == 43 or data[p] == 45:
            p += 1
        if data[p] < 48 or data[p] > 57:
            return -1
        while p < end and 48 <= data[p] <= 57:
            p += 1
    return p


@jit
def _record(
    data: _U8, p: int, end: int, words: _U8, word_at: _I64, word8: _U64, path_at: _I64, deepest: int, fused: bool,
    find: _I64, stack: _U8, blob: _U8, base: int,
) -> int:  # fmt: skip
    """Check the record data[p:end] and find the values of all paths. -1: ODD; else where the text of path 0 ends in
    blob (with `fused`; it begins at `base`).

    words, word_at, word8   the paths' keys, key k is words[word_at[k]:word_at[k + 1]], word8 its first 8 bytes
    path_at                 path j is keys path_at[j]:path_at[j + 1]; `deepest`: most keys of a path
    find                    int64[paths, 6], by path: level whose keys are compared next; 1 if the key of that level
                            has just matched and its value may be entered; level of the value being read, or 0; then
                            what was found: kind, first byte, byte after the last
    """
    paths = len(path_at) - 1
    for j in range(paths):
        find[j, 0] = 1
        find[j, 1] = 0
        find[j, 2] = 0
        find[j, 3] = _NONE
    w = base
    p = _space(data, p, end)
    if p >= end or data[p] != 123:
        return -1
    p += 1
    depth = np.int64(1)
    stack[1] = _OBJECT
    state = _KEY_OR_END
    while depth > 0:
        p = _space(data, p, end)
        if p >= end:
            return -1
        c = data[p]
        if state >= _KEY and state != _COMMA_OR_END:
            if c == 34:
                q = p + 1
                p, w_key = _string(data, q, end, blob, w)
                if p < 0:
                    return -1
                if depth <= deepest:
                    length = p - 1 - q
                    if w_key - w != length:
                        return -1  # an escape in a key that could be a wanted one
                    key8 = load_u64(data, q) & _LOW[min(length, 8)]
                    for j in range(paths):
                        if find[j, 0] != depth:
                            continue
                        find[j, 1] = 0
                        k = path_at[j] + depth - 1
                        at = word_at[k]
                        if word_at[k + 1] - at != length or word8[k] != key8:
                            continue
                        same = True
                        for i in range(8, length):
                            if words[at + i] != data[q + i]:
                                same = False
                                break
                        if same:
                            find[j, 3] = _NONE  # the last repeat of a key wins, at every level of a path
                            if k + 1 == path_at[j + 1]:
                                find[j, 2] = depth
                                if fused and j == 0:
                                    w = base
                            else:
                                find[j, 1] = 1
                p = _space(data, p, end)
                if p >= end or data[p] != 58:
                    return -1
                p += 1
                state = _VALUE
                continue
            if c != 125 or state == _KEY:
                return -1
            p += 1
        elif state == _COMMA_OR_END:
            if c == 44:
                p += 1
                state = _KEY if stack[depth] == _OBJECT else _VALUE
                continue
            if c != (125 if stack[depth] == _OBJECT else 93):
                return -1
            p += 1
        elif c == 93 and state == _VALUE_OR_END:
            p += 1
        else:
            into_text = False
            if depth <= deepest:
                for j in range(paths):
                    if find[j, 2] == depth:
                        find[j, 3] = _STRING if c == 34 else (_NULL if c == 110 else _OTHER)
                        find[j, 4] = p
                        into_text = into_text or (fused and j == 0)
            if c == 123 or c == 91:
                if depth == MAX_DEPTH:
                    return -1
                if c == 123 and depth < deepest:
                    for j in range(paths):
                        if find[j, 0] == depth and find[j, 1] == 1:
                            find[j, 0] = depth + 1
                            find[j, 1] = 0
                depth += 1
                stack[depth] = _OBJECT if c == 123 else _ARRAY
                state = _KEY_OR_END if c == 123 else _VALUE_OR_END
                p += 1
                continue
            if c == 34:
                p, w_after = _string(data, p + 1, end, blob, w)
                if into_text:
                    w = w_after
            else:
                p = _scalar(data, p, end)
            if p < 0:
                return -1
            depth += 1  # a plain value ends like a container: by going up one level
        # A value has just ended, and its level is the one above.
        if depth <= deepest:
            for j in range(paths):
                if find[j, 0] == depth:
                    find[j, 0] = depth - 1
        depth -= 1
        if 0 < depth <= deepest:
            for j in range(paths):
                if find[j, 2] == depth:
                    find[j, 2] = 0
                    find[j, 5] = p
        state = _COMMA_OR_END
    p = _space(data, p, end)
    if p != end:
        return -1
    return w


@jit
def _extract(
    data: _U8, starts: _I64, want: npt.NDArray[np.bool_], words: _U8, word_at: _I64, word8: _U64, path_at: _I64,
    deepest: int, owner: _I64, fields: int, status: _U8, blob: _U8, offsets: _I64, spans: _I64,
) -> None:  # fmt: skip
    """`owner`: int64[paths], the name (fields first, then extra) a path belongs to; a name's own key comes first."""
    paths = len(owner)
    find = np.zeros((paths, 6), np.int64)
    chosen = np.zeros(fields + spans.shape[1], np.int64)
    stack = np.zeros(MAX_DEPTH + 1, np.uint8)
    fused = fields == 1 and (paths < 2 or owner[1] != 0)
    w = np.int64(0)
    for i in range(len(status)):
        offsets[i] = w
        if len(want) and not want[i]:
            status[i] = SKIPPED
            continue
        start = starts[i]
        end = starts[i + 1]
        if data[end - 1] == 10:
            end -= 1
        if _space(data, start, end) == end:
            status[i] = BLANK
            continue
        status[i] = ODD
        after = _record(
            data, start, end, words, word_at, word8, path_at, deepest, fused, find, stack, blob, w
        )  # fmt: skip
        if after < 0 or not _utf8(data, start, end):
            continue
        for j in range(paths - 1, -1, -1):  # a key of the record beats a path into objects
            if find[j, 3] != _NONE or j + 1 == paths or owner[j + 1] != owner[j]:
                chosen[owner[j]] = j
        if fused:
            if find[0, 3] != _STRING:
                continue
        else:
            after = w
            found = False
            for f in range(fields):
                kind = find[chosen[f], 3]
                if kind == _OTHER:
                    found = False
                    break
                if kind == _STRING:
                    if found:
                        blob[after] = 10
                        after += 1
                    found = True
                    _, after = _string(data, find[chosen[f], 4] + 1, end, blob, after)
            if not found:
                continue
        for x in range(spans.shape[1]):
            j = chosen[fields + x]
            if find[j, 3] != _NONE:
                spans[i, x, 0] = find[j, 4]
                spans[i, x, 1] = find[j, 5]
        status[i] = TEXT
        w = after
    offsets[len(status)] = w


def scan_lines(data: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.int64]:
    """Where lines begin; see jsonl_ref.scan_lines."""
    check(data, size, ("text",), ())
    return _scan(frozen(data, np.uint8), size)


def _scan(data: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.int64]:
    cut = size > 0 and data[size - 1] != 10
    starts = np.empty(_count_lf(data, size) + cut + 1, np.int64)
    _fill_starts(data, size, starts)
    return starts


def extract(
    data: npt.NDArray[np.uint8],
    size: int,
    fields: tuple[str, ...],
    extra: tuple[str, ...],
    want: npt.NDArray[np.bool_] | None,
) -> tuple[
    npt.NDArray[np.int64], npt.NDArray[np.uint8], npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]
]:
    """Take JSON lines apart; see jsonl_ref.extract. Lines that this kernel judges are TEXT, the rest ODD."""
    check(data, size, fields, extra)
    data = frozen(data, np.uint8)
    starts = _scan(data, size)
    n = len(starts) - 1
    keys: list[bytes] = []
    path_at = [0]
    owner: list[int] = []
    for number, name in enumerate((*fields, *extra)):
        for path in ([name], name.split(".")) if "." in name else ([name],):
            keys += [key.encode("utf-8", "surrogatepass") for key in path]
            path_at.append(len(keys))
            owner.append(number)
    if want is None:
        mask = frozen(np.zeros(0, np.bool_), np.bool_)
    elif len(want) != n:
        raise ValueError(f"{len(want)} flags for {n} lines")
    else:
        mask = frozen(want, np.bool_)
    status = np.empty(n, np.uint8)
    blob = np.empty(size + PAD, np.uint8)
    blob[size:] = 0
    offsets = np.empty(n + 1, np.int64)
    spans = np.full((n, len(extra), 2), -1, np.int64)
    _extract(
        data, starts, mask,
        np.array(bytearray(b"".join(keys)), np.uint8),
        np.cumsum([0, *map(len, keys)], dtype=np.int64),
        np.array([int.from_bytes(key[:8], "little") for key in keys], np.uint64),
        np.array(path_at, np.int64), max(np.diff(path_at)).item(),
        np.array(owner, np.int64), len(fields), status, blob, offsets, spans,
    )  # fmt: skip
    return starts, status, blob, offsets, spans
