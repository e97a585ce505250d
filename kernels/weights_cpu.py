"""Document frequencies in Numba; the definition is weights_ref.

The cells of a document pass a hash table once each, as in simhash_cpu. They are written out and added by one thread:
the table has 64 MB, and an increment that locks a cache line waits for memory each time, where plain ones overlap.
"""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.jit import frozen, jit
from gpu_dedup.kernels.mix64_cpu import Word
from gpu_dedup.kernels.simd import clz64
from gpu_dedup.kernels.units_cpu import BLOCK, SPARE, drop_stops, next_block, prepare
from gpu_dedup.kernels.units_ref import U8, UNIT_BYTE, UNIT_CHAR, check
from gpu_dedup.kernels.weights_ref import CELL_BITS, I64, U32, U64, check_table, idf

__all__ = ["add", "cells", "idf"]

_CELL_SHIFT = np.uint64(64 - CELL_BITS)
PLACES = 4  # as in simhash_cpu
IN_CACHE = 1 << 15
_0 = np.uint32(0)
_1 = np.uint32(1)
_STEP = np.uint64(1)
_ODD = np.uint64(secrets.randbits(64) | 1)  # where cells stand in the hash table; see simhash_cpu


@jit
def _cells(
    blob: U8, tail: U8, shift: int, limit: int, offsets: I64, select: I64, unit: int, n: int, poly_n: Word,
    stage1: npt.NDArray[np.uint16], stage2: U8, action: U8, stop: U64, stop_filter: U8,
    odd: Word, room: int,
) -> tuple[U32, int, int]:  # fmt: skip
    """Cells, how many they are (the array is longer), documents with a shingle."""
    spans = np.empty((4, BLOCK + SPARE), np.int64)
    units = np.empty(1000 + BLOCK + SPARE, np.uint64)
    hashes = np.empty(BLOCK + SPARE, np.uint64)
    state = np.empty(4, np.int64)
    window = np.zeros(1, np.uint64)
    out = np.empty(room, np.uint32)
    done = 0
    documents = 0
    table = np.zeros(0, np.uint32)  # a cell and 1 more; 0 is a free place
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
        state[3] = 0
        first = done
        bits = 0
        any_shingle = 0
        while True:
            m = next_block(text, end, unit, n, poly_n, stage1, stage2, action, spans, units, hashes, state, window)
            if m == 0:
                break
            if len(stop) > 0:
                m = drop_stops(hashes, m, stop, stop_filter)
            if m == 0:
                continue
            any_shingle = 1
            if done + m > len(out):
                larger = np.empty(2 * len(out) + BLOCK + SPARE, np.uint32)
                larger[:done] = out[:done]
                out = larger
            guess = min(np.int64(m * ((end - begin) / max(state[0] - begin, 1))), IN_CACHE)  # see simhash_cpu.places
            if done > first:
                guess = 0
            needed = 64 - clz64(np.uint64(max(PLACES * guess, 2 * (done - first + m))))
            if needed > bits:
                bits = needed + np.int64(done > first)
                if len(table) < np.int64(1) << bits:
                    table = np.zeros(np.int64(1) << bits, np.uint32)
                else:
                    table[: np.int64(1) << bits] = _0
                place_shift = np.uint64(64 - bits)
                last = (_STEP << np.uint64(bits)) - _STEP
                for i in range(first, done):
                    at = (np.uint64(out[i]) * odd) >> place_shift
                    while table[at] != _0:
                        at = (at + _STEP) & last
                    table[at] = out[i] + _1
            place_shift = np.uint64(64 - bits)
            last = (_STEP << np.uint64(bits)) - _STEP
            for i in range(m):
                cell = hashes[i] >> _CELL_SHIFT
                out[done] = np.uint32(cell)
                mark = np.uint32(cell) + _1
                at = (cell * odd) >> place_shift
                found = table[at]
                while min(found, found ^ mark) != _0:  # see simhash_cpu.place_of
                    at = (at + _STEP) & last
                    found = table[at]
                table[at] = mark
                done += np.int64(found == _0)
        if bits > 0:
            table[: np.int64(1) << bits] = _0
        documents += any_shingle
    return out, done, documents


def cells(blob: U8, offsets: I64, select: I64, unit: int, n: int, stop: U64) -> tuple[U32, int]:
    """Cells of chosen documents; see weights_ref.cells. The text's UTF-8 is trusted, not checked."""
    check(blob, offsets, select, unit, n)
    sizes = int((offsets[select + 1] - offsets[select]).sum())
    room = sizes // (1 if unit in (UNIT_BYTE, UNIT_CHAR) else 4) + BLOCK + SPARE
    out, done, documents = _cells(*(*prepare(blob, offsets, select, unit, n, stop), _ODD, room))
    return out[:done], int(documents)


@jit
def _add(table: U32, found: U32) -> None:
    for i in range(len(found)):
        table[found[i]] += _1


def add(table: U32, found: U32) -> None:
    """table[c] += 1 for each c of found; see weights_ref.add."""
    check_table(table, found)
    _add(table, frozen(found, np.uint32))
