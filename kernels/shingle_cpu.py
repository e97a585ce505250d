"""Shingles and shingle sets in Numba; the definition is shingle_ref."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.jit import inline, jit
from gpu_dedup.kernels.mix64_cpu import Word
from gpu_dedup.kernels.simd import clz64, ctz64, popcount64
from gpu_dedup.kernels.units_cpu import BLOCK, SPARE, drop_stops, next_block, prepare
from gpu_dedup.kernels.units_ref import I64, U8, U64, UNIT_BYTE, UNIT_CHAR, check

_0 = np.uint64(0)
_1 = np.uint64(1)
_PATIENCE = (
    64  # steps per hash after which the table is given up: hashes are then no longer spread as a mixer spreads them
)
_SMALL = 4096  # hashes of a text whose table still fits the cache when it is sparse


@jit
def sift(values: U64, begin: int, root: int, count: int) -> None:
    """One step of heapsort: let values[begin + root] sink in the heap values[begin:begin + count]."""
    held = values[begin + root]
    while True:
        child = 2 * root + 1
        if child >= count:
            break
        if child + 1 < count and values[begin + child + 1] > values[begin + child]:
            child += 1
        if values[begin + child] <= held:
            break
        values[begin + root] = values[begin + child]
        root = child
    values[begin + root] = held


@jit
def unique_slow(values: U64, begin: int, count: int) -> int:
    """`unique` by heapsort: no hash, however chosen, makes it slow."""
    for root in range(count // 2 - 1, -1, -1):
        sift(values, begin, root, count)
    for last in range(count - 1, 0, -1):
        values[begin], values[begin + last] = values[begin + last], values[begin]
        sift(values, begin, 0, last)
    kept = 0
    for i in range(count):
        if i == 0 or values[begin + i] != values[begin + kept - 1]:
            values[begin + kept] = values[begin + i]
            kept += 1
    return kept


@inline
def taken(marks: U64, i: Any) -> Any:
    return (marks[i >> 6] >> np.uint64(i & 63)) & _1 != _0


@jit
def unique(values: U64, begin: int, count: int, shift: Word, table: U64, marks: U64) -> int:
    """Sort values[begin:begin + count] and drop repeats, in place; returns how many are left.

    Linear probing kept in order: a hash goes to the place that its top bits name, or, where others stand, after the
    smaller ones, and the larger ones move up. The table read from end to end is then sorted, and a repeat meets its
    equal on the way. A bit per place says whether it is taken, so the table is sparse (most hashes find their place
    free, which the CPU predicts) and costs nothing to clear or to pass over.

    shift  64 - log2 of the number of places
    values has 4 spare entries after the last
    table  uint64[>= places + count + 64], any content
    marks  uint64[>= (places + count) / 64 + 1], zeros before and after
    """
    steps = np.int64(0)
    for q in range(begin, begin + count):
        h = values[q]
        i = np.int64(h >> shift)
        if taken(marks, i):
            home = i
            while taken(marks, i) and table[i] < h:
                i += 1
            if taken(marks, i):
                if table[i] == h:
                    continue
                while taken(marks, i):
                    h, table[i] = table[i], h
                    i += 1
            steps += i - home
            if steps > _PATIENCE * count:
                marks[:] = _0
                return unique_slow(values, begin, count)
        marks[i >> 6] |= _1 << np.uint64(i & 63)
        table[i] = h
    kept = begin
    places = (np.int64(1) << np.int64(np.uint64(64) - shift)) + count
    for g in range((places >> 6) + 1):
        mark = marks[g]
        marks[g] = _0
        many = popcount64(mark)
        for q in range(0, many, 4):  # four at a time, what is too much is overwritten: see units_cpu.scan
            for r in range(q, q + 4):
                values[kept + r] = table[(g << 6) + ctz64(mark)]
                mark &= mark - _1
        kept += many
    return kept - begin


@jit
def _shingle(
    blob: U8, tail: U8, shift: int, limit: int, offsets: I64, select: I64, unit: int, n: int, poly_n: Word,
    stage1: npt.NDArray[np.uint16], stage2: U8, action: U8, stop: U64, stop_filter: U8,
    sets: bool, first: int, out: U64, hash_offsets: I64, windows: I64,
) -> Any:  # fmt: skip
    """Shingle the documents select[first:] into `out`, up to the first that does not fit; returns where that stands."""
    spans = np.empty((4, BLOCK + SPARE), np.int64)
    units = np.empty(1000 + BLOCK + SPARE, np.uint64)
    block = np.empty(BLOCK + SPARE, np.uint64)
    state = np.empty(4, np.int64)
    window = np.zeros(1, np.uint64)
    table = np.empty(0, np.uint64)
    marks = np.zeros(0, np.uint64)
    done = hash_offsets[first]
    for d in range(first, len(select)):
        begin = offsets[select[d]]
        end = offsets[select[d] + 1]
        text = blob
        if end > limit:
            text = tail
            begin -= shift
            end -= shift
        state[0] = begin
        state[1] = 0
        state[2] = 0
        state[3] = 0
        seen = 0
        at = done
        while True:
            m = next_block(text, end, unit, n, poly_n, stage1, stage2, action, spans, units, block, state, window)
            if m == 0:
                break
            seen += m
            if len(stop) > 0:
                m = drop_stops(block, m, stop, stop_filter)
            if at + m + 4 > len(out):
                return d
            for i in range(m):
                out[at + i] = block[i]
            at += m
        count = at - done
        if sets:
            bits = 64 - clz64(np.uint64(count)) + (3 if count <= _SMALL else 1)  # 8 to 16 places a hash, or 2 to 4
            places = np.int64(1) << bits
            if len(table) < places + count + 64:
                table = np.empty(2 * (places + count) + 64, np.uint64)
                marks = np.zeros(len(table) // 64 + 2, np.uint64)
            count = unique(out, done, count, np.uint64(64 - bits), table, marks)
        done += count
        windows[d] = seen
        hash_offsets[d + 1] = done
    return len(select)


def _run(blob: U8, offsets: I64, select: I64, unit: int, n: int, stop: U64, sets: bool) -> tuple[U64, I64, I64]:
    check(blob, offsets, select, unit, n)
    hash_offsets = np.zeros(len(select) + 1, np.int64)
    windows = np.empty(len(select), np.int64)
    sizes = offsets[select + 1] - offsets[select]
    # A guess of the answer's size; pages that are not written to cost nothing. The array comes from NumPy, which asks
    # the system for huge pages: with small ones, page faults cost as much as the hashing.
    room = int(sizes.sum()) // (1 if unit in (UNIT_BYTE, UNIT_CHAR) else 3) + BLOCK + SPARE
    out = np.empty(room, np.uint64)
    arguments = prepare(blob, offsets, select, unit, n, stop)
    first = 0
    while True:
        first = _shingle(*(*arguments, sets, first, out, hash_offsets, windows))
        done = int(hash_offsets[first])
        if first == len(select):
            return out[:done], hash_offsets, windows
        larger = np.empty(2 * len(out) + int(sizes[first]) + BLOCK + SPARE, np.uint64)
        larger[:done] = out[:done]
        out = larger


def shingle(blob: U8, offsets: I64, select: I64, unit: int, n: int, stop: U64) -> tuple[U64, I64, I64]:
    """Shingle hashes in text order; see shingle_ref.shingle. The text's UTF-8 is trusted, not checked."""
    return _run(blob, offsets, select, unit, n, stop, False)


def shingle_sets(blob: U8, offsets: I64, select: I64, unit: int, n: int, stop: U64) -> tuple[U64, I64]:
    """Shingle sets; see shingle_ref.shingle_sets."""
    hashes, hash_offsets, _ = _run(blob, offsets, select, unit, n, stop, True)
    return hashes, hash_offsets
