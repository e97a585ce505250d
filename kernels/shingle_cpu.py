"""Shingles and shingle sets in Numba; the definition is shingle_ref."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.jit import jit
from gpu_dedup.kernels.mix64 import MASK64
from gpu_dedup.kernels.simd import clz64
from gpu_dedup.kernels.units_cpu import BLOCK, SPARE, drop_stops, next_block, prepare
from gpu_dedup.kernels.units_ref import I64, U8, U64, check

_FREE = np.uint64(MASK64)  # an empty place of the ordered table; a hash of this value is remembered apart
_PATIENCE = 64  # steps per hash after which the table is given up: hashes are then no longer spread as a mixer spreads them


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


@jit
def unique(values: U64, begin: int, count: int, table: U64) -> int:
    """Sort values[begin:begin + count] and drop repeats, in place; returns how many are left.

    Linear probing kept in order: a hash goes to the place that its top bits name, or after the smaller ones that stand
    there, and the larger ones move up. The table read from end to end is then sorted, and a repeat meets its equal on the
    way. table: uint64[>= 4 * count + 2], all _FREE before and after.
    """
    if count < 2:
        return count
    shift = np.uint64(clz64(np.uint64(count)) - 1)  # 2 ** (64 - shift) places: 2 to 4 times the hashes
    used = np.int64(0)  # end of the part of the table that was touched
    steps = np.int64(0)
    top = False
    for q in range(begin, begin + count):
        h = values[q]
        if h == _FREE:
            top = True
            continue
        i = np.int64(h >> shift)
        first = i
        while table[i] < h:
            i += 1
        if table[i] != h:
            while h != _FREE:
                h, table[i] = table[i], h
                i += 1
        steps += i - first
        used = max(used, i + 1)
        if steps > _PATIENCE * count:
            table[:used] = _FREE
            return unique_slow(values, begin, count)
    kept = begin
    for i in range(used):
        h = table[i]
        values[kept] = h
        kept += np.int64(h != _FREE)
        table[i] = _FREE
    if top:
        values[kept] = _FREE
        kept += 1
    return kept - begin


@jit
def _shingle(
    blob: U8, tail: U8, shift: int, limit: int, offsets: I64, select: I64, unit: int, n: int, poly_n: np.uint64,
    stage1: npt.NDArray[np.uint16], stage2: U8, action: U8, stop: U64, stop_filter: U8,
    sets: bool, room: int, hash_offsets: I64, windows: I64,
) -> U64:  # fmt: skip
    spans = np.empty((4, BLOCK + SPARE), np.int64)
    units = np.empty(1000 + BLOCK + SPARE, np.uint64)
    block = np.empty(BLOCK + SPARE, np.uint64)
    state = np.empty(3, np.int64)
    window = np.zeros(1, np.uint64)
    out = np.empty(room, np.uint64)
    table = np.empty(0, np.uint64)
    done = np.int64(0)
    hash_offsets[0] = 0
    for d in range(len(select)):
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
        seen = 0
        at = done
        while True:
            m = next_block(text, end, unit, n, poly_n, stage1, stage2, action, spans, units, block, state, window)
            if m == 0:
                break
            seen += m
            if len(stop) > 0:
                m = drop_stops(block, m, stop, stop_filter)
            if at + m + 1 > len(out):
                larger = np.empty(2 * len(out) + m + 1, np.uint64)
                larger[:at] = out[:at]
                out = larger
            for i in range(m):
                out[at + i] = block[i]
            at += m
        count = at - done
        if sets:
            if len(table) < 4 * count + 2:
                table = np.full(4 * count + 1024, _FREE, np.uint64)
            count = unique(out, done, count, table)
        done += count
        windows[d] = seen
        hash_offsets[d + 1] = done
    return out[:done]


def _run(blob: U8, offsets: I64, select: I64, unit: int, n: int, stop: U64, sets: bool) -> tuple[U64, I64, I64]:
    check(blob, offsets, select, unit, n)
    hash_offsets = np.empty(len(select) + 1, np.int64)
    windows = np.empty(len(select), np.int64)
    # First guess of the answer's size, English words: the kernel doubles it where that is too small.
    room = int((offsets[select + 1] - offsets[select]).sum()) // 5 + BLOCK + SPARE
    arguments = prepare(blob, offsets, select, unit, n, stop)
    hashes: U64 = _shingle(*arguments, sets, room, hash_offsets, windows)
    return hashes.copy(), hash_offsets, windows


def shingle(blob: U8, offsets: I64, select: I64, unit: int, n: int, stop: U64) -> tuple[U64, I64, I64]:
    """Shingle hashes in text order; see shingle_ref.shingle. The text's UTF-8 is trusted, not checked."""
    return _run(blob, offsets, select, unit, n, stop, False)


def shingle_sets(blob: U8, offsets: I64, select: I64, unit: int, n: int, stop: U64) -> tuple[U64, I64]:
    """Shingle sets; see shingle_ref.shingle_sets."""
    hashes, hash_offsets, _ = _run(blob, offsets, select, unit, n, stop, True)
    return hashes, hash_offsets
