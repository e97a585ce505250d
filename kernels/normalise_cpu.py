"""Text as it is compared, in Numba; contract and meaning are those of normalise_ref.

Three roads, from one to the next within a document:

    blocks    64 bytes at a time while they are ASCII: mapped as one vector and stored whole; where white space goes,
              the runs of bytes that stay are moved together
    singles   one code point at a time through the tables: its own bytes, or its ready result; Han two at a time
    clusters  a code point with others that join it (see normalise_tables): taken apart, ordered, composed, folded, and
              composed again, unless all of them are quick

ACCENTS takes a second round where there is a form or a folding before it.

The output buffer holds ROOM spare bytes at each step. Where it is too short the core stops at the start of the
document, and the caller goes on from there with a larger one.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gpu_dedup.kernels.jit import frozen, inline, jit, stored
from gpu_dedup.kernels.normalise_ref import (
    ACCENTS,
    DIGITS,
    L_BASE,
    L_COUNT,
    LOWER,
    NFC,
    NFKC,
    NOSPACE,
    PAD,
    PUNCTUATION,
    S_BASE,
    S_COUNT,
    T_BASE,
    T_COUNT,
    V_BASE,
    V_COUNT,
    WHITESPACE,
    check_steps,
)
from gpu_dedup.kernels.normalise_tables import (
    CLASS1,
    CLASS2,
    DATA,
    ENTRY1,
    ENTRY2,
    HASH_BITS,
    HASH_FACTOR,
    JOINS,
    LONGEST,
    PAIRS,
    QUICK,
    RECORD1,
    RECORD2,
    RECORDS,
    SAME,
    SECOND,
    SPACE_OUT,
    STARTS,
    STRING,
    Tables,
    tables,
)
from gpu_dedup.kernels.simd import copy64, ctz64, load_u64, store_u64
from gpu_dedup.kernels.unicode import DIGIT, PUNCT, SPACE

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]

ROOM = LONGEST + 64  # a step writes at most this many bytes: a string and a word, or a block and one more
HAN_FIRST, HAN_LAST = 0x4E00, 0x9FFF  # unified ideographs; bounds of blocks of 64
_CODE = 0x1FFFFF  # the code point of a code point in work
_EVERY = 0xFFFFFFFFFFFFFFFF
_HIGH = 0x8080808080808080

# The punctuation marks and symbols of ASCII: first, count.
_PUNCT_RANGES = ((0x21, 15), (0x3A, 7), (0x5B, 6), (0x7B, 4))


def _map_ascii(
    typingctx: Any, dst: Any, d: Any, src: Any, s: Any, lower: Any, digits: Any, punct: Any, space: Any
) -> Any:
    """dst[d:d+64] = src[s:s+64], ASCII mapped as the four switches (0 or 255, uint8) say; other bytes as they are.

    returns  uint64 mask of bytes >= 0x80, uint64 mask of U+0020 in what was stored

    lower: A-Z to a-z; digits: 0-9 to 0; punct: P* and S* to blank; space: U+0009 to U+000D to blank.
    """
    v64 = ir.VectorType(ir.IntType(8), 64)
    i32 = ir.IntType(32)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        def address(array_type: Any, array: Any, index: Any) -> Any:
            data = context.make_array(array_type)(context, builder, array).data
            pointer = builder.gep(builder.bitcast(data, ir.IntType(8).as_pointer()), [index], inbounds=True)
            return builder.bitcast(pointer, v64.as_pointer())

        def splat(byte: Any) -> Any:
            one = builder.insert_element(ir.Constant(v64, ir.Undefined), byte, ir.Constant(i32, 0))
            return builder.shuffle_vector(
                one, ir.Constant(v64, ir.Undefined), ir.Constant(ir.VectorType(i32, 64), [0] * 64)
            )

        def constant(byte: int) -> Any:
            return ir.Constant(v64, [byte] * 64)

        def within(first: int, count: int, switch: Any) -> Any:
            # (b - first) < (count & switch), unsigned: never true where the switch is off
            width = builder.and_(splat(switch), constant(count))
            return builder.icmp_unsigned("<", builder.sub(block, constant(first)), width)

        block = builder.load(address(sig.args[2], args[2], args[3]), align=1)
        out = builder.select(within(0x41, 26, args[4]), builder.or_(block, constant(0x20)), block)
        out = builder.select(within(0x30, 10, args[5]), constant(0x30), out)
        blank = within(0x09, 5, args[7])
        for first, count in _PUNCT_RANGES:
            blank = builder.or_(blank, within(first, count, args[6]))
        out = builder.select(blank, constant(0x20), out)
        builder.store(out, address(sig.args[0], args[0], args[1]), align=1)
        high = builder.bitcast(builder.icmp_signed("<", block, constant(0)), ir.IntType(64))
        white = builder.bitcast(builder.icmp_unsigned("==", out, constant(0x20)), ir.IntType(64))
        return context.make_tuple(builder, sig.return_type, [high, white])

    pair: Any = types.UniTuple(types.uint64, 2)  # type: ignore[no-untyped-call]
    u8 = types.uint8
    return pair(dst, types.int64, src, types.int64, u8, u8, u8, u8), codegen


map_ascii: Any = intrinsic(_map_ascii)


@inline
def _decode(word: int) -> tuple[int, int]:
    """Code point and size of the character that a word begins with; below 0x200000 and 1 to 4 whatever the bytes."""
    lead = word & 0xFF
    if lead < 0x80:
        return lead, np.int64(1)
    if lead < 0xE0:
        return (lead & 0x1F) << 6 | (word >> 8) & 0x3F, np.int64(2)
    if lead < 0xF0:
        return (lead & 0x0F) << 12 | ((word >> 8) & 0x3F) << 6 | (word >> 16) & 0x3F, np.int64(3)
    high = (lead & 0x07) << 18 | ((word >> 8) & 0x3F) << 12
    return high | ((word >> 16) & 0x3F) << 6 | (word >> 24) & 0x3F, np.int64(4)


@inline
def _utf8(code: int) -> tuple[int, int]:
    """A code point as UTF-8: the bytes, first lowest, and how many."""
    if code < 0x80:
        return code, np.int64(1)
    last = 0x80 | code & 0x3F
    if code < 0x800:
        return last << 8 | 0xC0 | code >> 6, np.int64(2)
    middle = 0x80 | (code >> 6) & 0x3F
    if code < 0x10000:
        return last << 16 | middle << 8 | 0xE0 | code >> 12, np.int64(3)
    return last << 24 | middle << 16 | (0x80 | (code >> 12) & 0x3F) << 8 | 0xF0 | code >> 18, np.int64(4)


@inline
def _place(first: int, second: int) -> int:
    """Where a pair is looked for."""
    place: int = np.int64((np.uint64(first << 21 | second) * np.uint64(HASH_FACTOR)) >> np.uint64(64 - HASH_BITS))
    return place


@jit
def _composite(first: int, second: int, book: U32) -> int:
    """The primary composite of two code points; 0 where there is none."""
    found: int = np.int64(0)
    if V_BASE <= second < T_BASE + T_COUNT:
        if second < V_BASE + V_COUNT and L_BASE <= first < L_BASE + L_COUNT:
            found = S_BASE + ((first - L_BASE) * V_COUNT + (second - V_BASE)) * T_COUNT
        elif second > T_BASE and S_BASE <= first < S_BASE + S_COUNT and (first - S_BASE) % T_COUNT == 0:
            found = first + (second - T_BASE)
        return found
    pairs = np.int64(book[PAIRS])
    place = _place(first, second)
    while book[pairs + 4 * place] != 0:
        row = pairs + 4 * place
        if np.int64(book[row]) == first and np.int64(book[row + 1]) == second:
            found = np.int64(book[row + 2])
            break
        place = (place + 1) & ((1 << HASH_BITS) - 1)
    return found


@jit
def _compose(codes: U32, n: int, book: U32) -> int:
    """Order and compose n code points in work, in place; they become plain code points. Returns how many are left."""
    # Canonical order: stable, by class, within each run of code points of a class above 0.
    i = np.int64(0)
    while i < n:
        if codes[i] >> np.uint32(24) == 0:
            i += 1
            continue
        j = i + 1
        while j < n and codes[j] >> np.uint32(24) != 0:
            j += 1
        if j - i <= 24:
            for k in range(i + 1, j):
                one = codes[k]
                at = k
                while at > i and codes[at - 1] >> np.uint32(24) > one >> np.uint32(24):
                    codes[at] = codes[at - 1]
                    at -= 1
                codes[at] = one
        else:  # a run may be a whole text long
            places = np.zeros(257, np.int64)
            for k in range(i, j):
                places[np.int64(codes[k] >> np.uint32(24)) + 1] += 1
            for k in range(256):
                places[k + 1] += places[k]
            run = codes[i:j].copy()
            for k in range(j - i):
                own = np.int64(run[k] >> np.uint32(24))
                codes[i + places[own]] = run[k]
                places[own] += 1
        i = j
    o: int = np.int64(0)
    starter = np.int64(-1)
    before = np.int64(0)
    for k in range(n):
        work = codes[k]
        own = np.int64(work >> np.uint32(24))
        code = np.int64(work) & _CODE
        if work & np.uint32(SECOND) != 0 and starter >= 0 and (starter == o - 1 or before < own):
            both = _composite(np.int64(codes[starter]), code, book)
            if both != 0:
                codes[starter] = np.uint32(both)
                continue
        if own == 0:
            starter = o
        codes[o] = np.uint32(code)  # o <= k
        before = own
        o += 1
    return o


@jit
def _expand(plain: U32, n: int, out: U32, book: U32, column: int) -> tuple[U32, int]:
    """n plain code points through the mapping whose ends are in `column` of the records: 1 takes them apart, into code
    points in work, 3 folds them. Returns `out`, or a larger array, and how many there are in it."""
    stage1, stage2 = np.int64(book[RECORD1]), np.int64(book[RECORD2])
    records, data = np.int64(book[RECORDS]), np.int64(book[DATA])
    o = np.int64(0)
    for k in range(n):
        if o + 64 > len(out):  # no mapping is longer than 18
            larger = np.empty(2 * len(out) + 64, np.uint32)
            for j in range(o):  # a slice would be compiled with its error messages, a second and a half
                larger[j] = out[j]
            out = larger
        code = np.int64(plain[k])
        if column == 1 and S_BASE <= code < S_BASE + S_COUNT:
            s = code - S_BASE
            out[o] = np.uint32(L_BASE + s // (V_COUNT * T_COUNT))
            out[o + 1] = np.uint32(V_BASE + s // T_COUNT % V_COUNT) | np.uint32(SECOND)
            o += 2
            if s % T_COUNT != 0:
                out[o] = np.uint32(T_BASE + s % T_COUNT) | np.uint32(SECOND)
                o += 1
            continue
        row = records + 8 * np.int64(book[stage2 + (np.int64(book[stage1 + (code >> 7)]) << 7 | code & 127)])
        low, high = np.int64(book[row + column]), np.int64(book[row + column + 1])
        if low == high:
            out[o] = np.uint32(code) | (book[row] if column == 1 else np.uint32(0))
            o += 1
        for j in range(low, high):
            out[o] = book[data + j]
            o += 1
    return out, o


@jit
def _cluster(src: U8, low: int, high: int, lower: bool, one: U32, two: U32, book: U32) -> tuple[U32, U32, int]:
    """The letters of src[low:high] after form, folding and form. Returns both scratch arrays, result in the first."""
    n = np.int64(0)
    if len(one) < high - low:
        one = np.empty(high - low, np.uint32)
    last = len(src) - 8
    while low < high:
        at = min(low, last)
        code, step = _decode(np.int64(load_u64(src, at) >> np.uint64(8 * (low - at))))
        one[n] = np.uint32(code)
        n += 1
        low += step
    two, n = _expand(one, n, two, book, 1)
    n = _compose(two, n, book)
    if not lower:
        return two, one, n
    one, n = _expand(two, n, one, book, 3)
    two, n = _expand(one, n, two, book, 1)
    n = _compose(two, n, book)
    return two, one, n


@inline
def _two_han(word: Any) -> Any:
    """Whether the low six bytes are two of U+4E00 to U+9FFF: no step changes these, and they join nothing."""
    first = (word & np.uint64(0xF)) << np.uint64(6) | (word >> np.uint64(8)) & np.uint64(0x3F)
    second = ((word >> np.uint64(24)) & np.uint64(0xF)) << np.uint64(6) | (word >> np.uint64(32)) & np.uint64(0x3F)
    blocks = np.uint64((HAN_LAST - HAN_FIRST) >> 6)
    return (
        (word & np.uint64(0xC0C0F0C0C0F0) == np.uint64(0x8080E08080E0))
        & (first - np.uint64(HAN_FIRST >> 6) <= blocks)
        & (second - np.uint64(HAN_FIRST >> 6) <= blocks)
    )


@jit
def _run(src: U8, offsets: I64, steps: int, book: U32, strings: U8, dst: U8, ends: I64, d: int) -> tuple[int, int]:
    """Documents from number d on. src holds eight bytes or more.

    Returns (documents done, bytes of `dst` that are wanted to go on; 0 where all are done)
    """
    n, size, cap = len(offsets) - 1, len(src), len(dst)
    entry1, entry2, starts = np.int64(book[ENTRY1]), np.int64(book[ENTRY2]), np.int64(book[STARTS])
    class1, class2 = np.int64(book[CLASS1]), np.int64(book[CLASS2])
    ascii_entries = entry2 + (np.int64(book[entry1]) << 7)
    collapse, drop, lower = steps & WHITESPACE != 0, steps & NOSPACE != 0, steps & LOWER != 0
    every = np.uint64(_EVERY)
    collapse_mask = every if collapse else np.uint64(0)
    drop_mask = every if drop else np.uint64(0)
    switch_lower = np.uint8(255 if lower else 0)
    switch_digits = np.uint8(255 if steps & DIGITS else 0)
    switch_punct = np.uint8(255 if steps & PUNCTUATION else 0)
    switch_space = np.uint8(255 if collapse or drop else 0)
    one, two = np.empty(1024, np.uint32), np.empty(1024, np.uint32)
    block = np.empty(2 * 64, np.uint8)
    o = ends[d]
    while d < n:
        i, end = offsets[d], offsets[d + 1]
        start, first = i, o
        blank = np.int64(1)  # the last thing written is a blank, or nothing was written: another blank would not count
        # The last single and the state before it, in case that others join it. last_i < 0: src[i - 1] is of a block.
        last_i, last_o, last_blank, last_entry = np.int64(-1), o, blank, np.uint32(QUICK)
        while i < end:
            if o + ROOM > cap:
                return d, o + ROOM
            while i + 64 <= size and i < end:
                high, white = map_ascii(dst, o, src, i, switch_lower, switch_digits, switch_punct, switch_space)
                stop = min(ctz64(high), end - i)
                if stop == 0:
                    break
                gone = white & (((white << np.uint64(1)) | np.uint64(blank)) & collapse_mask | drop_mask)
                gone &= every >> np.uint64(64 - stop)
                i += stop
                last_i, last_entry = np.int64(-1), np.uint32(QUICK)  # all of ASCII is quick
                blank = np.int64((white >> np.uint64(stop - 1)) & np.uint64(1))
                if gone == 0:
                    o += stop
                else:
                    map_ascii(block, 0, src, i - stop, switch_lower, switch_digits, switch_punct, switch_space)
                    at = np.int64(0)
                    while True:
                        upto = min(ctz64(gone), stop)
                        copy64(dst, o, block, at)
                        o += upto - at
                        if upto == stop:
                            break
                        at = upto + ctz64(~(gone >> np.uint64(upto)))
                        if at >= stop:
                            break
                        gone &= every << np.uint64(at)
                if stop < 64 or o + ROOM > cap:
                    break
            while i < end:
                if o + ROOM > cap:
                    return d, o + ROOM
                at = min(i, size - 8)
                word = np.int64(load_u64(src, at) >> np.uint64(8 * (i - at)))
                if np.uint64(word) & np.uint64(_HIGH) == np.uint64(0) and i + 64 <= size:
                    break  # eight of ASCII: back to blocks
                if _two_han(np.uint64(word)) and i + 6 <= end:
                    most = i + min(end - i, cap - ROOM - o) - 6
                    pair = np.uint64(word)
                    while True:
                        store_u64(dst, o, pair)
                        i += 6
                        o += 6
                        if i > most or i + 8 > size:
                            break
                        pair = load_u64(src, i)
                        if not _two_han(pair):
                            break
                    blank = np.int64(0)
                    last_i, last_o, last_blank, last_entry = i - 3, o - 3, blank, np.uint32(SAME | QUICK)
                    continue
                code, step = _decode(word)
                entry = book[entry2 + (np.int64(book[entry1 + (code >> 7)]) << 7 | code & 127)]
                width = step
                if entry & np.uint32(JOINS) != 0:
                    # Others up to the next that starts. What they join is the last single, if there is one.
                    low = i if i == start else (last_i if last_i >= 0 else i - 1)
                    stop = i
                    quick = low == i or last_entry & np.uint32(QUICK) != 0
                    both = np.int64(
                        0
                    )  # what they compose into, as far as it is one code point that is quick or was made
                    if quick and low < i:
                        at = min(low, size - 8)
                        both, _ = _decode(np.int64(load_u64(src, at) >> np.uint64(8 * (low - at))))
                    before = np.uint32(0)
                    while stop < end:
                        at = min(stop, size - 8)
                        code, step = _decode(np.int64(load_u64(src, at) >> np.uint64(8 * (stop - at))))
                        entry = book[entry2 + (np.int64(book[entry1 + (code >> 7)]) << 7 | code & 127)]
                        if entry & np.uint32(JOINS) == 0:
                            break
                        own = entry & np.uint32(0xFF)
                        quick = quick and entry & np.uint32(QUICK) != 0 and before <= own
                        before = own
                        if both != 0:
                            both = _composite(both, code, book)
                        stop += step
                    stop = min(stop, end)
                    if quick:
                        if o + (stop - i) + ROOM > cap:
                            return d, o + (stop - i) + ROOM
                        while i < stop:
                            dst[o] = src[i]
                            o += 1
                            i += 1
                        blank = np.int64(0)
                        continue
                    if last_i >= 0:
                        o, blank = last_o, last_blank
                    elif low < i and book[ascii_entries + np.int64(src[low])] & np.uint32(SPACE_OUT) == 0:
                        # ASCII of a block was written as one byte, unless it became white space: that gives nothing
                        # else, whatever joins it (symbols of ASCII compose into symbols), and to write a blank once
                        # more changes nothing. What it gives instead is not white space, so `blank` may stay 0.
                        o -= 1
                    if both == 0:
                        one, two, count = _cluster(src, low, stop, lower, one, two, book)
                        if o + 4 * count + ROOM > cap:
                            return d, o + 4 * count + ROOM
                        for k in range(count):
                            code = np.int64(one[k])
                            bits = book[class2 + (np.int64(book[class1 + (code >> 7)]) << 7 | code & 127)]
                            if bits & np.uint32(DIGIT | PUNCT | SPACE) != 0:
                                if steps & DIGITS and bits & np.uint32(DIGIT):
                                    code = np.int64(0x30)
                                if steps & PUNCTUATION and bits & np.uint32(PUNCT):
                                    code = np.int64(0x20)
                                    bits = np.uint32(SPACE)
                                if bits & np.uint32(SPACE) and drop:
                                    continue
                                if bits & np.uint32(SPACE) and collapse:
                                    if blank == 0:
                                        dst[o] = 0x20
                                        o += 1
                                        blank = np.int64(1)
                                    continue
                            word, width = _utf8(code)
                            store_u64(dst, o, np.uint64(word))
                            o += width
                            blank = np.int64(0)
                        i = stop
                        continue
                    # One code point came of it: its ready result is the result.
                    i, step = low, stop - low
                    word, width = _utf8(both)
                    entry = book[entry2 + (np.int64(book[entry1 + (both >> 7)]) << 7 | both & 127)]
                last_i, last_o, last_blank, last_entry = i, o, blank, entry
                i += step
                if entry & np.uint32(SPACE_OUT | STRING) == 0:
                    same = entry & np.uint32(SAME) != 0
                    store_u64(dst, o, np.uint64(word) if same else np.uint64(entry & np.uint32(0xFFFFFF)))
                    o += width if same else np.int64(entry >> np.uint32(24)) & 3
                    blank = np.int64(0)
                elif entry & np.uint32(SPACE_OUT) != 0:
                    if collapse and blank == 0:
                        dst[o] = 0x20
                        o += 1
                        blank = np.int64(1)
                else:
                    number = starts + np.int64(entry & np.uint32(0xFFFFFF))
                    for j in range(np.int64(book[number]), np.int64(book[number + 1])):
                        byte = strings[j]
                        if byte == 0x20 and collapse:
                            if blank == 1:
                                continue
                            blank = np.int64(1)
                        else:
                            blank = np.int64(0)
                        dst[o] = byte
                        o += 1
        if collapse and blank == 1 and o > first:
            o -= 1
        d += 1
        ends[d] = o
    return d, np.int64(0)


@cache
def _tables(steps: int) -> Tables:
    """As normalise_tables.tables: a tenth of a second in Python, a thousandth from the cache folder."""
    check_steps(steps)
    return Tables(*stored(f"normalise-{steps}", lambda: tables(steps)))


def normalise(
    blob: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], steps: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Normalise n documents; contract as normalise_ref.normalise."""
    shaping = steps & (NFC | NFKC | LOWER)
    if steps & ACCENTS and shaping:  # a round of its own, with tables of its own: forms and folding come before
        check_steps(steps)
        blob, offsets = normalise(blob, offsets, shaping)
        steps -= shaping
    book, strings = _tables(steps)
    total = int(offsets[-1]) - int(offsets[0])
    ends = np.zeros(len(offsets), np.int64)
    if len(blob) < 8:
        blob = np.concatenate([blob, np.zeros(8, np.uint8)])
    blob, offsets = frozen(blob, np.uint8), frozen(offsets, np.int64)
    out = np.empty(total + total // 16 + ROOM + PAD, np.uint8)
    done, wanted = _run(blob, offsets, steps, book, strings, out, ends, 0)
    while wanted:
        larger = np.empty(max(wanted, len(out) + len(out) // 2), np.uint8)
        larger[: ends[done]] = out[: ends[done]]
        out = larger
        done, wanted = _run(blob, offsets, steps, book, strings, out, ends, done)
    size = int(ends[-1])
    if size + PAD > len(out):
        out = np.concatenate([out[:size], np.empty(PAD, np.uint8)])
    out[size : size + PAD] = 0
    return out[: size + PAD], ends
