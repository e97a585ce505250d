"""Units and shingle hashes of a text as a stream of blocks, in Numba: what shingle_cpu and sketch_cpu stand on.

The rules are those of units_ref and shingle_ref. A text of any length passes through scratch of fixed size: each call
of `next_block` leaves the next thousand or so shingle hashes in `hashes`. The road of a block:

    spans    first and end byte of each unit. ASCII stretches go 64 bytes at a time as bit masks, where a unit begins at
             a 0-1 step of the mask and ends at a 1-0 step; other characters go one by one through the class table
    hashes   a unit of up to 8 bytes is one unaligned load, one bit mask, one mix64, without a branch; longer ones, and
             those with ignorable code points inside, are noted and done after
    windows  for small n the sum of its definition, in SIMD; else s = s * POLY + u_new - u_old * POLY**n, one step a
             shingle whatever n; the final mix runs in SIMD

Every read stays within 64 bytes after the text's end: `padded` says which texts have them, and copies the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.jit import frozen, inline, jit
from gpu_dedup.kernels.mix64 import MASK64
from gpu_dedup.kernels.mix64 import POLY as POLY_INT
from gpu_dedup.kernels.mix64_cpu import GOLDEN, POLY, Word, mix64
from gpu_dedup.kernels.simd import PAD, ctz64, load_u64, mask_eq, mask_high, mask_lt, popcount64
from gpu_dedup.kernels.unicode import IGNORABLE, PUNCT, SINGLE, SPACE, WORD, class_table
from gpu_dedup.kernels.units_ref import I64, U8, U64, UNIT_BYTE, UNIT_CHAR, UNIT_CODE, UNIT_WORD

# Units per block. Scratch for one block (spans, unit and shingle hashes) is some 60 KB and stays in L2; much smaller
# blocks cost calls, larger ones cache misses.
BLOCK = 1024
DIRECT = 8  # up to this n, windows are summed unit by unit in SIMD; the rolling sum is one chain of dependent steps
SPARE = 128  # a block is left at its first 64 bytes that reach BLOCK units, each of them at most two

BREAK, RUN, SINGLE_UNIT, IGNORE = range(4)  # what a code point does

_0 = np.uint64(0)
_1 = np.uint64(1)
_ALL = np.uint64(MASK64)
# Bytes as typed constants for the SIMD compares.
_TAB, _SHIFT_OUT, _BLANK, _BANG, _DELETE = (np.uint8(c) for c in (0x09, 0x0E, 0x20, 0x21, 0x7F))
_DIGIT, _COLON, _UPPER, _BRACKET, _LOWER, _BRACE, _UNDERSCORE = (np.uint8(ord(c)) for c in "0:A[a{_")


def actions(unit: int) -> U8:
    """uint8[64]: what a code point does under `unit`, by its class bits; the precedence of the definition."""
    out = np.full(64, BREAK, np.uint8)
    for bits in range(64):
        if unit == UNIT_WORD:
            out[bits] = BREAK if bits & SPACE else RUN
        elif bits & IGNORABLE:
            out[bits] = IGNORE
        elif bits & SINGLE:
            out[bits] = SINGLE_UNIT
        elif bits & WORD:
            out[bits] = RUN
        elif unit == UNIT_CODE and bits & PUNCT:
            out[bits] = SINGLE_UNIT
    return out


_ACTIONS = [actions(unit) for unit in range(5)]


def padded(blob: U8, offsets: I64) -> tuple[U8, int, int]:
    """A copy of the texts that stand too near the end of their blob to be read 64 bytes at a time.

    returns  tail uint8[], shift int, limit int: a text that ends at or before `limit` is read where it is; any other
             text i is tail[offsets[i] - shift:offsets[i + 1] - shift], and 64 zero bytes follow the last
    """
    limit = len(blob) - PAD
    first = int(np.searchsorted(offsets[1:], limit, side="right"))
    shift = int(offsets[min(first, len(offsets) - 1)])
    tail = np.zeros(int(offsets[-1]) - shift + PAD, np.uint8)
    tail[:-PAD] = blob[shift : int(offsets[-1])]
    return tail, shift, limit


def prepare(blob: U8, offsets: I64, select: I64, unit: int, n: int, stop: U64) -> tuple[Any, ...]:
    """The arguments that the jitted cores share, each of one type: see `next_block`."""
    tail, shift, limit = padded(blob, offsets)
    stage1, stage2 = class_table()
    return (
        frozen(blob, np.uint8),
        frozen(tail, np.uint8),
        int(shift),
        limit,
        frozen(offsets, np.int64),
        frozen(select, np.int64),
        unit,
        n,
        np.uint64(pow(POLY_INT, n, 1 << 64)),
        frozen(stage1, np.uint16),
        frozen(stage2, np.uint8),
        frozen(_ACTIONS[unit], np.uint8),
        frozen(stop, np.uint64),
        stop_filter(stop),
    )


def stop_filter(stop: U64) -> U8:
    """uint8[2**16], read-only: top 16 bits that some stop shingle has; one load passes nearly every other shingle."""
    table = np.zeros(1 << 16, np.uint8)
    table[(stop >> np.uint64(48)).astype(np.int64)] = 1
    return frozen(table, np.uint8)


@inline
def low_bytes(count: Any) -> Word:
    """Mask of the low `count` bytes of a word, 1 <= count <= 8."""
    return _ALL >> np.uint64(64 - 8 * count)


@jit
def scan(
    text: U8, pos: int, end: int, unit: int, stage1: npt.NDArray[np.uint16], stage2: U8, action: U8, spans: I64
) -> tuple[int, int, int]:
    """Find units of text[pos:end] from a place where no unit is open, until about BLOCK of them or the end.

    spans    int64[4, BLOCK + SPARE]; row 0 first bytes, row 1 ends, row 2 units with ignorable code points inside
    returns  place where the next call goes on, units, entries of row 2
    """
    starts = spans[0]
    ends = spans[1]
    odd = spans[2]
    points = np.int64(len(stage1)) << 7
    i = pos
    ns = 0  # units begun
    ne = 0  # units ended: ns or ns - 1
    no = 0
    while i < end and ns < BLOCK:
        k = min(ctz64(mask_high(text, i)), end - i)  # ASCII characters at hand
        if k > 0:
            valid = _ALL >> np.uint64(64 - k)
            p = _0
            if unit == UNIT_WORD:
                w = ~(mask_eq(text, i, _BLANK) | (mask_lt(text, i, _SHIFT_OUT) & ~mask_lt(text, i, _TAB))) & valid
            else:
                w = mask_lt(text, i, _BRACE) & ~mask_lt(text, i, _LOWER)
                w |= mask_lt(text, i, _BRACKET) & ~mask_lt(text, i, _UPPER)
                w |= mask_lt(text, i, _COLON) & ~mask_lt(text, i, _DIGIT)
                w = (w | mask_eq(text, i, _UNDERSCORE)) & valid
                if unit == UNIT_CODE:
                    p = mask_lt(text, i, _DELETE) & ~mask_lt(text, i, _BANG) & ~w & valid
            before = (w << _1) | np.uint64(ns - ne)
            s = (w & ~before) | p
            e = ((before & ~w) | (p << _1)) & valid
            many_s = popcount64(s)
            many_e = popcount64(e)
            # Four at a time, what is too much is overwritten: a loop that is left at the exact count is mispredicted.
            for q in range(0, max(many_s, many_e), 4):
                for r in range(q, q + 4):
                    starts[ns + r] = i + ctz64(s)
                    ends[ne + r] = i + ctz64(e)
                    s &= s - _1
                    e &= e - _1
            ns += many_s
            ne += many_e
            i += k
            if (p >> np.uint64(k - 1)) & _1:  # a punctuation unit that ends with the stretch
                ends[ne] = i
                ne += 1
            if k == 64:
                continue
        while i < end and ns < BLOCK:
            c = np.int64(text[i])
            if c < 0x80:
                # One ASCII character between two others (a blank in Greek) stays here; more go back to the masks.
                if i + 1 >= end or text[i + 1] < 0x80:
                    break
                size = 1
            elif c < 0xE0:
                c = ((c & 0x1F) << 6) | (np.int64(text[i + 1]) & 0x3F)
                size = 2
            elif c < 0xF0:
                c = ((c & 0x0F) << 12) | ((np.int64(text[i + 1]) & 0x3F) << 6) | (np.int64(text[i + 2]) & 0x3F)
                size = 3
            else:
                c = ((c & 0x07) << 18) | ((np.int64(text[i + 1]) & 0x3F) << 12)
                c |= ((np.int64(text[i + 2]) & 0x3F) << 6) | (np.int64(text[i + 3]) & 0x3F)
                c = min(c, points - 1)  # bytes that are no UTF-8 must not lead out of the table
                size = 4
            act = action[stage2[(np.int64(stage1[c >> 7]) << 7) | (c & 127)]]
            if act == SINGLE_UNIT:
                if ne < ns:
                    ends[ne] = i
                    ne += 1
                starts[ns] = i
                ends[ne] = i + size
                ns += 1
                ne += 1
            elif act == RUN:
                if ne == ns:
                    starts[ns] = i
                    ns += 1
            elif act == IGNORE:
                if ne < ns and (no == 0 or odd[no - 1] != ne):
                    odd[no] = ne
                    no += 1
            elif ne < ns:
                ends[ne] = i
                ne += 1
            i += size
    if ne < ns:
        if i >= end:
            ends[ne] = end
        else:  # the block is full: the open unit is left to the next one
            ns = ne
            i = starts[ns]
            if no > 0 and odd[no - 1] == ns:
                no -= 1
    return i, ns, no


@jit
def hash_spans(
    text: U8, count: int, odd_count: int, stage1: npt.NDArray[np.uint16], stage2: U8, spans: I64, units: U64
) -> None:
    """units[:count] = hashes of the units that `scan` found."""
    starts = spans[0]
    ends = spans[1]
    odd = spans[2]
    longer = spans[3]
    nl = 0
    for t in range(count):
        size = ends[t] - starts[t]
        units[t] = np.uint64(size) * GOLDEN + (load_u64(text, starts[t]) & low_bytes(min(size, 8)))
        longer[nl] = t
        nl += np.int64(size > 8)
    for t in range(count):
        units[t] = mix64(units[t])
    for q in range(nl):
        t = longer[q]
        h = units[t]
        i = starts[t] + 8
        end = ends[t]
        while i < end:
            h = mix64(h + (load_u64(text, i) & low_bytes(min(end - i, 8))))
            i += 8
        units[t] = h
    points = np.int64(len(stage1)) << 7
    for q in range(odd_count):
        t = odd[q]
        # Twice over the unit: its length without the ignorable bytes starts the chain.
        length = np.int64(0)
        for sweep in range(2):
            h = np.uint64(length) * GOLDEN
            word = _0
            filled = np.int64(0)
            i = starts[t]
            while i < ends[t]:
                c = np.int64(text[i])
                size = 1
                if c >= 0xF0:
                    c = ((c & 0x07) << 18) | ((np.int64(text[i + 1]) & 0x3F) << 12)
                    c |= ((np.int64(text[i + 2]) & 0x3F) << 6) | (np.int64(text[i + 3]) & 0x3F)
                    c = min(c, points - 1)
                    size = 4
                elif c >= 0xE0:
                    c = ((c & 0x0F) << 12) | ((np.int64(text[i + 1]) & 0x3F) << 6) | (np.int64(text[i + 2]) & 0x3F)
                    size = 3
                elif c >= 0x80:
                    c = ((c & 0x1F) << 6) | (np.int64(text[i + 1]) & 0x3F)
                    size = 2
                if (stage2[(np.int64(stage1[c >> 7]) << 7) | (c & 127)] & IGNORABLE) == 0:
                    if sweep == 0:
                        length += size
                    else:
                        for j in range(i, i + size):
                            word |= np.uint64(text[j]) << np.uint64(8 * filled)
                            filled += 1
                            if filled == 8:
                                h = mix64(h + word)
                                word = _0
                                filled = np.int64(0)
                i += size
            if filled > 0:
                h = mix64(h + word)
        units[t] = h


@jit
def hash_characters(text: U8, pos: int, end: int, by_byte: bool, units: U64) -> tuple[int, int]:
    """Each byte, or each code point, a unit. Returns where the next call goes on, and the units."""
    i = pos
    count = 0
    if by_byte:
        count = min(BLOCK, end - pos)
        for t in range(count):
            units[t] = GOLDEN + np.uint64(text[pos + t])
        i = pos + count
    else:
        while i < end and count < BLOCK:
            if end - i >= 64 and mask_high(text, i) == _0:
                for t in range(64):
                    units[count + t] = GOLDEN + np.uint64(text[i + t])
                count += 64
                i += 64
                continue
            c = text[i]
            size = np.int64(1) + np.int64(c >= 0xC0) + np.int64(c >= 0xE0) + np.int64(c >= 0xF0)
            units[count] = np.uint64(size) * GOLDEN + (load_u64(text, i) & low_bytes(size))
            count += 1
            i += size
    for t in range(count):
        units[t] = mix64(units[t])
    return i, count


@jit
def next_block(
    text: U8,
    end: int,
    unit: int,
    n: int,
    poly_n: Word,
    stage1: npt.NDArray[np.uint16],
    stage2: U8,
    action: U8,
    spans: I64,
    units: U64,
    hashes: U64,
    state: I64,
    window: U64,
) -> Any:
    """The next shingle hashes of a text; 0 when there are no more.

    text    uint8[>= end + 64]
    spans   int64[4, BLOCK + SPARE], units uint64[1000 + BLOCK + SPARE], hashes uint64[BLOCK + SPARE]: scratch; hashes
            holds the answer
    state   int64[4]: next byte (the caller sets it to the text's first), units held in `units`, 1 once a shingle was
            given, units seen (the caller sets these to 0)
    window  uint64[1]: the last window before its final mix
    """
    while True:
        held = state[1]
        if state[0] >= end:
            if held == 0 or state[2] == 1:
                return 0
            state[2] = 1
            s = _0
            for i in range(held):
                s = s * POLY + units[i]
            hashes[0] = mix64(s + np.uint64(held) * GOLDEN)
            return 1
        fresh = units[held:]
        if unit in (UNIT_BYTE, UNIT_CHAR):
            state[0], count = hash_characters(text, state[0], end, unit == UNIT_BYTE, fresh)
        else:
            state[0], count, odd = scan(text, state[0], end, unit, stage1, stage2, action, spans)
            hash_spans(text, count, odd, stage1, stage2, spans, fresh)
        state[3] += count
        total = held + count
        if total < n:
            state[1] = total
            continue
        first = held  # unit that ends the first window of this block
        if state[2] == 0:
            first = n - 1
        m = total - first
        if n <= DIRECT:
            # A slice per pass: an index that might be negative to the compiler's eyes would keep it from SIMD.
            begin = first - n + 1
            entering = units[begin : begin + m]
            for j in range(m):
                hashes[j] = entering[j]
            for q in range(begin + 1, first + 1):
                entering = units[q : q + m]
                for j in range(m):
                    hashes[j] = hashes[j] * POLY + entering[j]
        else:
            s = window[0]
            if state[2] == 0:
                s = _0
                for j in range(n):
                    s = s * POLY + units[j]
                hashes[0] = s
            for j in range(np.int64(state[2] == 0), m):
                s = s * POLY + (units[first + j] - units[first + j - n] * poly_n)
                hashes[j] = s
            window[0] = s
        state[2] = 1
        last = np.uint64(n) * GOLDEN
        for j in range(m):
            hashes[j] = mix64(hashes[j] + last)
        for j in range(n):  # forwards: the source is never before the target
            units[j] = units[total - n + j]
        state[1] = n
        if m > 0:
            return m


@jit
def drop_stops(hashes: U64, count: int, stop: U64, stop_filter: U8) -> int:
    """Close the gaps of stop shingles in hashes[:count]; returns how many are left."""
    kept = 0
    for i in range(count):
        h = hashes[i]
        hashes[kept] = h
        found = False
        if stop_filter[np.int64(h >> np.uint64(48))] != 0:
            low = np.int64(0)
            high = np.int64(len(stop))
            while low < high:
                middle = (low + high) >> 1
                if stop[middle] < h:
                    low = middle + 1
                else:
                    high = middle
            found = low < len(stop) and stop[low] == h
        kept += np.int64(not found)
    return kept
