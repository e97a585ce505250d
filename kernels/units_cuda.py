"""Units of texts and their hashes on the device (units.cu); the definition is units_ref."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_dedup.kernels.cuda import empty, launch, scan, zeros
from gpu_dedup.kernels.tape_cuda import TILE, Staged, extent, stage
from gpu_dedup.kernels.unicode import IGNORABLE, PUNCT, SINGLE, SPACE, WORD, class_table
from gpu_dedup.kernels.units_ref import I64, U8, UNIT_BYTE, UNIT_CODE, UNIT_WORD, check

BREAK, RUN, SINGLE_UNIT, IGNORE = range(4)  # what a code point does; as in utf8.cuh


def actions(unit: int) -> U8:
    """uint8[blocks * 128]: second stage of unicode.class_table, classes replaced by what they do under `unit`."""
    of_class = np.full(64, BREAK, np.uint8)
    for bits in range(64):
        if unit == UNIT_WORD:
            of_class[bits] = BREAK if bits & SPACE else RUN
        elif bits & IGNORABLE:
            of_class[bits] = IGNORE
        elif bits & SINGLE:
            of_class[bits] = SINGLE_UNIT
        elif bits & WORD:
            of_class[bits] = RUN
        elif unit == UNIT_CODE and bits & PUNCT:
            of_class[bits] = SINGLE_UNIT
    out: U8 = of_class[class_table()[1]]
    return out


def hash_units(staged: Staged, unit: int) -> tuple[Any, Any, int]:
    """Hashes of the units of staged texts.

    returns  hashes uint64[u], rows int64[rows + 1]: units before each text, both on the device; u
    """
    import cupy

    size, rows, tiles = np.int64(staged.size), np.int64(staged.rows), np.int64(staged.tiles)
    if unit == UNIT_BYTE:
        hashes = empty(staged.size, np.uint64)
        launch("units", "byte_hash", staged.size, (staged.text, size, hashes))
        return hashes, staged.offsets, staged.size
    classes = (cupy.asarray(class_table()[0]), cupy.asarray(actions(unit)))
    bits = zeros(staged.tiles * TILE // 32, np.uint32)
    launch("units", "boundaries", staged.rows + 1, (staged.offsets, rows, bits))
    known = empty(staged.tiles, np.int64)
    states = empty(staged.tiles, np.uint8)
    common = (size, bits, np.int32(unit), *classes)
    launch("units", "tile_states", staged.tiles, (staged.text, *common, tiles, known, states), 128)
    known, _ = scan(known)
    listed = empty(staged.tiles, np.uint8)
    launch("units", "tile_known", staged.tiles, (known, states, tiles, listed))
    counts = empty(staged.tiles, np.int64)
    # 16 bytes a thread, a tile a block.
    marks = empty(2 * TILE // 16 * staged.tiles, np.uint32)
    launch("units", "unit_count", TILE // 16 * staged.tiles, (staged.text, *common, known, listed, marks, counts))
    counts, count = scan(counts)
    first = empty(count, np.uint32)
    end = empty(count, np.uint32)
    odd = zeros(count // 32 + 1, np.uint32)
    if count:
        launch("units", "unit_mark", TILE // 16 * staged.tiles, (staged.text, marks, counts, first, end, odd))
    del marks
    unit_rows = empty(staged.rows + 1, np.int64)
    launch("units", "unit_rows", staged.rows + 1, (first, np.int64(count), staged.offsets, rows, unit_rows))
    hashes = empty(count, np.uint64)
    launch(
        "units", "unit_hash", count, (staged.text.view(np.uint64), first, end, odd, np.int64(count), *classes, hashes)
    )
    return hashes, unit_rows, count


def units(blob: Any, offsets: I64, select: I64, unit: int) -> tuple[Any, Any]:
    """Hashes of the units of chosen texts, in order.

    blob     uint8 on the device, at any address: valid UTF-8 (lone surrogates as three bytes), trusted, not checked
    offsets  int64[d + 1] on the host: text i is blob[offsets[i]:offsets[i + 1]]
    select   int64[m] on the host: texts, in any order, repeats allowed; at most tape_cuda.LARGEST bytes together
    unit     0 token, 1 word, 2 char, 3 byte, 4 code (units_ref)
    returns  hashes uint64[u], rows int64[m + 1]: units before each text; on the device
    raises   ValueError: arguments that leave the arrays; a batch too large
    """
    check(extent(blob), offsets, select, unit, 1)
    if not len(select):
        return empty(0, np.uint64), zeros(1, np.int64)
    hashes, rows, _ = hash_units(stage(blob, offsets, select), unit)
    return hashes, rows
